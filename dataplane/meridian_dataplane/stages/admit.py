"""Whether work may start now. Takes a Pinned; gives an Admitted; refuses with 429 (or 503 while draining); holds one permit.

Bounded by waiting time: what would wait longer than the release's limit is refused at once with a hint when to come back, and
what has waited too long never starts (IV-24). Queues by class are for later; a tenant's own cap keeps one from taking all.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from meridian_api.serving import ServingTenant
from meridian_dataplane.calls import Pinned
from meridian_dataplane.ports import Clock
from meridian_dataplane.refusals import busy, unavailable
from meridian_dataplane.telemetry import Metrics

_FIRST_GUESS_S = 2.0
_SMOOTHING = 0.1


@dataclass(frozen=True)
class Admitted:
    """A request that holds a permit."""

    pinned: Pinned
    waited_s: float


class Admission:
    """The permits of this process."""

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self._clock, self._metrics = clock, metrics
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._per_tenant: Counter[str] = Counter()
        self._service_s = _FIRST_GUESS_S
        self.in_flight = 0
        self.draining = False

    @asynccontextmanager
    async def permit(self, pinned: Pinned) -> AsyncIterator[Admitted]:
        """Holds one permit for the body's time. Raises Refusal."""
        limits = pinned.manifest.settings.admission
        self._check(pinned)
        with self.counted(pinned.caller.tenant):
            began = self._clock.monotonic()
            await self._acquire(limits.max_in_flight, limits.max_wait_ms / 1000, pinned)
            started = self._clock.monotonic()
            self._metrics.admission_wait.observe(started - began)
            try:
                yield Admitted(pinned, started - began)
            finally:
                self._release(limits.max_in_flight, self._clock.monotonic() - started)

    @contextmanager
    def counted(self, tenant: ServingTenant) -> Iterator[None]:
        """One request of `tenant` for the body's time; a tenant has one cap, whatever the route (G-07). Raises Refusal."""
        self._check_cap(tenant)
        self._per_tenant[tenant.tenant_id] += 1
        try:
            yield
        finally:
            self._per_tenant[tenant.tenant_id] -= 1
            if not self._per_tenant[tenant.tenant_id]:
                del self._per_tenant[tenant.tenant_id]

    def _check_cap(self, tenant: ServingTenant) -> None:
        if self._per_tenant[tenant.tenant_id] >= tenant.budgets.concurrent_requests:
            raise busy("tenant_concurrency", "Your tenant has too many requests in flight.", 1)

    def _check(self, pinned: Pinned) -> None:
        if self.draining:
            raise unavailable("shutting_down", "This replica is leaving; ask again.", 1)
        self._check_cap(pinned.caller.tenant)
        limits = pinned.manifest.settings.admission
        expected = expected_wait(self.in_flight, len(self._waiters), limits.max_in_flight, self._service_s)
        if expected * 1000 > limits.max_wait_ms:
            raise self._full(expected)

    async def _acquire(self, most: int, max_wait_s: float, pinned: Pinned) -> None:
        if self.in_flight < most and not self._waiters:
            self._take()
        else:
            await self._wait(max_wait_s)
        if self._clock.monotonic() >= pinned.deadline_at:
            self._release(most, None)
            raise self._full(1.0)

    async def _wait(self, max_wait_s: float) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(turn)
        self._metrics.waiting.set(len(self._waiters))
        try:
            async with asyncio.timeout(max_wait_s):
                await turn
        except BaseException as ended:
            if turn.done() and not turn.cancelled():
                # The permit came in the same moment; it goes on to the next one in line.
                self._release(self.in_flight, None)
            else:
                self._waiters.remove(turn) if turn in self._waiters else None
            if isinstance(ended, TimeoutError):
                raise self._full(max_wait_s) from None
            raise
        finally:
            self._metrics.waiting.set(len(self._waiters))

    def _take(self) -> None:
        self.in_flight += 1
        self._metrics.in_flight.set(self.in_flight)

    def _release(self, most: int, service_s: float | None) -> None:
        self.in_flight -= 1
        if service_s is not None:
            self._service_s += _SMOOTHING * (service_s - self._service_s)
        while self._waiters and self.in_flight < most:
            turn = self._waiters.popleft()
            if not turn.done():
                self.in_flight += 1
                turn.set_result(None)
        self._metrics.in_flight.set(self.in_flight)

    def _full(self, wait_s: float) -> Exception:
        return busy(
            "admission_wait",
            "The wait would be longer than this service allows.",
            max(1, math.ceil(wait_s)),
        )


def expected_wait(in_flight: int, waiting: int, most: int, service_s: float) -> float:
    """Seconds until a newcomer's turn: each of `most` permits frees once per `service_s`."""
    if in_flight < most and not waiting:
        return 0.0
    return (waiting + 1) * service_s / most
