"""How far a tenant is onboarded. Two policies of one tenant: the older holds it, the newer says so and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from meridian_operator.cluster import Manifest, Unreadable
from meridian_operator.conditions import Say, conditions, cut, is_true, kstatus
from meridian_operator.plan import REST, SOON, EnsureTenant, EventNote, Plan
from meridian_operator.tenantpolicy.seen import Observed

Rule = Callable[[Observed, datetime], Plan | None]
ACCEPTED = Say("Accepted", True, "Valid")


def decide(seen: Observed, now: datetime) -> Plan:
    """The first rule that answers; the last always does."""
    return next(plan for rule in RULES if (plan := rule(seen, now)) is not None)


def leave_if_deleting(seen: Observed, now: datetime) -> Plan | None:
    """Nothing holds a deletion up; the data plane drops the tenant with the next ServingConfig (K-21)."""
    return Plan("leave_if_deleting") if seen.object["metadata"].get("deletionTimestamp") else None


def refuse_what_is_invalid(seen: Observed, now: datetime) -> Plan | None:
    """What got past the schema gives a condition; what was known of the tenant stays in service (K-35)."""
    if seen.spec is not None:
        return None
    return _rejected(seen, now, "SpecInvalid", seen.problem)


def refuse_a_second_claim(seen: Observed, now: datetime) -> Plan | None:
    """The older policy of a tenant id holds it, by creation time and then by name, as in the compiled configuration."""
    if seen.spec is None or isinstance(seen.others, Unreadable):
        return None
    claims = [o for o in seen.others if (o.get("spec") or {}).get("tenantId") == seen.spec.tenant_id]
    older = [o for o in claims if _age(o) < _age(seen.object)]
    if not older:
        return None
    holder = min(older, key=_age)["metadata"]["name"]
    why = f"tenant {seen.spec.tenant_id} belongs to the older policy {holder}; delete one of the two"
    return _rejected(seen, now, "DuplicateTenant", why)


def wait_for_the_list(seen: Observed, now: datetime) -> Plan | None:
    """Without the other policies nobody knows whether the tenant id is free."""
    if not isinstance(seen.others, Unreadable):
        return None
    say = Say("Accepted", None, "PoliciesUnreadable", f"{seen.others.source}: {seen.others.why}")
    return Plan(
        "wait_for_the_list",
        status=_status(seen, kstatus(say, _stored_before(seen)), "Onboarding", now),
        look_again=SOON,
    )


def say_that_the_store_is_silent(seen: Observed, now: datetime) -> Plan | None:
    """PostgreSQL down is no reason to call a tenant broken: it says Unknown, and why."""
    if not isinstance(seen.epochs, Unreadable):
        return None
    say = Say("StoreReady", None, "StoreUnreadable", f"{seen.epochs.source}: {seen.epochs.why}")
    known = (seen.object.get("status") or {}).get("phase") == "Onboarded"
    phase = "Onboarded" if known else "Onboarding"
    return Plan(
        "say_that_the_store_is_silent", status=_status(seen, kstatus(ACCEPTED, say), phase, now), look_again=SOON
    )


def make_partitions(seen: Observed, now: datetime) -> Plan | None:
    """The tenant's partition and its row-level security."""
    if seen.epochs is not None or seen.spec is None:
        return None
    say = Say("StoreReady", False, "MakingPartitions", "the tenant's partition is being made")
    return Plan(
        "make_partitions",
        store=(EnsureTenant(seen.spec.tenant_id),),
        status=_status(seen, kstatus(ACCEPTED, say), "Onboarding", now),
        look_again=SOON,
    )


def onboarded(seen: Observed, now: datetime) -> Plan:
    """Total."""
    said = kstatus(ACCEPTED, Say("StoreReady", True, "PartitionsExist"), _serving(seen))
    fresh = not is_true(seen.object.get("status"), "Ready")
    events = (EventNote("Normal", "Onboarded", "partitions and row-level security exist"),) if fresh else ()
    return Plan("onboarded", status=_status(seen, said, "Onboarded", now), events=events, look_again=REST)


RULES: tuple[Rule, ...] = (
    leave_if_deleting,
    refuse_what_is_invalid,
    refuse_a_second_claim,
    wait_for_the_list,
    say_that_the_store_is_silent,
    make_partitions,
    onboarded,
)


def _age(policy: Manifest) -> tuple[str, str]:
    return policy["metadata"].get("creationTimestamp", ""), policy["metadata"]["name"]


def _stored_before(seen: Observed) -> Say:
    known = is_true(seen.object.get("status"), "StoreReady")
    return Say("StoreReady", True if known else None, "AsBefore" if known else "NotLooked")


def _serving(seen: Observed) -> Say:
    if isinstance(seen.serving_in, Unreadable):
        return Say("Serving", None, "Unreadable", seen.serving_in.why)
    if not seen.serving_in:
        return Say("Serving", False, "InNoServingConfig", "no stored ServingConfig holds this tenant yet")
    return Say("Serving", True, "InServingConfig", ", ".join(seen.serving_in))


def _rejected(seen: Observed, now: datetime, reason: str, message: str) -> Plan:
    said = kstatus(Say("Accepted", False, reason, message), Say("StoreReady", False, reason), stalled=True)
    return Plan(
        reason,
        status=_status(seen, said, "Rejected", now),
        events=(EventNote("Warning", reason, message),),
        look_again=REST,
    )


def _status(seen: Observed, said: tuple[Say, ...], phase: str, now: datetime) -> dict[str, Any]:
    before = seen.object.get("status") or {}
    generation = int(seen.object["metadata"].get("generation", 0))
    known = seen.epochs if isinstance(seen.epochs, frozenset) else None
    serving = seen.serving_in if isinstance(seen.serving_in, tuple) else tuple(before.get("servingIn") or ())
    failing = next((s for s in said if s.type == "Ready" and s.status is not True), None)
    return {
        "observedGeneration": generation,
        "conditions": conditions(before, said, generation=generation, now=now),
        "phase": phase,
        "partitions": len(known) if known is not None else int(before.get("partitions", 0)),
        "servingIn": list(serving)[:16],
        "message": cut(failing.message if failing else ""),
    }
