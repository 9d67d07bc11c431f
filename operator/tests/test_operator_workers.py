"""The queue: wake-ups merge and are never lost, and one object's trouble stays its own."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from meridian_operator.cluster import Conflict, Key, Unreachable
from meridian_operator.converge import Deposed
from meridian_operator.workers import Queue

pytestmark = pytest.mark.looptime
A, B = Key("Release", "m", "a"), Key("Release", "m", "b")
REST = timedelta(seconds=30)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_many_wake_ups_before_a_pass_are_one_pass() -> None:
    passes = []

    async def work(key: Key) -> timedelta:
        passes.append(key)
        return REST

    queue = Queue(work)
    for _ in range(10):
        queue.add(A)
    await asyncio.sleep(1)
    assert passes == [A]
    await queue.stop()


async def test_a_wake_up_during_a_pass_gives_another_pass() -> None:
    """Cleared before the pass observes, so that none is lost."""
    passes = 0
    queue: Queue

    async def work(key: Key) -> timedelta:
        nonlocal passes
        passes += 1
        if passes == 1:
            queue.add(A)
        await asyncio.sleep(0.1)
        return REST

    queue = Queue(work)
    queue.add(A)
    await asyncio.sleep(5)
    assert passes == 2
    await queue.stop()


async def test_an_object_is_looked_at_again_when_its_plan_says() -> None:
    times = []

    async def work(key: Key) -> timedelta:
        times.append(now())
        return timedelta(seconds=2)

    queue = Queue(work)
    queue.add(A)
    await asyncio.sleep(7)
    assert [round(t - times[0]) for t in times] == [0, 2, 4, 6]
    await queue.stop()


async def test_a_failing_object_is_retried_within_ten_seconds_at_most_and_recovers() -> None:
    """K-25."""
    times: list[float] = []

    async def work(key: Key) -> timedelta:
        times.append(now())
        if len(times) <= 20:
            raise Unreachable("no")
        return REST

    queue = Queue(work)
    queue.add(A)
    await asyncio.sleep(300)
    gaps = [b - a for a, b in zip(times[:21], times[1:21], strict=False)]
    assert max(gaps) <= 10.01
    assert gaps[:3] == pytest.approx([0.5, 1, 2], abs=0.01)
    assert len(times) > 21, "it goes on by itself"
    await queue.stop()


async def test_a_stuck_object_delays_nobody_else() -> None:
    """K-24, and a rollback is never behind a retry."""
    done = []

    async def work(key: Key) -> timedelta:
        if key == A:
            await asyncio.sleep(3600)
        done.append((key, now()))
        return REST

    queue = Queue(work)
    began = now()
    queue.add(A)
    await asyncio.sleep(0.1)
    queue.add(B)
    await asyncio.sleep(1)
    assert done and done[0][0] == B and done[0][1] - began < 1
    await queue.stop()


async def test_a_pass_that_never_ends_is_given_up() -> None:
    starts = []

    async def work(key: Key) -> timedelta:
        starts.append(now())
        await asyncio.sleep(3600)
        return REST

    queue = Queue(work)
    queue.add(A)
    await asyncio.sleep(130)
    assert len(starts) >= 2
    await queue.stop()


async def test_a_conflict_is_decided_again_at_once() -> None:
    """K-13."""
    times = []

    async def work(key: Key) -> timedelta:
        times.append(now())
        if len(times) == 1:
            raise Conflict("changed")
        return REST

    queue = Queue(work)
    queue.add(A)
    await asyncio.sleep(1)
    assert len(times) == 2 and times[1] - times[0] < 0.2
    await queue.stop()


async def test_what_vanished_is_forgotten() -> None:
    """K-03, K-30: no timer, no task, no memory."""

    async def work(key: Key) -> timedelta | None:
        return None if key == A else REST

    queue = Queue(work)
    queue.add(A)
    queue.add(B)
    await asyncio.sleep(1)
    assert queue.keys() == {B}
    queue.drop(B)
    assert queue.keys() == set()
    await queue.stop()


async def test_an_object_of_the_same_name_is_looked_at_again_after_it_was_gone() -> None:
    passes = []

    async def work(key: Key) -> timedelta | None:
        passes.append(now())
        return None

    queue = Queue(work)
    queue.add(A)
    await asyncio.sleep(1)
    queue.add(A)
    await asyncio.sleep(1)
    assert len(passes) == 2


async def test_a_lost_lease_is_reported_and_nothing_is_retried() -> None:
    """K-07."""
    passes = 0

    async def work(key: Key) -> timedelta:
        nonlocal passes
        passes += 1
        raise Deposed("gone")

    queue = Queue(work)
    queue.add(A)
    await asyncio.wait_for(queue.deposed.wait(), timeout=1)
    await asyncio.sleep(60)
    assert passes == 1
    await queue.stop()


async def test_stopping_stops_every_worker_at_once() -> None:
    cancelled = []

    async def work(key: Key) -> timedelta:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(key)
            raise
        return REST

    queue = Queue(work)
    queue.add(A)
    queue.add(B)
    await asyncio.sleep(0.1)
    await queue.stop()
    assert set(cancelled) == {A, B}
