"""Conditions: bounded texts, transition times that move only with the status, and the three that kstatus reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meridian_api.meta import CONDITIONS, Condition
from meridian_operator.conditions import MAX_MESSAGE, Say, conditions, is_true, kstatus

NOW = datetime(2026, 6, 1, tzinfo=UTC)
SAY = st.builds(
    Say, st.sampled_from(sorted(CONDITIONS)), st.sampled_from([True, False, None]), st.just("Because"), st.text()
)


@given(said=st.lists(SAY, unique_by=lambda s: s.type))
def test_whatever_is_said_fits_the_schema_and_is_stable(said: list[Say]) -> None:
    """K-27, K-28."""
    first = conditions(None, said, generation=3, now=NOW)
    for one in first:
        Condition.from_wire(one)
    later = conditions({"conditions": first}, said, generation=3, now=NOW + timedelta(hours=1))
    assert later == first


def test_a_long_message_is_cut_and_cleaned() -> None:
    """K-28."""
    (one,) = conditions(None, [Say("Accepted", False, "Bad", "a\x00b\n" * 20_000)], generation=1, now=NOW)
    assert len(one["message"]) == MAX_MESSAGE and one["message"].isprintable()


def test_the_transition_time_moves_with_the_status_only() -> None:
    first = conditions(None, [Say("Accepted", True, "Valid")], generation=1, now=NOW)
    later = NOW + timedelta(minutes=5)
    same = conditions({"conditions": first}, [Say("Accepted", True, "Other", "text")], generation=2, now=later)
    assert same[0]["lastTransitionTime"] == first[0]["lastTransitionTime"] and same[0]["observedGeneration"] == 2
    other = conditions({"conditions": first}, [Say("Accepted", None, "Silent")], generation=2, now=later)
    assert other[0]["lastTransitionTime"] != first[0]["lastTransitionTime"] and other[0]["status"] == "Unknown"


def test_a_type_outside_the_table_is_a_bug() -> None:
    with pytest.raises(ValueError, match="Fine"):
        conditions(None, [Say("Fine", True, "Yes")], generation=1, now=NOW)


@pytest.mark.parametrize(
    ("said", "stalled", "waiting", "ready", "reconciling", "stalls"),
    [
        ([Say("Accepted", True, "Valid")], False, None, True, False, False),
        ([Say("Accepted", True, "Valid")], False, ("WarmingUp", ""), False, True, False),
        ([Say("Accepted", False, "Bad")], True, None, False, False, True),
        ([Say("Accepted", None, "Silent")], False, None, None, True, False),
        ([Say("Accepted", True, "Valid"), Say("Built", False, "Building")], False, None, False, True, False),
        ([Say("Accepted", True, "Valid"), Say("Serving", False, "Not")], False, None, True, False, False),
    ],
)
def test_kstatus_reads_ready_reconciling_and_stalled(
    said: list[Say],
    stalled: bool,
    waiting: tuple[str, str] | None,
    ready: bool | None,
    reconciling: bool,
    stalls: bool,
) -> None:
    result = {s.type: s.status for s in kstatus(*said, stalled=stalled, waiting_for=waiting)}
    assert (result["Ready"], result["Reconciling"], result["Stalled"]) == (ready, reconciling, stalls)


def test_reading_a_stored_condition() -> None:
    status = {"conditions": conditions(None, [Say("Accepted", True, "Valid")], generation=1, now=NOW)}
    assert is_true(status, "Accepted") and not is_true(status, "Ready") and not is_true(None, "Accepted")
