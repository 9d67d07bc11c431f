"""Limits, counts and readings: what is missing, stale or broken is never a pass."""

from __future__ import annotations

import asyncio
import math
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meridian_api.v1alpha1.release import Guardrails
from meridian_operator.evidence import guardrails
from meridian_operator.evidence.outcomes import COUNTS, Counts, Tally, Window, parameters, tally
from meridian_operator.evidence.prometheus import queries, read_metrics, read_with, window
from meridian_operator.evidence.readings import parse

LIMITS = Guardrails()
NOW = datetime(2026, 11, 4, 12, tzinfo=UTC)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
)


def vector(value: object) -> list[Any]:
    return [{"metric": {}, "value": [1_700_000_000.0, value]}]


def answering(**values: object):
    """A query function that knows the queries by what they hold."""
    asked = queries("r", "candidate", 60)

    def query(promql: str) -> list[Any]:
        name = next(n for n, q in asked.items() if q == promql)
        value = values.get(name, "0")
        if isinstance(value, Exception):
            raise value
        return value if isinstance(value, list) else vector(value)

    return query


def read(**values: object):
    return asyncio.run(read_with(answering(**values), "r", "candidate", 60))


def verdicts(metrics: Any) -> set[str]:
    return {e.verdict for e in guardrails.from_metrics(metrics, LIMITS)}


GOOD = {"age": "3", "requests": "100", "error_ratio": "0.01", "ttft_p95_ms": "300", "answer_p95_ms": "900"}


def test_good_metrics_pass():
    assert verdicts(read(**GOOD)) == {"Pass"}


@pytest.mark.parametrize(
    "broken",
    [
        {"age": "1200"},
        {"age": []},
        {"age": ConnectionError("refused")},
        {"requests": "5"},
        {"requests": "NaN"},
        {"requests": []},
    ],
    ids=["stale", "no-age", "refused", "few", "nan", "empty"],
)
def test_metrics_that_are_stale_few_or_missing_are_inconclusive_altogether(broken: dict[str, object]):
    """R-01, R-02, R-06."""
    assert verdicts(read(**{**GOOD, **broken})) == {"Inconclusive"}


def test_a_latency_beyond_the_last_bucket_is_a_breach():
    """R-15."""
    assert "Fail" in verdicts(read(**{**GOOD, "answer_p95_ms": "+Inf"}))


@given(JSON)
def test_no_answer_of_a_broken_provider_becomes_a_number_that_is_none(answer: object):
    """R-03: fuzzing the parser finds no NaN, no infinity and no exception."""
    reading = parse(answer)
    assert reading.value is None or math.isfinite(reading.value)


def test_a_prometheus_that_is_gone_is_a_value_within_the_time_allowed():
    """R-01: nobody listens on this port."""
    began = time.monotonic()
    metrics = asyncio.run(read_metrics("http://127.0.0.1:9", "r", "candidate", 60))
    assert metrics.requests.value is None
    assert verdicts(metrics) == {"Inconclusive"}
    assert time.monotonic() - began < 5


def test_a_missing_error_series_counts_as_no_errors_but_missing_requests_as_nothing():
    """R-02: the ratio has no value without requests, so that an idle endpoint cannot pass."""
    promql = queries("r", "candidate", 60)["error_ratio"]
    assert "or vector(0)" in promql and promql.endswith("> 0)")


def test_the_window_follows_the_phase_within_bounds():
    assert (window(3), window(90), window(99_999)) == (15, 90, 600)


# ------------------------------------------------------------------------------------------------ PostgreSQL

ASKED = Window(
    "support", "new", "candidate", "old", NOW - timedelta(minutes=5), NOW, timedelta(seconds=40), eligible_only=True
)


def row(release: str, arm: str, **changes: Any) -> dict[str, Any]:
    base = dict.fromkeys(Counts.__dataclass_fields__, 0) | {"requests": 50, "judged": 40, "successes": 30}
    return {"release": release, "arm": arm, **base, **changes}


def test_both_arms_are_counted_and_an_absent_arm_is_zero():
    """R-02."""
    counted = tally([row("new", "candidate"), row("old", "serving", judged=45)], ASKED)
    assert counted is not None and (counted.candidate.judged, counted.control.judged) == (40, 45)
    assert tally([], ASKED) == Tally(Counts(), Counts())


@pytest.mark.parametrize(
    "bad", [{"judged": "x"}, {"judged": None}, {"successes": 41}, {"requests": -1}, {"judged": 60}]
)
def test_rows_that_cannot_be_are_no_evidence(bad: dict[str, Any]):
    """R-03."""
    assert tally([row("new", "candidate", **bad)], ASKED) is None


def test_young_requests_are_left_out_good_and_bad_alike():
    """R-16: the label delay cuts by the request's age, not by the label's."""
    assert parameters(ASKED, NOW)[0] == NOW - timedelta(seconds=40)
    assert COUNTS.count("%s") == len(parameters(ASKED, NOW))
    assert "started_at <= %s as matured" in COUNTS and "using (tenant_id, request_id)" in COUNTS


def test_one_invalid_citation_breaks_a_hard_limit():
    """S-15."""
    good = Counts(requests=100, citations=200)
    by_name = {e.name: e for e in guardrails.from_records(good, LIMITS, 1.0)}
    assert by_name["citation-validity"].verdict == "Pass"
    bad = Counts(requests=100, citations=200, citations_invalid=1)
    assert {e.name: e for e in guardrails.from_records(bad, LIMITS, 1.0)}["citation-validity"].verdict == "Fail"


def test_no_success_at_all_is_a_breach_of_the_price_and_no_division():
    counts = Counts(requests=200, judged=200, successes=0, judged_cost_usd=0.1)
    assert guardrails.from_records(counts, LIMITS, 1.0)[-1].reason == "NoSuccess"


def test_a_share_far_from_the_weight_is_inconclusive():
    """R-12: weight 10 %, share 3 %."""
    mismatched = Tally(Counts(step_requests=30), Counts(step_requests=970))
    assert guardrails.sample_ratio(mismatched, 10).verdict == "Inconclusive"
    fitting = Tally(Counts(step_requests=95), Counts(step_requests=905))
    assert guardrails.sample_ratio(fitting, 10).verdict == "Pass"
