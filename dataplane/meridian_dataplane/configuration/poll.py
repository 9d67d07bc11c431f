"""The long poll for newer snapshots, which also tells the control plane what was applied or refused. Nothing waits for it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import httpx

from meridian_dataplane.configuration.live import Live, Source
from meridian_dataplane.configuration.verify import MAX_ENVELOPE_BYTES, Refused
from meridian_dataplane.telemetry import log_failure

WAIT_SECONDS = 20
"""How long one poll may hang; below the 25 s that the server allows."""
_BACKOFF_FIRST, _BACKOFF_MOST = 0.25, 10.0
_MOUNT_EVERY = 5.0


async def poll(live: Live, source: Source, replica: str, client: httpx.AsyncClient) -> None:
    """Ask again and again, until cancelled. Reconnects are jittered, so that replicas do not come back in step."""
    backoff = _BACKOFF_FIRST
    while True:
        try:
            await _ask_once(live, source, replica, client)
            backoff = _BACKOFF_FIRST
        except (httpx.HTTPError, httpx.InvalidURL, _Unexpected, OSError, TimeoutError) as failure:
            log_failure("config_poll_failed", failure, seconds=round(backoff, 2))
            await asyncio.sleep(backoff * random.uniform(0.5, 1.5))  # noqa: S311
            backoff = min(backoff * 2, _BACKOFF_MOST)
        live.report_age()


async def watch_mount(live: Live, *, is_contact: bool) -> None:
    """Offers the mounted copy when it changes. With no poll configured it is the contact itself (one process, one file)."""
    seen: bytes | None = None
    while True:
        raw = await asyncio.to_thread(live.mounted)
        if raw is not None:
            if raw != seen:
                await live.offer(raw, source="mount")
                seen = raw
            if is_contact:
                live.heard()
        live.report_age()
        await asyncio.sleep(_MOUNT_EVERY)


class _Unexpected(Exception):
    """An answer that the protocol does not have."""


async def _ask_once(live: Live, source: Source, replica: str, client: httpx.AsyncClient) -> None:
    if source.url is None:
        raise _Unexpected("no URL")
    refused = live.refused
    applied = live.snapshot.generation if live.snapshot else 0
    asked = {
        "have": applied,
        "replica": replica,
        "applied": applied,
        "digest": live.digest,
        "wait": WAIT_SECONDS,
    }
    if refused is not None:
        asked |= {"refused": refused.generation, "reason": refused.reason}
    headers = await asyncio.to_thread(_bearer, source.token_file)
    url = f"{source.url.rstrip('/')}/v1/config/{source.service}"
    timeout = httpx.Timeout(5.0, read=WAIT_SECONDS + 10.0)
    async with client.stream("GET", url, params=asked, headers=headers, timeout=timeout) as answer:
        if answer.status_code == 204:
            live.heard()
            return
        if answer.status_code != 200:
            raise _Unexpected(str(answer.status_code))
        raw = await _bounded(answer)
    if isinstance(await live.offer(raw, source="poll"), Refused):
        # The server offers it again at once; backing off is what keeps that from becoming a storm (F-01). And it is no
        # contact: what was refused may have been the rollback of the candidate that this replica still knows.
        raise _Unexpected("refused")
    live.heard()


async def _bounded(answer: httpx.Response) -> bytes:
    """The body, cut off where it cannot be an envelope any more; `verify` refuses what is over the limit."""
    parts: list[bytes] = []
    size = 0
    async for part in answer.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > MAX_ENVELOPE_BYTES:
            break
    return b"".join(parts)


def _bearer(file: Path | None) -> dict[str, str]:
    """The token is read anew each time: the kubelet rotates it (F-19). Raises OSError."""
    if file is None:
        return {}
    return {"authorization": f"Bearer {file.read_text('utf-8').strip()}"}
