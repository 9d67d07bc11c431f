"""What the answer may rest on. Takes an Admitted; gives a Grounded; refuses with 503 or 429; writes audit.

Retrieval and the order lookup run at the same time (S-12). When retrieval fails there is no answer: the model's memory is no
source (S-86). The read is idempotent, so it may be tried once more, within its time and the retry budget (S-81).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

from meridian_dataplane.calls import Grounded, Passage, Pinned, ToolAudit, ToolOutcome
from meridian_dataplane.ports import Clock, Index, StoreUnavailable, Tools
from meridian_dataplane.refusals import busy, unavailable
from meridian_dataplane.run import Run
from meridian_dataplane.stages.admit import Admitted
from meridian_dataplane.stages.lookup import look_up
from meridian_dataplane.telemetry import log_failure

_T = TypeVar("_T")
_GRACE_S = 0.1


class RetryBudget:
    """Retries may add at most a share to the calls: each call earns a part of one, each retry spends one (IV-26)."""

    def __init__(self, burst: float = 10.0) -> None:
        self._tokens = self._burst = burst

    def earn(self, ratio: float) -> None:
        self._tokens = min(self._burst, self._tokens + ratio)

    def spend(self) -> bool:
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


async def ground(
    admitted: Admitted,
    run: Run,
    *,
    index: Index,
    tools: Tools,
    clock: Clock,
    retries: RetryBudget,
    gate: asyncio.Semaphore,
    audit: Callable[[ToolAudit], None],
) -> Grounded:
    """Both reads at once; the time until the slower one is what the request pays."""
    pinned = admitted.pinned
    passages: Sequence[Passage] | None = None
    tool: ToolOutcome | None = None

    overdue = False

    async def retrieve() -> None:
        nonlocal passages, overdue
        overdue = not await _timed("retrieve_wait", run, clock, _through(gate, pinned, clock))
        if not overdue:
            try:
                passages = await _timed("retrieve", run, clock, _retrieve(pinned, index, clock, retries))
            finally:
                gate.release()

    async def lookup() -> None:
        nonlocal tool
        call = look_up(pinned, tools=tools, clock=clock, may_retry=retries.spend, audit=audit)
        tool = await _timed("lookup", run, clock, call)

    began = clock.monotonic()
    async with anyio.create_task_group() as both:
        both.start_soon(retrieve)
        both.start_soon(lookup)
    run.stage_ms["ground"] = _ms(clock.monotonic() - began)
    run.tool_outcome = tool.outcome if tool else None
    if overdue:
        raise busy("retrieval_wait", "The wait would be longer than this service allows.", 2)
    if passages is None:
        raise unavailable(
            "retrieval_unavailable",
            "The documents cannot be searched at the moment, and without them there is no answer.",
        )
    run.retrieved = tuple(passages)
    return Grounded(pinned, tuple(passages), tool)


async def _through(gate: asyncio.Semaphore, pinned: Pinned, clock: Clock) -> bool:
    """Whether its turn came in time. Without turns a burst would make every search slow and none succeed."""
    left = pinned.deadline_at - clock.monotonic()
    try:
        async with asyncio.timeout(min(pinned.manifest.settings.admission.max_wait_ms / 1000, left)):
            await gate.acquire()
    except TimeoutError:
        return False
    return True


async def _retrieve(pinned: Pinned, index: Index, clock: Clock, retries: RetryBudget) -> Sequence[Passage] | None:
    """None when the store could not answer, which is not the same as finding nothing."""
    settings, manifest = pinned.manifest.settings, pinned.manifest
    retries.earn(settings.max_extra_load_ratio)
    for attempt in range(settings.retrieval_calls.retries + 1):
        left = min(settings.retrieval_calls.timeout_ms / 1000, pinned.deadline_at - clock.monotonic())
        if left <= 0 or (attempt and not retries.spend()):
            return None
        try:
            # The store ends its statement by itself; cancelling one costs its connection.
            async with asyncio.timeout(left + _GRACE_S):
                return await index.retrieve(
                    tenant=pinned.caller.tenant_id,
                    groups=pinned.caller.groups,
                    epoch=manifest.index.epoch,
                    embedding=manifest.index.embedding.ident,
                    question=pinned.received.question,
                    candidates=settings.retrieval.candidates,
                    limit=settings.retrieval.top_k,
                    rerank=settings.retrieval.rerank,
                    timeout_s=left,
                )
        except (StoreUnavailable, TimeoutError) as failure:
            log_failure("retrieval_failed", failure, attempt=attempt)
            await asyncio.sleep(random.uniform(0.005, 0.03))  # noqa: S311
    return None


async def _timed(stage: str, run: Run, clock: Clock, work: Awaitable[_T]) -> _T:
    began = clock.monotonic()
    try:
        return await work
    finally:
        run.stage_ms[stage] = _ms(clock.monotonic() - began)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
