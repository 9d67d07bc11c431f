"""Rows on their way to the store: bounded, retried; an answer may wait a moment for its own. What is dropped is counted."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from meridian_dataplane.calls import RequestRecord, StreamState, ToolAudit
from meridian_dataplane.ports import Records, StoreUnavailable
from meridian_dataplane.telemetry import Metrics, log_failure

CAPACITY = 5_000
"""Rows; at 25 requests/s about three minutes without a store."""
WRITERS = 4
WRITE_S = 4.0
"""Of one write, whatever its adapter promises: a writer that waits for ever would be one less for good."""
_BACKOFF_FIRST, _BACKOFF_MOST = 0.1, 1.0


@dataclass(frozen=True)
class _Waiting:
    row: RequestRecord | ToolAudit
    stored: asyncio.Future[None] | None = None

    def ended(self) -> None:
        if self.stored is not None and not self.stored.done():
            self.stored.set_result(None)


class Spool:
    """Holds rows in memory until the store has them. Full, it drops the newest record; audit rows are kept first (IV-20)."""

    def __init__(self, records: Records, metrics: Metrics, capacity: int = CAPACITY) -> None:
        self._records, self._metrics, self._capacity = records, metrics, capacity
        self._rows: deque[_Waiting] = deque()
        self._writing = 0
        self._store_answers = False
        self._filled = asyncio.Event()

    @property
    def pending(self) -> int:
        return len(self._rows) + self._writing

    def record(self, row: RequestRecord) -> asyncio.Future[None] | None:
        """What is done once the store has the row, or None when there is no use in waiting: the store does not answer."""
        stored = asyncio.get_running_loop().create_future() if self._store_answers else None
        self._put(_Waiting(row, stored))
        return stored

    def audit(self, row: ToolAudit) -> None:
        self._put(_Waiting(row))

    async def run(self) -> None:
        """Writes until cancelled."""
        self._store_answers = True
        try:
            async with asyncio.TaskGroup() as writers:
                for _ in range(WRITERS):
                    writers.create_task(self._write_on())
        finally:
            self._store_answers = False

    async def drained(self, timeout_s: float) -> bool:
        """Waits until nothing is pending, at most `timeout_s` seconds."""
        until = asyncio.get_running_loop().time() + timeout_s
        while self.pending and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return not self.pending

    def _put(self, waiting: _Waiting) -> None:
        if self.pending >= self._capacity and not self._make_room(waiting.row):
            self._metrics.records_lost.inc()
            waiting.ended()
            return
        self._rows.append(waiting)
        self._metrics.records_pending.set(self.pending)
        self._filled.set()

    def _make_room(self, row: RequestRecord | ToolAudit) -> bool:
        """An audit row takes the place of the oldest request record; nothing takes an audit row's."""
        if isinstance(row, RequestRecord):
            return False
        victim = next((one for one in self._rows if isinstance(one.row, RequestRecord)), None)
        if victim is None:
            return False
        self._rows.remove(victim)
        victim.ended()
        self._metrics.records_lost.inc()
        return True

    async def _write_on(self) -> None:
        backoff = _BACKOFF_FIRST
        while True:
            while not self._rows:
                self._filled.clear()
                await self._filled.wait()
            if await self._written(self._rows.popleft()):
                backoff = _BACKOFF_FIRST
            else:
                await asyncio.sleep(backoff * random.uniform(0.5, 1.5))  # noqa: S311
                backoff = min(backoff * 2, _BACKOFF_MOST)

    async def _written(self, waiting: _Waiting) -> bool:
        """False when the store is away; then the row is in the spool again."""
        self._writing += 1
        try:
            await self._store(waiting.row)
        except (StoreUnavailable, TimeoutError) as away:
            # To the end of the line, so that a row with a trouble of its own holds up no other.
            self._rows.append(waiting)
            self._store_answers = False
            waiting.ended()
            log_failure("record_not_written", away, count=len(self._rows))
            return False
        except Exception as broken:  # noqa: BLE001
            # A row that the store will never take must not stop the others.
            self._metrics.records_lost.inc()
            log_failure("record_refused", broken)
        except BaseException:
            self._rows.appendleft(waiting)
            raise
        else:
            self._store_answers = True
        finally:
            self._writing -= 1
            self._metrics.records_pending.set(self.pending)
        waiting.ended()
        return True

    async def _store(self, row: RequestRecord | ToolAudit) -> None:
        async with asyncio.timeout(WRITE_S):
            if isinstance(row, RequestRecord):
                await self._records.write(row)
            else:
                await self._records.audit(row)


class WatchedSpool(Spool):
    """Passes rows on, and says when a record is that of a whole answer."""

    def __init__(self, inner: Spool, whole: Callable[[], None]) -> None:
        self._inner, self._whole = inner, whole

    def record(self, row: RequestRecord) -> asyncio.Future[None] | None:
        if row.state == StreamState.TERMINAL.value:
            self._whole()
        return self._inner.record(row)

    def audit(self, row: ToolAudit) -> None:
        self._inner.audit(row)
