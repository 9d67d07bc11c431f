"""What Prometheus said, as numbers or as reasons why there is none. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

STALE_SECONDS = 60.0
"""A newest sample older than this is the same as none (R-06)."""


@dataclass(frozen=True)
class Reading:
    """One number, or None and why there is none."""

    value: float | None
    reason: str = "Read"
    message: str = ""


@dataclass(frozen=True)
class Metrics:
    """One look at one arm of one release."""

    requests: Reading
    error_ratio: Reading
    ttft_p95_ms: Reading
    answer_p95_ms: Reading


def judged_fresh(answers: dict[str, Reading]) -> Metrics:
    """The readings, all of them withdrawn when the newest sample is too old or of unknown age."""
    age = answers["age"]
    names = ("requests", "error_ratio", "ttft_p95_ms", "answer_p95_ms")
    if age.value is None:
        return Metrics(*(answers[n] if answers[n].value is None else age for n in names))
    if age.value > STALE_SECONDS:
        old = Reading(None, "Stale", f"the newest sample is {age.value:.0f} s old")
        return Metrics(old, old, old, old)
    return Metrics(*(answers[n] for n in names))


def parse(result: object) -> Reading:
    """The one number in a Prometheus instant vector. Everything else is a Reading without a value (R-02, R-03)."""
    if not isinstance(result, list):
        return Reading(None, "Malformed", "the answer is no vector")
    if not result:
        return Reading(None, "NoData", "the query matched nothing")
    if len(result) > 1:
        return Reading(None, "Malformed", f"{len(result)} series instead of one")
    try:
        at, text = result[0]["value"]
        value = float(text) + 0.0 * float(at)
    except (KeyError, TypeError, ValueError, IndexError):
        return Reading(None, "Malformed", "the sample is not a number")
    if math.isnan(value):
        return Reading(None, "NoData", "the value is NaN")
    if math.isinf(value):
        return Reading(None, "BeyondBuckets", "the value is infinite")
    return Reading(value)
