"""Rules before traffic: references, the service's one slot, the offline evaluation, the first switch. Pure."""

from __future__ import annotations

from meridian_api.names import derived_name
from meridian_api.v1alpha1.release import Evidence, Phase
from meridian_operator.cluster import Unreadable
from meridian_operator.evidence.evaluation import gates
from meridian_operator.plan import REST, SOON, EvaluationRequest, Plan
from meridian_operator.release.canary import frozen
from meridian_operator.release.moves import (
    AT_ONCE,
    Situation,
    give_weight,
    is_over,
    stay,
    take_over,
    with_evaluation,
)
from meridian_operator.release.seen import OVER, Problem
from meridian_operator.release.status import Told

BEFORE_TRAFFIC: tuple[Phase, ...] = ("Pending", "Checks", "Queued", "OfflineEval", "SecurityProbes", "Shadow")


def leave_when_the_base_is_another(s: Situation) -> Plan | None:
    """`rollbackTo` must be the release that serves now. While that one is still on its way, this one waits behind it."""
    if s.phase not in BEFORE_TRAFFIC or s.seen.is_serving:
        return None
    serving = s.live.serving if s.live else None
    if serving == s.spec.rollback_to:
        return None
    if s.live is None and s.somebody_serves:
        return _queued(s, "", "waits: the ServingConfig was deleted, and the release that serves stores it again first")
    siblings = s.seen.siblings if not isinstance(s.seen.siblings, Unreadable) else ()
    coming = next((x for x in siblings if x.name == s.spec.rollback_to and x.phase not in OVER), None)
    if coming is not None:
        return _queued(s, coming.name, f"waits for release {coming.name}, which it builds on ({coming.phase})")
    asked = f"rollbackTo is {s.spec.rollback_to}" if s.spec.rollback_to else "the release has no rollbackTo"
    now = f"release {serving} serves" if serving else "nothing serves yet"
    if serving == s.seen.name:
        now = f"what serves is another content of the same name, {serving}: give this one a new name"
    return reject(s, "leave_when_the_base_is_another", Problem("StaleBase", f"{asked}, but {now}", heals=False))


def stop_if_references_are_missing(s: Situation) -> Plan | None:
    """What may yet appear is named and waited for; what cannot heal is rejected, before any traffic."""
    if s.phase not in BEFORE_TRAFFIC:
        return None
    rule = "stop_if_references_are_missing"
    if isinstance(s.seen.problems, Unreadable):
        return Plan(rule, look_again=SOON)
    final = next((p for p in s.seen.problems if not p.heals), None)
    if final is not None:
        return reject(s, rule, final)
    missing = next(iter(s.seen.problems), None)
    if missing is None:
        return None
    return stay(s, rule, Told("Checks", missing.reason, missing.message, stalled=True, problem=missing), SOON)


def queue_behind_the_holder(s: Situation) -> Plan | None:
    """A service has one slot. Its holder is whoever has traffic; the stored ServingConfig settles a race (R-21)."""
    if s.phase not in BEFORE_TRAFFIC or isinstance(s.seen.siblings, Unreadable):
        return None
    if s.live and s.live.candidate not in (None, s.seen.name):
        return _queued(s, s.live.candidate or "", f"waits: release {s.live.candidate} is in its canary")
    for other in s.seen.siblings:
        if other.phase in ("Canary", "Bake"):
            return _queued(s, other.name, f"waits: release {other.name} holds the slot ({other.phase})")
    if s.phase == "OfflineEval":
        return None
    mine = (s.seen.object["metadata"].get("creationTimestamp", ""), s.seen.name)
    older = [x for x in s.seen.siblings if x.phase == "Queued" and not x.paused and (x.created, x.name) < mine]
    if older:
        return _queued(s, older[0].name, f"waits behind release {older[0].name}")
    return None


def evaluate_offline(s: Situation) -> Plan | None:
    """Checks passed: warm the candidate, ask the golden set, judge the report."""
    if s.phase not in BEFORE_TRAFFIC:
        return None
    rule = "evaluate_offline"
    if s.phase != "OfflineEval":
        message = "every reference resolves; the offline evaluation comes next"
        return stay(s, rule, Told("OfflineEval", "Evaluating", message), AT_ONCE)
    if isinstance(s.seen.report, Unreadable):
        return stay(
            s, rule, Told(s.phase, "ReportUnreadable", f"the evaluation's report cannot be read: {s.seen.report.why}")
        )
    if s.seen.report is not None:
        return _judge_report(s)
    if s.seen.cold:
        return stay(s, rule, Told(s.phase, "WarmingUp", f"waits for {', '.join(s.seen.cold)} to be warm"))
    job = evaluation_job(s.seen.uid, s.spec.attempt, s.seen.name)
    if s.seen.job == "absent":
        told = Told(s.phase, "Evaluating", "the offline evaluation starts", changes={"evaluation_job": job})
        golden = s.spec.eval.golden_set.name
        request = EvaluationRequest(s.seen.name, s.seen.uid, s.spec.attempt, s.spec.service, golden, job)
        return with_evaluation(s, rule, told, request)
    if s.seen.job == "running":
        return stay(s, rule, Told(s.phase, "Evaluating", "the offline evaluation runs"))
    message = f"the offline evaluation ended without a report (Job {job} {s.seen.job}); raise spec.attempt to try again"
    return is_over(s, rule, Told("Held", "NoReport", message, stalled=True, degraded=True))


def evaluation_job(uid: str, attempt: int, name: str) -> str:
    """The Job's name: the same after a crash, so that there is one (K-15)."""
    return derived_name(f"eval-{name}", uid, str(attempt))


def reject(s: Situation, rule: str, problem: Problem) -> Plan:
    """Over before any traffic."""
    told = Told(
        "Rejected", problem.reason, f"Rejected: {problem.message}", stalled=True, degraded=True, problem=problem
    )
    return is_over(s, rule, told)


def _judge_report(s: Situation) -> Plan:
    rule = "judge_the_report"
    evidence = gates(s.seen.report, s.spec.eval)
    failed = next((e for e in evidence if e.verdict == "Fail"), None)
    if failed is not None:
        told = Told(
            "Rejected", failed.reason, f"Rejected: {failed.message}", stalled=True, degraded=True, evidence=evidence
        )
        return is_over(s, rule, told)
    unclear = next((e for e in evidence if e.verdict != "Pass"), None)
    if unclear is not None:
        message = f"Held: the offline evaluation is inconclusive: {unclear.message}; raise spec.attempt to try again"
        return is_over(s, rule, Told("Held", unclear.reason, message, stalled=True, degraded=True, evidence=evidence))
    return _first_traffic(s, evidence)


def _first_traffic(s: Situation, evidence: tuple[Evidence, ...]) -> Plan:
    rule = "give_first_traffic"
    if s.seen.cold:
        told = Told(s.phase, "WarmingUp", f"waits for {', '.join(s.seen.cold)} to be warm", evidence=evidence)
        return stay(s, rule, told)
    until = frozen(s)
    if until:
        return stay(s, rule, Told(s.phase, "Frozen", f"traffic is frozen until {until}", evidence=evidence), REST)
    if s.first:
        return take_over(s, rule, "first release: every offline floor is reached, so it serves; baking", evidence)
    if s.seen.cold_target:
        message = f"waits until the way back is open: {', '.join(s.seen.cold_target)}"
        return stay(s, rule, Told(s.phase, "TargetNotWarm", message, evidence=evidence))
    steps = s.spec.rollout.canary.steps
    planned = s.seen.status.planned_n
    message = f"canary step 1 of {len(steps)}: {steps[0].weight} % of eligible conversations; {planned} judged requests planned"
    return give_weight(s, rule, 1, message, evidence)


def _queued(s: Situation, holder: str, message: str) -> Plan:
    return stay(s, "queue_behind_the_holder", Told("Queued", "SlotTaken", message or f"waits for {holder}"), SOON)
