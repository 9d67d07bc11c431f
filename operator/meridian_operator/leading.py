"""What only the leader does: work the queue, list everything every period, and stop at once when the Lease is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

from meridian_operator import metrics
from meridian_operator.cluster import ClusterError, Key, Manifest
from meridian_operator.converge import Kind, World, converge
from meridian_operator.lease import Lease
from meridian_operator.logs import log
from meridian_operator.waking import woken_by
from meridian_operator.workers import Queue


class Leading:
    """The queue while this process leads; before that, wake-ups are dropped: the first list finds everything."""

    def __init__(
        self,
        world: World,
        kinds: Mapping[str, Kind[Any]],
        monotonic: Callable[[], float],
        begin: Callable[[], Awaitable[None]],
    ) -> None:
        """`begin` runs once, beside the work, when leadership begins: the schema."""
        self._world, self._kinds, self._monotonic, self._begin = world, kinds, monotonic, begin
        self._queue: Queue | None = None
        self.last_resync: float | None = None
        """Monotonic time of the last completed list of all kinds, or of the beginning of leadership."""

    def wake(self, changed: Manifest) -> None:
        """After a watch event; cheap, and harmless when it is wrong or late."""
        if self._queue is not None:
            for key in woken_by(changed, self._queue.keys()):
                self._queue.add(key)

    async def lead(self, lease: Lease) -> None:
        """Acquire, work, and return when the Lease is lost: the process exits then, so that nothing of this reign goes on."""
        await lease.acquire()
        self.last_resync = self._monotonic()
        queue = self._queue = Queue(self._pass)
        beginning = asyncio.ensure_future(self._begin())
        keeping = asyncio.create_task(lease.keep(), name="lease")
        listing = asyncio.create_task(self._resync_for_ever(queue), name="resync")
        deposed = asyncio.create_task(queue.deposed.wait(), name="deposed")
        try:
            await asyncio.wait({keeping, listing, deposed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._queue = None
            for task in (keeping, listing, deposed, beginning):
                task.cancel()
            await queue.stop()
            await lease.release()
            await asyncio.gather(keeping, listing, deposed, beginning, return_exceptions=True)

    async def _pass(self, key: Key) -> timedelta | None:
        return await converge(key, self._kinds[key.kind], self._world)

    async def _resync_for_ever(self, queue: Queue) -> None:
        while True:
            try:
                await self.resync(queue)
                await asyncio.sleep(self._world.settings.resync_seconds)
            except ClusterError as error:
                log("resync-failed", error=type(error).__name__, detail=str(error))
                await asyncio.sleep(min(2.0, self._world.settings.resync_seconds))

    async def resync(self, queue: Queue) -> None:
        """List every kind consistently, and queue all that is there or was known (K-03). Raises ClusterError.

        What the list does not have is queued too, not dropped: its own quorum read tells a deleted object, which its worker then
        forgets, from one that was created after the list began.
        """
        kinds = list(self._kinds)
        namespace = self._world.settings.namespace
        lists = await asyncio.gather(*(self._world.cluster.list(kind, namespace) for kind in kinds))
        for kind, found in zip(kinds, lists, strict=True):
            there = {Key(kind, namespace, item["metadata"]["name"]) for item in found}
            for key in sorted(there | queue.keys(kind)):
                queue.add(key)
            _count(kind, found)
        self.last_resync = self._monotonic()


def _count(kind: str, found: list[Manifest]) -> None:
    phases = Counter(str((item.get("status") or {}).get("phase") or "none") for item in found)
    for old in {labels[1] for labels in list(metrics.objects._metrics) if labels[0] == kind} - phases.keys():
        metrics.objects.remove(kind, old)
    for phase, count in phases.items():
        metrics.objects.labels(kind, phase).set(count)
