"""From what was seen to verdicts: pure arithmetic between `evidence/` and the rules of `decide`."""

from __future__ import annotations

from collections.abc import Iterable

from meridian_api.v1alpha1.release import Evidence, ReleaseSpec
from meridian_operator.cluster import Unreadable
from meridian_operator.evidence import guardrails
from meridian_operator.evidence.noninferiority import HARM, TASK_SUCCESS, Arm, harm, look
from meridian_operator.evidence.outcomes import Counts, Tally
from meridian_operator.planning.canary import PlannedSample
from meridian_operator.release.checks import look_alpha, planned_sample
from meridian_operator.release.seen import Seen

_FROM_METRICS = ("error-ratio", "ttft-p95", "answer-p95")
NO_TRAFFIC = ("TooFewRequests", "NoData")


def watched(seen: Seen, spec: ReleaseSpec, *, in_canary: bool) -> tuple[Evidence, ...]:
    """Every guardrail's verdict at this look; in a canary, harm and the sample ratio too."""
    limits = spec.rollout.guardrails
    found: tuple[Evidence, ...] = (
        guardrails.from_metrics(seen.metrics, limits)
        if seen.metrics
        else guardrails.unreadable(_FROM_METRICS, "NotRead", "the metrics were not read")
    )
    if not isinstance(seen.tally, Tally):
        why = seen.tally.why if isinstance(seen.tally, Unreadable) else "the records were not read"
        names = guardrails.RECORDED + ((HARM, guardrails.SAMPLE_RATIO) if in_canary else ())
        return found + guardrails.unreadable(names, "RecordsUnreadable", why[:300])
    recorded = guardrails.from_records(seen.tally.candidate, limits, spec.eval.min_citation_validity)
    if not in_canary:
        return (*found, *recorded)
    both = (_judged(seen.tally.candidate), _judged(seen.tally.control))
    harmed = harm(*both, spec.rollout.canary.margin)
    return (*found, harmed, *recorded, guardrails.sample_ratio(seen.tally, seen.weight))


def taken_look(seen: Seen, spec: ReleaseSpec) -> Evidence:
    """The non-inferiority verdict on the last step's judged requests; Inconclusive while they are too few or unreadable."""
    if not isinstance(seen.tally, Tally):
        why = seen.tally.why if isinstance(seen.tally, Unreadable) else "the records were not read"
        return Evidence(name=TASK_SUCCESS, verdict="Inconclusive", reason="RecordsUnreadable", message=why[:300])
    planned = planned_sample(spec)
    if not isinstance(planned, PlannedSample):
        return Evidence(name=TASK_SUCCESS, verdict="Inconclusive", reason="NoPlan", message=planned)
    candidate, control = _in_step(seen.tally.candidate), _in_step(seen.tally.control)
    return look(candidate, control, planned, spec.rollout.canary.margin, look_alpha(spec))


def first_failure(evidence: Iterable[Evidence]) -> Evidence | None:
    """The first breach, in the order of `evidence`."""
    return next((e for e in evidence if e.verdict == "Fail"), None)


def first_not_passed(evidence: Iterable[Evidence]) -> Evidence | None:
    """What keeps traffic from growing: a required guardrail (or the sample ratio) that does not say Pass, or is missing."""
    by_name = {e.name: e for e in evidence}
    for name in guardrails.REQUIRED:
        one = by_name.get(name)
        if one is None:
            return Evidence(name=name, verdict="Inconclusive", reason="NotRead", message=f"{name} was not read")
        if one.verdict != "Pass":
            return one
    ratio = by_name.get(guardrails.SAMPLE_RATIO)
    return ratio if ratio is not None and ratio.verdict != "Pass" else None


def quiet(seen: Seen, spec: ReleaseSpec, evidence: Iterable[Evidence]) -> bool:
    """Whether there is nothing to judge because nobody asks yet: PostgreSQL says so, and no metric says anything else.

    Only a first release may bake on this: there is no user to protect and no release to return to. A metrics outage is not
    quiet; it is Inconclusive.
    """
    if not isinstance(seen.tally, Tally) or seen.tally.candidate.requests >= spec.rollout.guardrails.min_requests:
        return False
    by_name = {e.name: e for e in evidence}
    required = [by_name.get(name) for name in guardrails.REQUIRED]
    return all(e is not None and (e.verdict == "Pass" or e.reason in NO_TRAFFIC) for e in required)


def _judged(counts: Counts) -> Arm:
    return Arm(counts.judged, counts.successes)


def _in_step(counts: Counts) -> Arm:
    return Arm(counts.step_judged, counts.step_successes)
