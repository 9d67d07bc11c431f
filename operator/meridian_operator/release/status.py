"""The whole status of a Release from what a rule says: conditions, traffic, evidence, history. Pure and bounded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from meridian_api.v1alpha1.release import Evidence, Phase, PhaseEntry, ReleaseStatus, Traffic
from meridian_operator.cluster import Unreadable
from meridian_operator.conditions import Say, conditions, cut, is_true, timestamp
from meridian_operator.release.seen import OVER, Live, Problem, Seen, parse_time

_MAX_HISTORY = 32
_MAX_EVIDENCE = 32
REFRESH_SECONDS = 3.0
"""Numbers behind an unchanged verdict are rewritten this often at most: each write wakes every reader of the object (K-27)."""


@dataclass(frozen=True)
class Told:
    """What a rule wants said."""

    phase: Phase
    reason: str
    message: str
    """One sentence."""
    stalled: bool = False
    """Nothing moves without a person."""
    settled: bool = False
    """The release is where its spec wants it."""
    paused: bool = False
    degraded: bool = False
    problem: Problem | None = None
    evidence: tuple[Evidence, ...] = ()
    """Newer verdicts; stored ones of other names are kept."""
    weight: int | None = None
    """Percent that the same plan's switch commits; None: what is committed stays."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Further fields of ReleaseStatus."""


def status_wire(seen: Seen, told: Told, now: datetime) -> dict[str, Any]:
    """The wire form that replaces the stored status."""
    old = seen.status
    stamp = timestamp(now)
    history = old.history
    if told.phase != old.phase or told.changes.get("attempt", old.attempt) != old.attempt:
        history = (*history, PhaseEntry(phase=told.phase, at=stamp))[-_MAX_HISTORY:]
    kept: tuple[Evidence, ...] = told.changes.get("evidence", old.evidence)
    evidence = _merged(kept, told.evidence, now)
    if told.evidence and evidence == old.evidence and told.phase == old.phase and told.reason == _reason(old):
        told = replace(told, message=old.message)
    generation = int(seen.object["metadata"].get("generation", 0))
    update = {
        **told.changes,
        "observed_generation": generation,
        "phase": told.phase,
        "message": cut(told.message, 4000),
        "history": history,
        "traffic": _traffic(seen, told, stamp),
        "evidence": evidence,
        "rollback_digest": seen.target_content or old.rollback_digest,
        "serving_release": seen.live.serving if isinstance(seen.live, Live) else old.serving_release,
        "conditions": (),
    }
    wire = ReleaseStatus(**{**{n: getattr(old, n) for n in ReleaseStatus.model_fields}, **update}).to_wire()
    wire["conditions"] = conditions(seen.object.get("status"), _said(seen, told), generation=generation, now=now)
    return wire


def _traffic(seen: Seen, told: Told, stamp: str) -> Traffic:
    old = seen.status.traffic
    weight = seen.weight if told.weight is None else told.weight
    if not isinstance(seen.live, Live):
        since = stamp if weight != old.weight_percent else old.since
        return Traffic(weight_percent=weight, generation=old.generation, since=since)
    if told.phase in OVER and weight == 0 and old.weight_percent == 0 and old.acknowledged:
        return old  # long over: later generations are about others, and no write tells of them (K-27)
    return Traffic(
        weight_percent=weight,
        generation=seen.live.generation,
        acknowledged=seen.live.acknowledged and weight == seen.weight and told.weight is None,
        since=stamp if weight != old.weight_percent or old.since is None else old.since,
    )


def _merged(kept: Iterable[Evidence], newer: Iterable[Evidence], now: datetime) -> tuple[Evidence, ...]:
    """By name. A verdict that changed is written at once, newer numbers of the same verdict now and then."""
    found = {e.name: e for e in kept}
    for one in newer:
        old = found.get(one.name)
        if old is None or (old.verdict, old.reason) != (one.verdict, one.reason) or _is_old(old, one, now):
            found[one.name] = one.model_copy(update={"at": timestamp(now), "message": cut(one.message, 1000)})
    return tuple(found.values())[:_MAX_EVIDENCE]


def _is_old(old: Evidence, new: Evidence, now: datetime) -> bool:
    at = parse_time(old.at)
    if old.model_copy(update={"at": None}) == new.model_copy(update={"at": None}):
        return False
    return at is None or (now - at).total_seconds() >= REFRESH_SECONDS


def _reason(status: ReleaseStatus) -> str:
    return next((c.reason for c in status.conditions if c.type == "Ready"), "")


def _said(seen: Seen, told: Told) -> tuple[Say, ...]:
    moving = not (told.stalled or told.settled or told.paused)
    accepted = (
        Say("Accepted", False, told.problem.reason, told.problem.message)
        if told.problem
        else Say("Accepted", True, "ReferencesResolve")
    )
    serving = Say("Serving", told.weight == 100 or (seen.is_serving and told.weight != 0), *_serving(seen, told))
    return (
        accepted,
        serving,
        _rollback_ready(seen),
        _rollback_target(seen),
        Say(
            "Promoted", told.phase == "Promoted", told.reason if told.phase != "Promoted" else "Promoted", told.message
        ),
        Say("Paused", told.paused, told.reason if told.paused else "NotPaused"),
        Say(
            "Degraded",
            told.degraded,
            told.reason if told.degraded else "AsAsked",
            told.message if told.degraded else "",
        ),
        Say("Reconciling", moving, told.reason, told.message if moving else ""),
        Say("Stalled", told.stalled, told.reason, told.message if told.stalled else ""),
        Say("Ready", told.settled, told.reason, told.message),
    )


def _serving(seen: Seen, told: Told) -> tuple[str, str]:
    if told.weight == 100 or (seen.is_serving and told.weight is None):
        return "Serving", "this release answers users"
    if isinstance(seen.live, Live):
        return "AnotherServes", f"release {seen.live.serving} answers users"[
            :200
        ] if not seen.is_serving else "traffic goes back"
    return "NothingServes", "the service has no release yet"


def _rollback_target(seen: Seen) -> Say:
    """Deleting it would leave a release with traffic without its way back."""
    if isinstance(seen.spec, str) or isinstance(seen.siblings, Unreadable):  # nobody looked at the others
        known = is_true(seen.object.get("status"), "RollbackTarget")
        return Say("RollbackTarget", known, "WayBack" if known else "NotNeeded")
    siblings = seen.siblings
    with_traffic = (seen.live.serving, seen.live.candidate) if isinstance(seen.live, Live) else ()
    users = [other.name for other in siblings if other.goes_back_to == seen.name and other.name in with_traffic]
    if not users:
        return Say("RollbackTarget", False, "NotNeeded")
    return Say("RollbackTarget", True, "WayBack", f"release {users[0]} would go back to this one")


def _rollback_ready(seen: Seen) -> Say:
    target = seen.spec.rollback_to if not isinstance(seen.spec, str) else None
    if target is None:
        return Say("RollbackReady", False, "NoTarget", "a first release has nothing to return to")
    if seen.cold_target:
        return Say("RollbackReady", False, "TargetNotWarm", f"release {target}: {', '.join(seen.cold_target)}")
    return Say("RollbackReady", True, "TargetWarm", f"release {target} is complete and warm")
