"""Wakes whoever waits for a service's configuration in this process."""

from __future__ import annotations

import asyncio
from collections import defaultdict


class Wakeups:
    """An event per waiter; one that cleared its event before it read never misses a wake-up."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = defaultdict(set)

    def notify(self, service: str) -> None:
        """Wake all who wait for `service`. Cheap and safe to call for every event."""
        for event in self._waiting.get(service, ()):
            event.set()

    def notify_all(self) -> None:
        """Wake everybody."""
        for service in list(self._waiting):
            self.notify(service)

    def register(self, service: str) -> asyncio.Event:
        """An event that `notify` sets; give it back with `release`."""
        event = asyncio.Event()
        self._waiting[service].add(event)
        return event

    def release(self, service: str, event: asyncio.Event) -> None:
        """Forget a waiter."""
        waiting = self._waiting.get(service)
        if waiting is not None:
            waiting.discard(event)
            if not waiting:
                del self._waiting[service]

    def waiters(self, service: str) -> int:
        """How many wait now."""
        return len(self._waiting.get(service, ()))


LOCAL = Wakeups()
"""This process's own: `commit` and the watch wake, the long poll waits."""
