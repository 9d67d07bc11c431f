"""Rules while this release is the candidate. Only Pass moves traffic forward; what is unclear stays where it is. Pure."""

from __future__ import annotations

from meridian_api.v1alpha1.release import Evidence
from meridian_operator.cluster import Unreadable
from meridian_operator.conditions import timestamp
from meridian_operator.evidence.noninferiority import TASK_SUCCESS
from meridian_operator.evidence.outcomes import Tally
from meridian_operator.plan import REST, SOON, Plan
from meridian_operator.release.moves import Situation, give_weight, go_back, stay, take_over
from meridian_operator.release.seen import entered, parse_time
from meridian_operator.release.status import Told
from meridian_operator.release.verdicts import first_not_passed, taken_look


def leave_when_traffic_was_taken(s: Situation) -> Plan | None:
    """Somebody else moved the pointer: the evidence is over, and so is this attempt (R-20)."""
    if s.phase == "Canary" and s.live is None and s.somebody_serves:
        message = (
            "its traffic is with the serving release: the ServingConfig was deleted, and is stored again without it"
        )
        return go_back(s, "leave_when_traffic_was_taken", "ServingConfigDeleted", f"Rolled back: {message}")
    if s.phase == "Canary" and not s.seen.is_candidate:
        message = "Rolled back: the traffic was given to another release"
        return go_back(s, "leave_when_traffic_was_taken", "TrafficTakenAway", message)
    return None


def give_up_at_the_deadline(s: Situation) -> Plan | None:
    """No verdict in time: the declared policy acts. Time alone never promotes (R-04)."""
    if not s.seen.is_candidate or _seconds_left(s) > 0:
        return None
    rule, limit = "give_up_at_the_deadline", s.spec.rollout.max_duration_seconds
    verdict = _verdict(s)
    if s.spec.rollout.on_inconclusive == "Extend" and verdict.verdict == "Inconclusive":
        verdict = taken_look(s.seen, s.spec)  # the second of the two planned looks
    if verdict.verdict == "Fail":
        return go_back(s, rule, verdict.reason, f"Rolled back: {verdict.message}", (*s.watched, verdict))
    if verdict.verdict == "Pass" and s.phase == "Canary" and (ready := _promote(s, verdict)) is not None:
        return ready
    told = f"no clear verdict within {limit} s: {(_in_the_way(s) or verdict).message}"
    evidence = (*s.watched, verdict)
    if s.spec.rollout.on_inconclusive == "Rollback":
        return go_back(s, rule, "Inconclusive", f"Rolled back: {told}", evidence)
    message = f"Held, traffic is back on the serving release: {told}; raise spec.attempt to try again"
    return go_back(s, rule, "Inconclusive", message, evidence, phase="Held")


def hold_what_is_held(s: Situation) -> Plan | None:
    """A held candidate keeps its weight, guarded, until a person or the deadline acts; one without traffic rests."""
    if s.phase != "Held":
        return None
    message = s.seen.status.message or "Held"
    if s.seen.status.traffic.weight_percent and not s.seen.is_candidate:
        message = "Held without traffic, which went back to the serving release; raise spec.attempt to try again"
    told = Told("Held", _reason(s), message, stalled=True, degraded=True, evidence=changed(s))
    return stay(s, "hold_what_is_held", told, SOON if s.seen.is_candidate else REST)


def stop_when_content_is_gone(s: Situation) -> Plan | None:
    """A pinned text or pool vanished during the canary: name it, move nothing, go on when it is back (R-40)."""
    if s.phase != "Canary":
        return None
    if isinstance(s.seen.problems, Unreadable):
        return _unmoved(s, "stop_when_content_is_gone", "NotReadable", f"{s.seen.problems.source} cannot be read")
    gone = next(iter(s.seen.problems), None)
    return _unmoved(s, "stop_when_content_is_gone", gone.reason, gone.message) if gone else None


def wait_for_acknowledgement(s: Situation) -> Plan | None:
    """A written weight is real only when every ready replica has applied it (R-30)."""
    if s.phase != "Canary" or (s.live and s.live.acknowledged):
        return None
    why = s.live.waiting_for if s.live else "nothing is stored"
    return _unmoved(s, "wait_for_acknowledgement", "NotAcknowledged", f"{s.seen.weight} % is committed; {why}")


def look_at_the_last_step(s: Situation) -> Plan | None:
    """The one look at the planned n. A verdict that was taken stays: looking again would spend alpha twice (R-08)."""
    if s.phase != "Canary" or s.step < len(s.spec.rollout.canary.steps):
        return None
    rule = "look_at_the_last_step"
    verdict = _verdict(s)
    evidence = (*s.watched, verdict)
    if verdict.verdict == "Fail":
        return go_back(s, rule, verdict.reason, f"Rolled back: {verdict.message}", evidence)
    if verdict.verdict == "Pass":
        return _promote(s, verdict) or _unmoved(s, rule, *_not_yet(s), evidence=evidence)
    if not _is_taken(verdict) or s.spec.rollout.on_inconclusive == "Extend":
        return _unmoved(s, rule, verdict.reason, f"{s.seen.weight} %: {verdict.message}", evidence=evidence)
    if s.spec.rollout.on_inconclusive == "Rollback":
        return go_back(
            s, rule, verdict.reason, f"Rolled back: inconclusive at the planned n: {verdict.message}", evidence
        )
    message = (
        f"Held at {s.seen.weight} %: inconclusive at the planned n: {verdict.message}; abort it or raise spec.attempt"
    )
    return stay(s, rule, Told("Held", verdict.reason, message, stalled=True, degraded=True, evidence=evidence))


def advance_one_step(s: Situation) -> Plan | None:
    """To the next weight, when every required guardrail says Pass on enough of this step's requests."""
    steps = s.spec.rollout.canary.steps
    if s.phase != "Canary" or s.step >= len(steps):
        return None
    rule = "advance_one_step"
    seen_here = s.seen.tally.candidate.step_requests if isinstance(s.seen.tally, Tally) else 0
    if seen_here < s.spec.rollout.guardrails.min_requests and s.step > 0:
        message = f"{s.seen.weight} %: {seen_here} of {s.spec.rollout.guardrails.min_requests} requests in this step"
        return _unmoved(s, rule, "TooFewRequests", message)
    if _in_the_way(s) is not None or frozen(s):
        return _unmoved(s, rule, *_not_yet(s))
    step = s.step + 1
    message = f"canary step {step} of {len(steps)}: {steps[step - 1].weight} % of eligible conversations"
    return give_weight(s, rule, step, message, s.watched)


def frozen(s: Situation) -> str | None:
    """End of the freeze window that holds now; rollbacks are never frozen."""
    for window in s.spec.rollout.freeze_windows:
        start, end = parse_time(window.start), parse_time(window.end)
        if start and end and start <= s.now < end:
            return window.end
    return None


def _promote(s: Situation, verdict: Evidence) -> Plan | None:
    """Take over if nothing else stands in the way."""
    if _in_the_way(s) or frozen(s) or s.seen.cold or s.seen.cold_target or _missing_approvals(s):
        return None
    if not (s.live and s.live.acknowledged) or s.step < len(s.spec.rollout.canary.steps):
        return None
    return take_over(
        s, "promote", f"not inferior, {verdict.message}; serves all traffic; baking", (*s.watched, verdict)
    )


def _not_yet(s: Situation) -> tuple[str, str]:
    """Reason and message of what keeps traffic from growing."""
    unclear = _in_the_way(s)
    if unclear is not None:
        return unclear.reason, f"{s.seen.weight} %: waits for {unclear.name}: {unclear.message}"
    if until := frozen(s):
        return "Frozen", f"{s.seen.weight} %: traffic is frozen until {until}"
    if missing := _missing_approvals(s):
        return "ApprovalsMissing", f"{s.seen.weight} %: {missing} more approvals are needed"
    return "TargetNotWarm", f"{s.seen.weight} %: waits for {', '.join((*s.seen.cold, *s.seen.cold_target))}"


def _missing_approvals(s: Situation) -> int:
    return max(0, s.spec.rollout.required_approvals - len({a.by for a in s.spec.approvals}))


def _in_the_way(s: Situation) -> Evidence | None:
    return first_not_passed(s.watched)


def _verdict(s: Situation) -> Evidence:
    """The stored look of this attempt if it was taken, else this one."""
    stored = next((e for e in s.seen.status.evidence if e.name == TASK_SUCCESS), None)
    return stored if stored is not None and _is_taken(stored) else taken_look(s.seen, s.spec)


def _is_taken(look: Evidence) -> bool:
    return look.interval_low is not None


def _seconds_left(s: Situation) -> float:
    since = entered(s.seen.status, "Canary")
    spent = (s.now - since).total_seconds() if since else 0.0
    return s.spec.rollout.max_duration_seconds - spent


def _unmoved(s: Situation, rule: str, reason: str, message: str, evidence: tuple[Evidence, ...] | None = None) -> Plan:
    """Stay in the canary with the weight as it is."""
    changes = {}
    if s.seen.status.step != s.step:  # the switch landed, its status did not (K-15): the step's window begins now
        changes = {"step": s.step, "step_since": timestamp(s.now)}
    told = Told("Canary", reason, message, evidence=s.watched if evidence is None else evidence, changes=changes)
    return stay(s, rule, told)


def changed(s: Situation) -> tuple[Evidence, ...]:
    """Only verdicts that differ from the stored ones: what is held writes nothing while nothing changes (K-27)."""
    stored = {e.name: (e.verdict, e.reason) for e in s.seen.status.evidence}
    return tuple(e for e in s.watched if stored.get(e.name) != (e.verdict, e.reason))


def _reason(s: Situation) -> str:
    """The reason that was given when the phase began."""
    return next((c.reason for c in s.seen.status.conditions if c.type == "Stalled"), "Held")
