"""Absolute limits at every look, and the sample-ratio check. Pure.

`REQUIRED` must all say Pass before traffic may grow; any Fail, of these or the others, rolls back (R-15, R-17).
"""

from __future__ import annotations

from meridian_api.v1alpha1.release import Evidence, Guardrails
from meridian_operator.evidence.outcomes import Counts, Tally
from meridian_operator.evidence.readings import Metrics, Reading

REQUIRED = ("error-ratio", "ttft-p95", "answer-p95", "citation-validity")
SAMPLE_RATIO = "sample-ratio"
_RATIO_MIN_REQUESTS = 200
_QUANTILE_REQUESTS, _FAR_BEYOND = 100, 2.0
"""A p95 of fewer requests rests on less than five of them: only one far beyond its limit is a breach then."""
_COST_FACTOR = 3
"""Times `minRequests` judged: a price that rises because success falls is for the harm guardrail to find and to name."""


def from_metrics(metrics: Metrics, limits: Guardrails) -> tuple[Evidence, ...]:
    """Error ratio and the two latencies, from Prometheus."""
    return (
        _limited("error-ratio", metrics.requests, metrics.error_ratio, limits.max_error_ratio, limits, "{:.3f}"),
        _limited("ttft-p95", metrics.requests, metrics.ttft_p95_ms, limits.ttft_p95_ms, limits, "{:.0f} ms"),
        _limited("answer-p95", metrics.requests, metrics.answer_p95_ms, limits.answer_p95_ms, limits, "{:.0f} ms"),
    )


def from_records(counts: Counts, limits: Guardrails, min_validity: float) -> tuple[Evidence, ...]:
    """Citation validity, recorded errors and cost per success, from PostgreSQL; they work when Prometheus is down (R-01)."""
    return (
        _citations(counts, limits, min_validity),
        _recorded_errors(counts, limits),
        _cost(counts, limits),
    )


def unreadable(names: tuple[str, ...], reason: str, why: str) -> tuple[Evidence, ...]:
    """Nothing could be read: Inconclusive under every name."""
    return tuple(_inconclusive(name, reason, why) for name in names)


RECORDED = ("citation-validity", "recorded-errors", "cost-per-success")


def sample_ratio(tally: Tally, weight_percent: int) -> Evidence:
    """Whether the candidate's share of this step's requests is what its weight says (R-12).

    Conversations are clustered, so the bound is wide: half to double the odds, from 200 requests on. Below: nothing is wrong.
    """
    candidate, control = tally.candidate.step_requests, tally.control.step_requests
    total = candidate + control
    if total < _RATIO_MIN_REQUESTS:
        return Evidence(
            name=SAMPLE_RATIO, verdict="Pass", reason="TooFewToTell", message=f"{total} requests in this step"
        )
    share = candidate / total
    wanted = weight_percent / 100
    odds, wanted_odds = candidate * (1 - wanted), control * wanted
    told = f"the candidate has {share:.1%} of the requests, its weight is {weight_percent} %"
    fits = wanted_odds / 2 <= odds <= wanted_odds * 2
    return Evidence(
        name=SAMPLE_RATIO,
        verdict="Pass" if fits else "Inconclusive",
        reason="AsWeighted" if fits else "SampleRatioMismatch",
        message=told,
        value=round(share, 4),
        limit=wanted,
    )


def _limited(name: str, requests: Reading, reading: Reading, limit: float, limits: Guardrails, shown: str) -> Evidence:
    for needed in (requests, reading):
        if needed.value is None and needed.reason != "BeyondBuckets":
            return _inconclusive(name, needed.reason, needed.message)
    if (requests.value or 0) < limits.min_requests:
        return _inconclusive(
            name, "TooFewRequests", f"{requests.value or 0:.0f} requests, {limits.min_requests} are needed", limit
        )
    if reading.value is None:  # above the histogram's last bucket, and so above any limit it can show
        return Evidence(
            name=name, verdict="Fail", reason="AboveLimit", message=f"{name} is beyond the last bucket", limit=limit
        )
    n = requests.value or 0
    told = f"{name} is {shown.format(reading.value)} over {n:.0f} requests, limit {shown.format(limit)}"
    if "p95" in name and n < _QUANTILE_REQUESTS and limit < reading.value <= _FAR_BEYOND * limit:
        return _inconclusive(name, "TooFewForAQuantile", f"{told}; {_QUANTILE_REQUESTS} requests would tell", limit)
    return _against(name, reading.value, reading.value <= limit, limit, told)


def _citations(counts: Counts, limits: Guardrails, min_validity: float) -> Evidence:
    name = "citation-validity"
    if counts.requests < limits.min_requests or counts.citations == 0:
        return _inconclusive(name, "TooFewRequests", f"{counts.requests} requests with {counts.citations} citations")
    valid = 1 - counts.citations_invalid / counts.citations
    told = f"{counts.citations_invalid} of {counts.citations} citations are invalid, {min_validity:.1%} must be valid"
    return _against(name, valid, valid >= min_validity, min_validity, told)


def _recorded_errors(counts: Counts, limits: Guardrails) -> Evidence:
    name = "recorded-errors"
    if counts.requests < limits.min_requests:
        return _inconclusive(name, "TooFewRequests", f"{counts.requests} recorded requests")
    ratio = counts.errors / counts.requests
    told = f"{counts.errors} of {counts.requests} recorded requests are errors, limit {limits.max_error_ratio:.3f}"
    return _against(name, ratio, ratio <= limits.max_error_ratio, limits.max_error_ratio, told)


def _cost(counts: Counts, limits: Guardrails) -> Evidence:
    name, limit = "cost-per-success", limits.max_cost_per_success_usd
    if counts.judged < _COST_FACTOR * limits.min_requests:
        return _inconclusive(name, "NotEnoughSamples", f"{counts.judged} judged requests")
    if counts.successes == 0:
        return Evidence(
            name=name,
            verdict="Fail",
            reason="NoSuccess",
            message=f"no success in {counts.judged} judged requests",
            limit=limit,
        )
    cost = counts.judged_cost_usd / counts.successes
    return _against(name, cost, cost <= limit, limit, f"a success costs {cost:.5f} USD, limit {limit:.5f} USD")


def _against(name: str, value: float, within: bool, limit: float, told: str) -> Evidence:
    return Evidence(
        name=name,
        verdict="Pass" if within else "Fail",
        reason="WithinLimit" if within else "LimitExceeded",
        message=told,
        value=round(value, 6),
        limit=limit,
    )


def _inconclusive(name: str, reason: str, why: str, limit: float | None = None) -> Evidence:
    return Evidence(name=name, verdict="Inconclusive", reason=reason, message=why, limit=limit)
