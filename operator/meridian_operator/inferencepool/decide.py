"""What a pool should run. Order of every change: traffic, acknowledged, drained, and only then scaled away."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from meridian_api.v1alpha1.inferencepool import InferencePoolSpec
from meridian_operator.cluster import Manifest, Ref, Unreadable, ref
from meridian_operator.conditions import Say, conditions, cut, kstatus
from meridian_operator.inferencepool.objects import manifests, predictor_scale, wanted_replicas, workload_name
from meridian_operator.inferencepool.seen import Observed, Routing
from meridian_operator.plan import REST, SOON, Plan

Rule = Callable[[Observed, datetime], Plan | None]


def decide(seen: Observed, now: datetime) -> Plan:
    """The first rule that answers; the last always does."""
    return next(plan for rule in RULES if (plan := rule(seen, now)) is not None)


def leave_if_deleting(seen: Observed, now: datetime) -> Plan | None:
    """Garbage collection removes the children; there is no finalizer (K-21)."""
    return Plan("leave_if_deleting") if seen.object["metadata"].get("deletionTimestamp") else None


def refuse_what_is_invalid(seen: Observed, now: datetime) -> Plan | None:
    """What got past the schema gives a condition, and everything that runs is left running (K-35)."""
    if seen.spec is not None:
        return None
    return _rejected(seen, now, "SpecInvalid", seen.problem)


def refuse_hosted(seen: Observed, now: datetime) -> Plan | None:
    """Providers' APIs are on the roadmap; the shape is there already."""
    if seen.spec is None or seen.spec.provider != "Hosted":
        return None
    return _rejected(seen, now, "NotSupportedYet", "provider Hosted is not implemented yet; use KServe or Deployment")


def need_kserve(seen: Observed, now: datetime) -> Plan | None:
    """Without KServe's CRDs there is nothing to create; the pool recovers by itself when they appear."""
    if seen.spec is None or seen.spec.provider != "KServe" or seen.kserve:
        return None
    why = "provider KServe needs the CRD inferenceservices.serving.kserve.io; install KServe or use provider Deployment"
    return _rejected(seen, now, "KServeMissing", why)


def hold_when_demand_is_unknown(seen: Observed, now: datetime) -> Plan | None:
    """Not knowing who needs what is no reason to start or stop anything."""
    if not isinstance(seen.routing, Unreadable):
        return None
    why = f"{seen.routing.source} could not be read: {seen.routing.why}"
    said = kstatus(Say("Accepted", True, "Valid"), waiting_for=("DemandUnknown", why))
    return Plan("hold_when_demand_is_unknown", status=_status(seen, said, now, None), look_again=SOON)


def run_what_is_demanded(seen: Observed, now: datetime) -> Plan:
    """Total: apply demanded versions, remove those that nothing demands or routes to, say how warm each is."""
    assert seen.spec is not None and isinstance(seen.routing, Routing)
    spec, routing = seen.spec, seen.routing
    known = {v.name: v for v in spec.versions}
    apply: list[Manifest] = []
    for version in routing.demand:
        name = workload_name(seen.object["metadata"]["name"], version)
        if version not in known or name in seen.foreign:
            continue
        apply.extend(manifests(seen.object, spec, known[version]))
        if seen.predictors.get(name, wanted_replicas(spec)) != wanted_replicas(spec):
            apply.append(predictor_scale(seen.object["metadata"]["namespace"], name, wanted_replicas(spec)))
    delete, waits = _removable(seen, routing, now)
    versions = _versions(seen, spec, routing)
    said = kstatus(
        *_said(seen, routing, versions), stalled=bool(seen.foreign), waiting_for=_waiting(seen, known, versions)
    )
    moving = bool(waits) or any(not v["warm"] for v in versions)
    return Plan(
        "run_what_is_demanded",
        apply=tuple(apply),
        delete=delete,
        status=_status(seen, said, now, versions),
        look_again=SOON if moving else REST,
    )


RULES: tuple[Rule, ...] = (
    leave_if_deleting,
    refuse_what_is_invalid,
    refuse_hosted,
    need_kserve,
    hold_when_demand_is_unknown,
    run_what_is_demanded,
)


def _removable(seen: Observed, routing: Routing, now: datetime) -> tuple[tuple[Ref, ...], tuple[str, ...]]:
    """Children to delete now, and why others have to wait. A version that comes back in between is simply demanded again."""
    pool = seen.object["metadata"]["name"]
    needed = {workload_name(pool, version) for version in routing.demand}
    needed |= {workload_name(p, version) for v in routing.views for p, version in v.targets if p == pool}
    idle = [c for c in (*seen.workloads, *seen.services) if c["metadata"]["name"] not in needed]
    if not idle:
        return (), ()
    waits = tuple(why for v in routing.views if (why := _not_let_go(v, routing, seen, now)) is not None)
    return (() if waits else tuple(ref(c) for c in idle)), waits


def _not_let_go(view: Any, routing: Routing, seen: Observed, now: datetime) -> str | None:
    assert seen.spec is not None
    if not view.usable:
        return f"ServingConfig {view.service} cannot be opened or is gone"
    if not routing.ready:
        return "no data-plane replica is ready to say what it routes to"
    if late := view.waits_for(routing.ready):
        return f"generation {view.generation} is not applied by {', '.join(late[:5])}"
    if now - view.issued_at < timedelta(seconds=seen.spec.drain_seconds):
        return "answers that began before the last switch may still stream"
    return None


def _versions(seen: Observed, spec: InferencePoolSpec, routing: Routing) -> list[dict[str, Any]]:
    pool = seen.object["metadata"]["name"]
    kinds = {w["metadata"]["name"]: w["kind"] for w in seen.workloads}
    rows = []
    for version in spec.versions:
        name = workload_name(pool, version.name)
        demanded = routing.demand.get(version.name, ())
        if not demanded and name not in kinds:
            continue
        existing, ready = seen.pods.get(name, (0, 0))
        warm = name not in seen.foreign and ready >= wanted_replicas(spec)
        rows.append(
            {
                "name": version.name,
                "workload": name,
                "replicas": existing,
                "readyReplicas": ready,
                "warm": warm,
                "demandedBy": list(demanded)[:32],
                "message": _message(name, seen, spec, ready, bool(demanded)),
            }
        )
    return rows


def _message(name: str, seen: Observed, spec: InferencePoolSpec, ready: int, demanded: bool) -> str:
    if name in seen.foreign:
        return f"an object called {name} exists and is not this pool's; it is left alone"
    if not demanded:
        return "no release needs it; removed once the data plane has let go of it"
    wanted = wanted_replicas(spec)
    return "" if ready >= wanted else f"{ready} of {wanted} replicas have served a completion"


def _said(seen: Observed, routing: Routing, versions: list[dict[str, Any]]) -> tuple[Say, ...]:
    pool = seen.object["metadata"]["name"]
    routed = sorted({version for v in routing.views for p, version in v.targets if p == pool})
    cold = [v["name"] for v in versions if v["name"] in routed and not v["warm"]]
    return (
        Say("Accepted", True, "Valid"),
        Say("Serving", bool(routed), "Routed" if routed else "NotRouted", ", ".join(routed)),
        Say(
            "Degraded",
            bool(cold),
            "BelowFloor" if cold else "AsAsked",
            f"below its floor: {', '.join(cold)}" if cold else "",
        ),
    )


def _waiting(seen: Observed, known: dict[str, Any], versions: list[dict[str, Any]]) -> tuple[str, str] | None:
    assert isinstance(seen.routing, Routing)
    if missing := sorted(set(seen.routing.demand) - set(known)):
        who = ", ".join(seen.routing.demand[missing[0]])
        return "VersionUnknown", f"{who} needs version {missing[0]}, which spec.versions does not have"
    if seen.foreign:
        return "ForeignOwner", f"taken by objects that are not this pool's: {', '.join(sorted(seen.foreign))}"
    cold = [v for v in versions if v["demandedBy"] and not v["warm"]]
    return ("WarmingUp", f"{cold[0]['name']}: {cold[0]['message']}") if cold else None


def _rejected(seen: Observed, now: datetime, reason: str, message: str) -> Plan:
    said = kstatus(Say("Accepted", False, reason, message), stalled=True)
    return Plan(reason, status=_status(seen, said, now, None))


def _status(
    seen: Observed, said: tuple[Say, ...], now: datetime, versions: list[dict[str, Any]] | None
) -> dict[str, Any]:
    """`versions` None keeps what was last known."""
    before = seen.object.get("status") or {}
    generation = int(seen.object["metadata"].get("generation", 0))
    rows = before.get("versions") or [] if versions is None else versions
    return {
        "observedGeneration": generation,
        "conditions": conditions(before, said, generation=generation, now=now),
        "versions": [{**row, "message": cut(row.get("message", ""))} for row in rows],
        "warmVersions": [row["name"] for row in rows if row.get("warm")],
    }
