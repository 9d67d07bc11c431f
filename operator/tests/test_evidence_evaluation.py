"""The offline report against the floors of a release."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from release_world import GOOD_REPORT, a_spec

from meridian_operator.evidence.evaluation import gates

FLOORS = a_spec().eval
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*GOOD_REPORT, "x"]), inner, max_size=8)
    ),
)


def test_a_report_that_reaches_every_floor_passes_each_by_name():
    """S-02."""
    found = {e.name: e.verdict for e in gates(GOOD_REPORT, FLOORS)}
    assert set(found.values()) == {"Pass"}
    assert {"offline-recall-at-6", "offline-citation-validity", "offline-abstention", "offline-task-success"} <= set(
        found
    )


@pytest.mark.parametrize(
    ("field", "name"),
    [("recallAt6", "recall-at-6"), ("citationValidity", "citation-validity"), ("abstention", "abstention"),
     ("taskSuccess", "task-success"), ("groundedness", "groundedness")],
)  # fmt: skip
def test_each_floor_fails_below_and_is_inconclusive_when_it_was_not_measured(field: str, name: str):
    """R-02, S-114."""
    below = {e.name: e for e in gates({**GOOD_REPORT, field: 0.2}, FLOORS)}
    assert below[f"offline-{name}"].verdict == "Fail"
    report = {k: v for k, v in GOOD_REPORT.items() if k not in (field, "requiredFacts")}
    assert {e.name: e for e in gates(report, FLOORS)}[f"offline-{name}"].reason == "NotMeasured"


@given(JSON)
def test_nothing_but_a_whole_report_passes(report: object):
    """R-03: fuzzing the parser finds no way to Pass."""
    whole = isinstance(report, dict) and {"cases", "scored", "unscored", "taskSuccess", "recallAt6"} <= set(report)
    verdicts = {e.verdict for e in gates(report, FLOORS)}
    assert whole or verdicts != {"Pass"}


def test_counts_that_do_not_add_up_and_another_golden_set_are_no_evidence():
    """R-03, R-05."""
    assert gates({**GOOD_REPORT, "scored": 80}, FLOORS)[0].reason == "MalformedReport"
    assert gates({**GOOD_REPORT, "goldenDigest": "sha256:other"}, FLOORS)[0].reason == "OtherGoldenSet"
    assert gates({**GOOD_REPORT, "recallAt6": float("nan")}, FLOORS)[0].verdict == "Inconclusive"


def test_a_report_without_a_scored_case_or_without_its_golden_set_is_no_evidence():
    """R-02, R-05: full marks on no case at all, and full marks on nobody knows which questions."""
    lenient = FLOORS.model_copy(update={"max_unscored": 1.0})
    (none,) = gates({**GOOD_REPORT, "scored": 0, "unscored": 90}, lenient)
    assert (none.verdict, none.reason) == ("Inconclusive", "TooManyUnscored")
    (unnamed,) = gates({k: v for k, v in GOOD_REPORT.items() if k != "goldenDigest"}, FLOORS)
    assert (unnamed.verdict, unnamed.reason) == ("Inconclusive", "OtherGoldenSet")
