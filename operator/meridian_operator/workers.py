"""The work queue: one worker per object, wake-ups merged, failures retried ever slower up to 10 s.

No worker waits for another, so one object's trouble never delays a rollback of another (K-24, K-25). Whatever wakes a worker,
the wake-up is cleared before the pass observes, so that none is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from meridian_operator import metrics
from meridian_operator.cluster import Conflict, Key
from meridian_operator.converge import Deposed
from meridian_operator.logs import log

FIRST_DELAY, LONGEST_DELAY = 0.5, 10.0
"""Seconds between failed passes: doubled each time, capped."""
PASS_LIMIT = 60.0
"""Seconds after which a pass is given up; each call inside has its own, shorter limit."""

Work = Callable[[Key], Awaitable[timedelta | None]]
"""One pass over one object: when to look again, or None when it is gone."""


class Queue:
    """Tasks by key. All methods belong to the event loop's thread."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._wake: dict[Key, asyncio.Event] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self.deposed = asyncio.Event()
        """Set when a pass found the Lease lost."""

    def keys(self, kind: str | None = None) -> set[Key]:
        """Objects that have a worker."""
        return {k for k in self._tasks if kind in (None, k.kind)}

    def add(self, key: Key) -> None:
        """Have `key` looked at now; once, however often it is added before its worker gets to it."""
        if key not in self._tasks:
            self._wake[key] = asyncio.Event()
            self._tasks[key] = asyncio.create_task(self._worker(key), name=str(key))
            metrics.queue_keys.labels(key.kind).inc()
        self._wake[key].set()

    def drop(self, key: Key) -> None:
        """Forget an object that vanished (K-03, K-30)."""
        if task := self._tasks.pop(key, None):
            task.cancel()
            del self._wake[key]
            metrics.queue_keys.labels(key.kind).dec()

    async def stop(self) -> None:
        """Stop every worker, at once."""
        tasks = list(self._tasks.values())
        for key in list(self._tasks):
            self.drop(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _worker(self, key: Key) -> None:
        wake, failures, delay = self._wake[key], 0, 0.0
        while True:
            try:
                await asyncio.wait_for(wake.wait(), timeout=delay)
                if failures:  # woken while backing off: a busy watch must not undo the delay
                    await asyncio.sleep(min(delay, FIRST_DELAY))
            except TimeoutError:
                pass
            wake.clear()
            started = asyncio.get_running_loop().time()
            outcome = "done"
            try:
                again = await asyncio.wait_for(self._work(key), timeout=PASS_LIMIT)
                if again is None and not wake.is_set():  # woken meanwhile: it may be there again
                    outcome = "gone"
                    self._forget_self(key)
                    return
                failures, delay = 0, again.total_seconds() if again else 0.0
            except Deposed:
                self.deposed.set()
                return
            except Conflict:  # somebody else wrote in between, which is normal: read and decide again
                outcome, failures = "conflict", failures + 1
                delay = min(0.05 * 2**failures, LONGEST_DELAY)
            except Exception as error:  # noqa: BLE001 - whatever one object's pass throws stays that object's trouble
                outcome, failures = "failed", failures + 1
                delay = min(FIRST_DELAY * 2 ** min(failures - 1, 10), LONGEST_DELAY)
                log("pass-failed", key=str(key), error=type(error).__name__, detail=str(error), seconds=delay)
            finally:
                took = asyncio.get_running_loop().time() - started
                metrics.reconcile_seconds.labels(key.kind, outcome).observe(took)

    def _forget_self(self, key: Key) -> None:
        self._tasks.pop(key, None)
        self._wake.pop(key, None)
        metrics.queue_keys.labels(key.kind).dec()
