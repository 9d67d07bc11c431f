"""Replicas of a model target: the addresses behind a headless Service, found by DNS, never by the API server."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from meridian_dataplane.ports import Clock

REFRESH_S = 3.0
REFUSED_S = 3.0
"""How long an address that refused a connection is passed over."""
Resolve = Callable[[str, int], Awaitable[list[str]]]


async def resolve(host: str, port: int) -> list[str]:
    """Addresses of `host`, sorted. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({str(address[0]) for *_, address in found})


@dataclass
class _Known:
    addresses: list[str] = field(default_factory=list)
    looked_at: float = float("-inf")
    looking: asyncio.Task[None] | None = None


class Replicas:
    """Least busy address first. The last good addresses are kept while DNS fails (F-29)."""

    def __init__(self, clock: Clock, resolver: Resolve = resolve) -> None:
        self._clock, self._resolver = clock, resolver
        self._known: dict[tuple[str, int], _Known] = {}
        self._refused_until: dict[str, float] = {}
        self.in_flight: Counter[str] = Counter()

    async def pick(self, base_url: str, tried: set[str]) -> str:
        """An address with port to connect to, as `host:port`. Raises OSError when there is none that was not tried."""
        parts = urlsplit(base_url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        if parts.scheme == "https":
            return _authority(host, port)  # the certificate is for the name
        addresses = await self._addresses(host, port)
        now = self._clock.monotonic()
        choices = [a for one in addresses if (a := _authority(one, port)) not in tried]
        calm = [a for a in choices if self._refused_until.get(a, 0.0) <= now]
        if not choices:
            raise OSError("no replica")
        return min(calm or choices, key=lambda a: self.in_flight[a])

    def refused(self, address: str) -> None:
        self._refused_until[address] = self._clock.monotonic() + REFUSED_S

    async def _addresses(self, host: str, port: int) -> list[str]:
        known = self._known.setdefault((host, port), _Known())
        if self._clock.monotonic() - known.looked_at > REFRESH_S and known.looking is None:
            known.looking = asyncio.create_task(self._look(known, host, port))
        if not known.addresses and known.looking is not None:
            # Shielded: the caller's deadline ends its wait, not everybody's look-up.
            await asyncio.shield(known.looking)
        if not known.addresses:
            raise OSError("name not resolved")
        return known.addresses

    async def _look(self, known: _Known, host: str, port: int) -> None:
        try:
            found = await self._resolver(host, port)
            # An empty answer is no reason to forget replicas that work.
            known.addresses = found or known.addresses
            known.looked_at = self._clock.monotonic()
        except OSError:
            known.looked_at = self._clock.monotonic() - REFRESH_S / 2
        finally:
            known.looking = None


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
