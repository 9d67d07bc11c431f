"""The statistics of a canary: published values, three verdicts, and how often they are wrong."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meridian_operator.evidence.noninferiority import Arm, harm, look, newcombe, wilson
from meridian_operator.planning.canary import PlannedSample, plan_non_inferiority

ARMS = st.integers(1, 3000).flatmap(lambda n: st.integers(0, n).map(lambda s: Arm(n, s)))
PLANNED = PlannedSample(155, 155)


@pytest.mark.parametrize(
    ("a", "b", "low", "high"),
    [((56, 70), (48, 80), 0.0524, 0.3339), ((9, 10), (3, 10), 0.1705, 0.8090), ((10, 10), (0, 20), 0.6791, 1.0),
     ((5, 56), (0, 29), -0.0381, 0.1926)],
)  # fmt: skip
def test_the_interval_reproduces_newcombes_published_examples(a, b, low, high):
    """Newcombe 1998, table II, method 10."""
    interval = newcombe(Arm(a[1], a[0]), Arm(b[1], b[0]), 0.95)
    assert interval.low == pytest.approx(low, abs=1e-4)
    assert interval.high == pytest.approx(high, abs=1e-4)


@given(ARMS, ARMS)
def test_an_interval_is_finite_ordered_and_holds_its_estimate(one, two):
    """R-03: no counts lead to NaN."""
    interval = newcombe(one, two, 0.9)
    assert -1.0000001 <= interval.low <= interval.point <= interval.high <= 1.0000001
    assert all(math.isfinite(x) for x in (interval.low, interval.high))
    assert 0 <= wilson(one, 1.96)[0] <= one.rate + 1e-12


def test_promotion_needs_non_inferiority_shown_not_a_large_p_value():
    """R-10: 30 a side, 6 points worse, "not significant": held."""
    verdict = look(Arm(30, 25), Arm(30, 27), PlannedSample(30, 30), 0.03, 0.05)
    assert verdict.verdict == "Inconclusive"


def test_below_the_planned_n_there_is_no_verdict_however_good_or_bad():
    """R-08, R-07: the one look is at the planned n."""
    assert look(Arm(154, 154), Arm(400, 300), PLANNED, 0.1, 0.05).reason == "NotEnoughSamples"
    assert look(Arm(154, 0), Arm(400, 400), PLANNED, 0.1, 0.05).verdict == "Inconclusive"
    assert look(Arm(0, 0), Arm(0, 0), PLANNED, 0.1, 0.05).message.startswith("0 of 155")


def test_the_three_verdicts_at_the_planned_n():
    assert look(Arm(155, 141), Arm(155, 140), PLANNED, 0.1, 0.05).verdict == "Pass"
    assert look(Arm(155, 80), Arm(155, 140), PLANNED, 0.1, 0.05).verdict == "Fail"
    assert look(Arm(155, 132), Arm(155, 140), PLANNED, 0.1, 0.05).verdict == "Inconclusive"


@given(ARMS, ARMS, st.floats(0.01, 0.3))
def test_pass_and_fail_exclude_each_other_and_harm_never_contradicts_a_pass(candidate, control, margin):
    """R-08: the guardrail is one-way; where the look passes, it is silent."""
    at_n = look(candidate, control, PlannedSample(1, 1), margin, 0.05)
    assert not (harm(candidate, control, margin).verdict == "Fail" and at_n.verdict == "Pass")


def test_one_planned_look_keeps_its_level_and_its_power():
    """R-08, by simulation: a candidate exactly `margin` worse passes in about 5 %; an equal one in at least 80 %."""
    draw = random.Random(7)
    plan = plan_non_inferiority(0.9, 0.1, 0.05, 0.8, 50)

    def passes(rate: float) -> float:
        def arm(p: float) -> Arm:
            return Arm(plan.candidate, sum(draw.random() < p for _ in range(plan.candidate)))

        return sum(look(arm(rate), arm(0.9), plan, 0.1, 0.05).verdict == "Pass" for _ in range(1500)) / 1500

    assert passes(0.8) < 0.075
    assert passes(0.9) > 0.78


def test_the_harm_guardrail_catches_a_bad_release_early_and_spares_an_equal_one():
    """R-08: 60 looks at an equal candidate raise no alarm in 300 canaries; one at 50 % success is stopped before n."""
    draw = random.Random(11)

    def canary(rate: float) -> int | None:
        good = bad = 0
        for n in range(1, 156):
            good += draw.random() < 0.9
            bad += draw.random() < rate
            if n >= 30 and n % 2 == 0 and harm(Arm(n, bad), Arm(n, good), 0.1).verdict == "Fail":
                return n
        return None

    assert sum(canary(0.9) is not None for _ in range(300)) == 0
    stopped = [n for n in (canary(0.5) for _ in range(100)) if n is not None]
    assert len(stopped) >= 95 and sorted(stopped)[50] < 80


def test_fewer_than_thirty_a_side_is_no_evidence_of_harm():
    assert harm(Arm(29, 0), Arm(100, 100), 0.1).verdict == "Inconclusive"
    assert harm(Arm(30, 0), Arm(100, 100), 0.1).verdict == "Fail"


def test_impossible_counts_are_refused():
    """R-03."""
    with pytest.raises(ValueError):
        Arm(3, 4)
