"""Bake: all traffic, the release before kept warm, until enough healthy time was observed. Pure."""

from __future__ import annotations

from meridian_operator.conditions import timestamp
from meridian_operator.plan import REST, Plan
from meridian_operator.release.moves import Situation, go_back, seconds_since, stay
from meridian_operator.release.status import Told
from meridian_operator.release.verdicts import first_not_passed, quiet

MAX_GAP_SECONDS = 30
"""Between two healthy looks; what lies in a longer gap was not observed and does not count (R-47)."""

MIN_GAP_SECONDS = 5
"""Healthy time is written down this often at most; each write wakes every reader (K-27)."""


def bake(s: Situation) -> Plan | None:
    """Adds up observed healthy time; only looks where every required guardrail says Pass count (R-04)."""
    if s.phase != "Bake":
        return None
    rule = "bake"
    if not s.seen.is_serving:
        return go_back(s, rule, "TrafficTakenAway", "Rolled back: the traffic was given to another release")
    wanted, observed = s.spec.rollout.bake_seconds, s.seen.status.bake_observed_seconds
    if not (s.live and s.live.acknowledged):
        return _wait(s, "NotAcknowledged", f"all traffic is committed; {s.live.waiting_for if s.live else ''}")
    unclear = first_not_passed(s.watched)
    if unclear is not None and not (s.first and quiet(s.seen, s.spec, s.watched)):
        return _wait(
            s, unclear.reason, f"{observed} of {wanted} s healthy; waits for {unclear.name}: {unclear.message}"
        )
    gap = int(seconds_since(s, s.seen.status.bake_last_look))
    began = s.seen.status.bake_last_look is not None
    if began and gap < MIN_GAP_SECONDS and observed + gap < wanted:
        return stay(s, rule, Told("Bake", "Baking", f"{observed} of {wanted} s healthy", evidence=s.watched))
    observed += gap if gap <= MAX_GAP_SECONDS else 0
    changes = {"bake_observed_seconds": observed, "bake_last_look": timestamp(s.now)}
    if began and observed >= wanted:
        before = f"release {s.spec.rollback_to} stays warm" if s.spec.rollback_to else "it is the first of its service"
        told = Told(
            "Promoted", "Promoted", f"promoted: {observed} s of healthy bake; {before}", settled=True,
            evidence=s.watched, changes=changes,
        )  # fmt: skip
        return stay(s, rule, told, REST)
    return stay(
        s, rule, Told("Bake", "Baking", f"{observed} of {wanted} s healthy", evidence=s.watched, changes=changes)
    )


def _wait(s: Situation, reason: str, message: str) -> Plan:
    """Time in which health is not known does not count."""
    told = Told("Bake", reason, message, evidence=s.watched, changes={"bake_last_look": None})
    return stay(s, "bake", told)
