"""The sample size of a canary, held to published numbers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meridian_operator.planning.canary import (
    plan_non_inferiority,
    seconds_to_collect,
    two_sided_difference,
)


def test_the_references_564_per_arm_is_reproduced_with_rounded_quantiles():
    """S-37, R-09: 0.90, 5 points, 5 % two-sided, 80 %."""
    assert round(two_sided_difference(0.90, 0.05, 0.05, 0.8, rounded=True)) == 564
    assert two_sided_difference(0.90, 0.05) == pytest.approx(565.1, abs=0.2)


def test_halving_the_difference_quadruples_the_sample():
    """S-37."""
    assert two_sided_difference(0.9, 0.025) == pytest.approx(4 * two_sided_difference(0.9, 0.05))


def test_equal_and_unequal_arms_match_the_worked_example():
    """R-09: 85 %, margin 3 points, one-sided 5 %, power 80 %: 1 890 each, or 1 060 and 20 141 at a weight of 5 %."""
    equal = plan_non_inferiority(0.85, 0.03, 0.05, 0.8, 50)
    assert (equal.candidate, equal.control) == (1890, 1890)
    unequal = plan_non_inferiority(0.85, 0.03, 0.05, 0.8, 5)
    assert unequal.candidate == pytest.approx(1060, abs=1)
    assert unequal.control == pytest.approx(20141, abs=1)


def test_the_samples_canary_needs_155_judged_requests_per_arm_and_takes_16_seconds():
    """Margin 0.10, one step of 50 %, baseline 0.9, 20 judged requests a second."""
    sample = plan_non_inferiority(0.9, 0.10, 0.05, 0.8, 50)
    assert (sample.candidate, sample.control) == (155, 155)
    assert seconds_to_collect(sample, 20, 50) == pytest.approx(15.5)
    assert seconds_to_collect(sample, 0, 50) == math.inf


@pytest.mark.parametrize(("weight", "margin"), [(0, 0.1), (100, 0.1), (50, 0.9), (50, 0.95)])
def test_a_plan_without_a_control_or_without_meaning_is_refused(weight: int, margin: float):
    with pytest.raises(ValueError):
        plan_non_inferiority(0.9, margin, 0.05, 0.8, weight)


@given(st.floats(0.6, 0.99), st.floats(0.01, 0.3), st.floats(0.001, 0.2), st.floats(0.5, 0.99), st.integers(1, 99))
def test_a_stricter_test_never_needs_fewer(baseline, margin, alpha, power, weight):
    """S-37."""
    plan = plan_non_inferiority(baseline, margin, alpha, power, weight)
    stricter = plan_non_inferiority(baseline, margin, alpha / 2, power, weight)
    assert 1 <= plan.candidate <= stricter.candidate
    assert plan.control <= stricter.control
