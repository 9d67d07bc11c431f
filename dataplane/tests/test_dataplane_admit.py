"""Pinning, admission, breaker, retry budget: what bounds the work, over a clock that tests own."""

import asyncio

import pytest
from dataplane_world import a_candidate, a_manifest, a_request, a_snapshot, a_target, a_tenant
from hypothesis import given
from hypothesis import strategies as st

from meridian_api.serving import Candidate, Target
from meridian_api.v1alpha1.settings import Breaker
from meridian_dataplane.breaker import COOL_DOWN_S, TargetBreaker
from meridian_dataplane.calls import Identified, StreamState
from meridian_dataplane.doubles import ManualClock
from meridian_dataplane.refusals import Refusal
from meridian_dataplane.run import Run
from meridian_dataplane.stages.admit import Admission, expected_wait
from meridian_dataplane.stages.identify import caller_of
from meridian_dataplane.stages.pin import is_candidate, pin
from meridian_dataplane.stages.retrieve import RetryBudget
from meridian_dataplane.telemetry import Metrics


def a_pinned(clock, conversation=None, contact_age=0.0, **changed):
    snapshot = a_snapshot(**changed)
    caller = caller_of(snapshot.tenants[0], "u_1", (), ())
    request = a_request(conversation=conversation, clock=clock)
    return pin(Identified(request, caller, snapshot, False), contact_age=contact_age)


def weighing(weight, salt="s1"):
    return Candidate.from_wire({**a_candidate(weight=weight), "salt": salt})


@given(st.text(max_size=30), st.integers(0, 100), st.integers(0, 100))
def test_a_conversation_on_the_candidate_stays_there_when_the_weight_grows(conversation, one, other):
    """Sticky and monotone; 0 is nobody, 100 everybody."""
    low, high = sorted((one, other))
    assert is_candidate("t", conversation, weighing(low)) <= is_candidate("t", conversation, weighing(high))
    assert not is_candidate("t", conversation, weighing(0))
    assert is_candidate("t", conversation, weighing(100))


def test_the_share_is_the_weight_and_the_salt_deals_anew():
    tried = [f"c{n}" for n in range(4000)]
    chosen = {c for c in tried if is_candidate("t", c, weighing(25))}
    again = {c for c in tried if is_candidate("t", c, weighing(25, "s2"))}
    assert 0.22 < len(chosen) / len(tried) < 0.28
    assert 0.15 < len(chosen & again) / len(chosen) < 0.35


def test_the_assignment_is_the_same_in_every_replica_and_version():
    """A fixed vector: changing the hash would move conversations between arms."""
    found = [is_candidate("acme-eu", f"c{n}", weighing(50)) for n in range(12)]
    assert found == VECTOR


def test_out_of_contact_or_not_eligible_gets_the_serving_release():
    """Without contact for 60 s a replica cannot hear of a rollback."""
    clock, candidate = ManualClock(), a_candidate(weight=100)
    assert a_pinned(clock, candidate=candidate).arm == "candidate"
    assert a_pinned(clock, candidate=candidate, contact_age=60.1).arm == "serving"
    assert a_pinned(clock, candidate=candidate, tenants=[a_tenant(canaryEligible=False)]).arm == "serving"


def serving(**admission):
    return a_manifest(settings={"admission": admission})


def an_admission(clock):
    return Admission(clock, Metrics())


def test_the_expected_wait_is_the_queue_over_the_permits():
    """S-83: 24 permits of 4.9 s with 10 waiting."""
    assert expected_wait(10, 0, 24, 4.9) == 0
    assert expected_wait(24, 10, 24, 4.9) == pytest.approx(11 * 4.9 / 24)


async def test_work_waits_its_turn_in_order_and_permits_come_back():
    clock = ManualClock()
    admission, pinned = an_admission(clock), a_pinned(clock, serving=serving(maxInFlight=1, maxWaitMs=60000))
    order = []

    async def one(name):
        async with admission.permit(pinned):
            order.append(name)
            await asyncio.sleep(0.01)

    await asyncio.gather(*(one(n) for n in range(4)))
    assert order == [0, 1, 2, 3]
    assert admission.in_flight == 0


async def test_what_waited_too_long_never_starts():
    """IV-24, G-20: 429 with a hint."""
    clock = ManualClock()
    admission, pinned = an_admission(clock), a_pinned(clock, serving=serving(maxInFlight=1, maxWaitMs=5000))
    short = a_pinned(clock, serving=serving(maxInFlight=1, maxWaitMs=2500))
    async with admission.permit(pinned):
        object.__setattr__(short.manifest.settings.admission, "max_wait_ms", 50)
        admission._service_s = 0.01
        with pytest.raises(Refusal) as refusal:
            async with admission.permit(short):
                raise AssertionError("never")
    assert (refusal.value.status, refusal.value.retry_after_s) == (429, 1)
    assert admission.in_flight == 0


async def test_a_cancelled_waiter_leaves_no_trace_and_loses_no_permit():
    """H-02."""
    clock = ManualClock()
    admission, pinned = an_admission(clock), a_pinned(clock, serving=serving(maxInFlight=1, maxWaitMs=60000))

    async def wait():
        async with admission.permit(pinned):
            return "ran"

    async with admission.permit(pinned):
        leaving, staying = asyncio.create_task(wait()), asyncio.create_task(wait())
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.sleep(0)
    assert await staying == "ran"
    assert admission.in_flight == 0
    assert not admission._per_tenant


async def test_a_waiter_cancelled_in_the_moment_of_its_turn_passes_it_on():
    clock = ManualClock()
    admission, pinned = an_admission(clock), a_pinned(clock, serving=serving(maxInFlight=1, maxWaitMs=60000))

    async def wait():
        async with admission.permit(pinned):
            await asyncio.sleep(0)

    async with admission.permit(pinned):
        waiters = [asyncio.create_task(wait()) for _ in range(2)]
        await asyncio.sleep(0)
    waiters[0].cancel()  # its permit has been granted, it has not run yet
    await asyncio.gather(*waiters, return_exceptions=True)
    assert admission.in_flight == 0


async def test_expired_work_never_starts():
    """IV-24: the deadline passed while it waited."""
    clock = ManualClock()
    admission, pinned = an_admission(clock), a_pinned(clock)
    clock.seconds += 9
    with pytest.raises(Refusal, match="admission_wait"):
        async with admission.permit(pinned):
            raise AssertionError("never")
    assert admission.in_flight == 0


async def test_a_draining_replica_refuses_with_503():
    """G-20."""
    clock = ManualClock()
    admission = an_admission(clock)
    admission.draining = True
    with pytest.raises(Refusal) as refusal:
        async with admission.permit(a_pinned(clock)):
            raise AssertionError("never")
    assert (refusal.value.status, refusal.value.code) == (503, "shutting_down")


def test_the_breaker_opens_above_half_and_tries_one_call_at_a_time():
    """S-82, G-14."""
    clock = ManualClock()
    breaker = TargetBreaker(Breaker(), clock)
    for failed in [False] * 10 + [True] * 10:
        breaker.failed() if failed else breaker.succeeded()
    assert breaker.healthy()
    breaker.failed()
    assert not breaker.healthy()
    clock.seconds += COOL_DOWN_S
    assert breaker.healthy()
    breaker.started()
    assert not breaker.healthy()
    breaker.failed()
    clock.seconds += COOL_DOWN_S - 0.1
    assert not breaker.healthy()
    clock.seconds += 0.2
    breaker.started()
    breaker.abandoned()
    assert breaker.healthy()
    breaker.started()
    breaker.succeeded()
    assert breaker.healthy()


def test_retries_are_a_tenth_of_the_calls_at_most():
    """S-81, IV-26."""
    budget = RetryBudget(burst=1)
    assert budget.spend()
    spent = 0
    for _ in range(1000):
        budget.earn(0.10)
        spent += budget.spend()
    assert spent <= 101


def test_an_ended_stream_stays_ended():
    """Exactly one of complete, incomplete, cancelled."""
    run = Run(target=Target.from_wire(a_target()))
    run.move(StreamState.DISPATCHED)
    run.move(StreamState.DISPATCHED)
    run.move(StreamState.FIRST_CONTENT)
    with pytest.raises(ValueError, match="no step"):
        run.move(StreamState.DISPATCHED)
    run.move(StreamState.TERMINAL)
    for state in StreamState:
        with pytest.raises(ValueError, match="no step"):
            run.move(state)


VECTOR = [True, False, False, True, True, False, True, False, False, True, True, True]
