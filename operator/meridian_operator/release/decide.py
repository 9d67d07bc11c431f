"""What a Release does next: ordered rules, the first that applies answers. Pure and total.

Reading order is safety order: first what is unreadable, then every way back, then what waits, and last what moves forward. Only
verdicts of Pass move traffic up; Inconclusive waits; one Fail goes back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from meridian_api.v1alpha1.release import ReleaseSpec
from meridian_operator.cluster import Unreadable
from meridian_operator.conditions import is_true
from meridian_operator.plan import REST, SOON, Plan, Switch
from meridian_operator.planning.canary import PlannedSample
from meridian_operator.release import bake, canary, gates
from meridian_operator.release.checks import planned_sample
from meridian_operator.release.moves import AT_ONCE, Situation, go_back, is_over, serve_again, stay
from meridian_operator.release.seen import Live, Problem, Seen, phase_of
from meridian_operator.release.status import Told, status_wire
from meridian_operator.release.verdicts import first_failure, watched

Rule = Callable[[Situation], Plan | None]


def decide(seen: Seen, now: datetime) -> Plan:
    """The plan of the first rule that applies."""
    if isinstance(seen.live, Unreadable) or isinstance(seen.siblings, Unreadable):
        return Plan("wait_for_a_readable_world", look_again=SOON)
    if "deletionTimestamp" in seen.object["metadata"]:
        return Plan("rest_while_deleting", switch=_away_from(seen), look_again=REST)
    if isinstance(seen.spec, str):
        return _refuse_unreadable_spec(seen, seen.spec, now)
    phase = phase_of(seen.status, is_candidate=seen.is_candidate, is_serving=seen.is_serving)
    guarded = phase in ("Canary", "Bake") or (phase == "Held" and seen.is_candidate)
    found = watched(seen, seen.spec, in_canary=phase != "Bake") if guarded else ()
    s = Situation(seen, now, seen.spec, seen.live, phase, found)
    return next(plan for rule in RULES if (plan := rule(s)) is not None)


def _refuse_unreadable_spec(seen: Seen, why: str, now: datetime) -> Plan:
    """An older or newer schema let it in: named, and what serves serves on (K-35), unless nothing guards it any more (R-17)."""
    problem = Problem("InvalidSpec", why, heals=True)
    message = f"the spec cannot be read: {why}"
    told = Told(seen.status.phase, problem.reason, message, stalled=True, degraded=True, problem=problem)
    switch = _away_from_unreadable(seen, message)
    if switch is None:
        return Plan("refuse_unreadable_spec", status=status_wire(seen, told, now), look_again=REST)
    told = replace(told, phase="RolledBack", message=f"Rolled back: {message}", weight=0, stalled=False)
    return Plan("leave_an_unreadable_spec", switch=switch, status=status_wire(seen, told, now), look_again=AT_ONCE)


def _away_from_unreadable(seen: Seen, because: str) -> Switch | None:
    """A canary, a bake or an abort needs the spec's limits or its owner's word: without them traffic goes back."""
    spec, live = seen.object.get("spec") or {}, seen.live
    if not isinstance(live, Live):
        return None
    if seen.is_candidate:
        return Switch(spec["service"], live.serving, None, 0, "", live.resource_version, because[:300])
    before = spec.get("rollbackTo")
    unguarded = seen.status.phase == "Bake" or spec.get("intent") == "Abort"
    if not (seen.is_serving and unguarded and isinstance(before, str)):
        return None
    content = live.served.get(before) or seen.status.rollback_digest
    return Switch(spec["service"], before, None, 0, "", live.resource_version, because[:300], content)


def _away_from(seen: Seen) -> Switch | None:
    """Traffic of a candidate that is being deleted goes back."""
    if not (seen.is_candidate and isinstance(seen.live, Live) and isinstance(seen.spec, ReleaseSpec)):
        return None
    return Switch(
        seen.spec.service, seen.live.serving, None, 0, "", seen.live.resource_version, f"release {seen.name} is deleted"
    )


def take_back_from_a_release_that_is_gone(s: Situation) -> Plan | None:
    """A deleted candidate has nobody left to guard it; the release that serves takes its traffic back (R-17)."""
    if not s.seen.is_serving or s.live is None or s.live.candidate is None or isinstance(s.seen.siblings, Unreadable):
        return None
    if any(other.name == s.live.candidate for other in s.seen.siblings):
        return None
    because = f"release {s.live.candidate} is gone, its traffic goes back"
    switch = Switch(s.spec.service, s.seen.name, None, 0, "", s.live.resource_version, because)
    return Plan("take_back_from_a_release_that_is_gone", switch=switch, look_again=AT_ONCE)


def store_again_what_served(s: Situation) -> Plan | None:
    """Somebody deleted the ServingConfig: replicas answer from theirs, and the release that served puts it back (K-18).

    Only the one whose status says that it serves, by the newest generation of those that say so. On a first release
    `intent: Abort` leaves it deleted, which ends a service; any other has to serve before it can go back.
    """
    if s.live is not None or isinstance(s.seen.siblings, Unreadable) or (s.first and s.spec.intent == "Abort"):
        return None
    if s.seen.status.phase not in ("Promoted", "Bake") or not is_true(s.seen.object.get("status"), "Serving"):
        return None
    if s.spec.intent == "Abort" and not any(other.name == s.spec.rollback_to for other in s.seen.siblings):
        return None  # its way back was deleted: the service ends with it, too
    mine = (s.seen.status.traffic.generation, s.seen.name)
    if any(other.serves and (other.generation, other.name) > mine for other in s.seen.siblings):
        return None  # a later one says so too: this status missed its last write
    message = "its ServingConfig was deleted and is stored again; this release serves"
    return serve_again(s, "store_again_what_served", message)


def take_back_what_a_namesake_had(s: Situation) -> Plan | None:
    """A Release deleted and made again during its canary is another one: it has no evidence, and inherits none (R-05, K-10)."""
    if not s.seen.has_namesakes_traffic or s.live is None:
        return None
    because = f"release {s.seen.name} was deleted and made again: the traffic of the former goes back"
    switch = Switch(s.spec.service, s.live.serving, None, 0, "", s.live.resource_version, because)
    return Plan("take_back_what_a_namesake_had", switch=switch, look_again=AT_ONCE)


def begin_attempt(s: Situation) -> Plan | None:
    """A new or grown attempt starts from Checks with its own evidence and its own frozen n (R-24)."""
    if s.seen.status.attempt == s.spec.attempt or (s.spec.intent == "Abort" and s.seen.is_candidate):
        return None  # traffic that is to end does not wait for bookkeeping
    rule = "begin_attempt"
    planned = planned_sample(s.spec) if s.spec.rollback_to else None
    changes = {
        "attempt": s.spec.attempt, "evidence": (), "step": 0, "step_since": None, "evaluation_job": None,
        "planned_n": planned.candidate if isinstance(planned, PlannedSample) else 0,
        "bake_observed_seconds": 0, "bake_last_look": None,
    }  # fmt: skip
    if s.seen.is_serving or s.phase == "Promoted":  # nothing failed: there is nothing to try again
        told = Told(s.phase, "AttemptNoted", s.seen.status.message or "serves", changes={"attempt": s.spec.attempt})
        return stay(s, rule, told, AT_ONCE)
    if s.seen.is_candidate and s.seen.status.attempt > 0:
        message = f"attempt {s.spec.attempt} begins: the traffic of attempt {s.seen.status.attempt} goes back first"
        return go_back(s, rule, "NewAttempt", message)
    if s.seen.is_candidate:  # what is committed is known; what was seen, and whether the look was taken, is not
        message = f"attempt {s.spec.attempt} begins anew: its status was lost, so its traffic goes back first"
        return go_back(s, rule, "StatusLost", message)
    return stay(s, rule, Told("Checks", "Checking", "checks what the release refers to", changes=changes), AT_ONCE)


def keep_traffic_away_from_what_is_over(s: Situation) -> Plan | None:
    """RolledBack is said with weight 0, and settled once every ready replica has applied it; no later write gives it back."""
    if s.phase not in ("RolledBack", "Rejected", "Superseded"):
        return None
    rule = "keep_traffic_away_from_what_is_over"
    reason = next((c.reason for c in s.seen.status.conditions if c.type == "Degraded"), s.phase)
    if s.seen.is_serving:  # another release's way back led here: that switch is newer than this status
        message = "promoted: it answers users again, another release went back to it"
        return is_over(s, rule, Told("Promoted", "ServesAgain", message, settled=True))
    if s.seen.is_candidate:
        return go_back(s, rule, reason, s.seen.status.message, phase=s.phase)
    known = s.seen.status.traffic.acknowledged or (s.live is None or s.live.acknowledged)
    refused = any(c.type == "Accepted" and c.status == "False" for c in s.seen.status.conditions)
    problem = Problem(reason, s.seen.status.message, heals=False) if refused else None
    told = Told(s.phase, reason, s.seen.status.message, stalled=known, degraded=True, problem=problem)
    return is_over(s, rule, told) if known else stay(s, rule, told, AT_ONCE)


def abort(s: Situation) -> Plan | None:
    """A person's way back, from every phase that has one; also from Promoted while it serves."""
    if s.spec.intent != "Abort":
        return None
    if s.phase == "Promoted" and not s.seen.is_serving and not (s.live and s.live.serving == s.spec.rollback_to):
        return None  # replaced long ago
    return go_back(s, "abort", "Aborted", "Rolled back: spec.intent is Abort", s.watched)


def roll_back_on_breach(s: Situation) -> Plan | None:
    """Any guardrail that fails ends it, before anything that could move forward; paused or held does not matter (R-17)."""
    breach = first_failure(s.watched)
    if breach is None:
        return None
    return go_back(s, "roll_back_on_breach", breach.reason, f"Rolled back: {breach.message}", s.watched)


def pause(s: Situation) -> Plan | None:
    """A person's stop: the weight stays, nothing moves forward, guardrails go on."""
    hold = s.spec.hold
    if s.phase == "Promoted" or (s.spec.intent != "Pause" and hold is None):
        return None
    why = f"held by {hold.by}: {hold.reason}" if hold else "spec.intent is Pause"
    reason = "OnHold" if hold else "IntentPause"
    message = f"Paused at {s.seen.weight} %: {why}"
    told = Told(s.phase, reason, message, paused=True, evidence=canary.changed(s), changes={"bake_last_look": None})
    return stay(s, "pause", told)


def rest(s: Situation) -> Plan:
    """Promoted: it serves, or another does by now."""
    if s.seen.is_serving:
        message = _kept(s, "promoted: this release answers users")
        return is_over(s, "rest", Told("Promoted", "Promoted", message, settled=True))
    serving = f"release {s.live.serving}" if s.live else "no release"
    return is_over(s, "rest", Told(s.phase, "Replaced", f"promoted once; {serving} answers users now", settled=True))


def _kept(s: Situation, message: str) -> str:
    return s.seen.status.message if s.seen.status.message.startswith("promoted:") else message


RULES: tuple[Rule, ...] = (
    take_back_from_a_release_that_is_gone,
    take_back_what_a_namesake_had,
    store_again_what_served,
    begin_attempt,
    keep_traffic_away_from_what_is_over,
    abort,
    roll_back_on_breach,
    canary.leave_when_traffic_was_taken,
    gates.leave_when_the_base_is_another,
    gates.stop_if_references_are_missing,
    pause,
    gates.queue_behind_the_holder,
    gates.evaluate_offline,
    canary.give_up_at_the_deadline,
    canary.hold_what_is_held,
    canary.stop_when_content_is_gone,
    canary.wait_for_acknowledgement,
    canary.look_at_the_last_step,
    canary.advance_one_step,
    bake.bake,
    rest,
)
