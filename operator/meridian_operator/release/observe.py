"""One look at a Release: everything at the same time, every failure a value, at most about 2 s for evidence."""

from __future__ import annotations

import asyncio

from pydantic import ValidationError

from meridian_api.content import content_digest
from meridian_api.names import derived_name
from meridian_api.v1alpha1.indexepoch import IndexEpochStatus
from meridian_api.v1alpha1.release import ReleaseSpec, ReleaseStatus
from meridian_api.v1alpha1.servingconfig import ServingConfigStatus
from meridian_operator.cluster import ClusterError, Key, Manifest, Unreadable, find, find_all
from meridian_operator.conditions import is_true
from meridian_operator.converge import World
from meridian_operator.release import measure
from meridian_operator.release.checks import check
from meridian_operator.release.seen import Live, Problem, Seen, Sibling, phase_of
from meridian_operator.release.warmth import cold_versions, has_ready_endpoint, ready_pods
from meridian_operator.serving.acknowledgements import Waiting, acknowledged
from meridian_operator.serving.compile import compile_manifest
from meridian_operator.serving.gather import gather_sources

DATA_PLANE_SERVICE = "meridian-dataplane"


async def observe(key: Key, world: World) -> Seen | Unreadable | None:
    """None when the Release is gone, Unreadable when it could not be read itself."""
    found = await find(world.cluster, "Release", key.namespace, key.name)
    if found is None or isinstance(found, Unreadable):
        return found
    status = _status(found)
    try:
        spec = ReleaseSpec.from_wire(found.get("spec"), unknown="ignore")
    except ValidationError as wrong:
        first = wrong.errors()[0]
        reason = f"{'.'.join(str(p) for p in first['loc'])}: {first['msg']}"[:500]
        return Seen(found, reason, status, await _live_of_unreadable(found, world), (), ())
    cluster, namespace = world.cluster, key.namespace
    config, releases, slices, pools = await asyncio.gather(
        find(cluster, "ServingConfig", namespace, spec.service),
        find_all(cluster, "Release", namespace),
        find_all(cluster, "EndpointSlice", namespace),
        find_all(cluster, "InferencePool", namespace),
    )
    live = _live(config, slices)
    others = [] if isinstance(releases, Unreadable) else releases
    base = Seen(found, spec, status, live, _siblings(releases, key.name, spec.service), ())
    phase = phase_of(status, is_candidate=base.is_candidate, is_serving=base.is_serving)
    problems, job_and_report, counted, metrics = await asyncio.gather(
        _problems(world, key, spec),
        measure.evaluation(world, key, base, phase),
        measure.counts(world, base, spec, phase),
        measure.metrics(world, base, phase),
    )
    target = next((r for r in others if r["metadata"]["name"] == spec.rollback_to), None)
    content = _target_content(spec, status, live, target)
    cold_target, reachable = _target(key.name, spec, target, content, pools, slices)
    problems, incomplete = problems if isinstance(problems, tuple) else (problems, ())
    if target is not None:
        cold_target += incomplete
    return Seen(
        found, spec, status, live, base.siblings, problems,
        cold=cold_versions(spec.models, pools, slices),
        cold_target=cold_target,
        target_reachable=reachable,
        target_content=content,
        job=job_and_report[0],
        report=job_and_report[1],
        tally=counted,
        metrics=metrics,
    )  # fmt: skip


def _status(found: Manifest) -> ReleaseStatus:
    """What we wrote last; what cannot be read as that is as good as lost, and the pointer says where traffic is."""
    try:
        return ReleaseStatus.from_wire(found.get("status") or {}, unknown="ignore")
    except ValidationError:
        return ReleaseStatus()


def _live(config: Manifest | Unreadable | None, slices: tuple[Manifest, ...] | Unreadable) -> Live | Unreadable | None:
    if config is None or isinstance(config, Unreadable):
        return config
    spec = config["spec"]
    try:
        reports = ServingConfigStatus.from_wire(config.get("status") or {}, unknown="ignore")
    except ValidationError as wrong:
        return Unreadable("ServingConfig status", str(wrong)[:200])
    waiting = "ready replicas cannot be listed"
    if not isinstance(slices, Unreadable):
        ready = ready_pods(slices, DATA_PLANE_SERVICE)
        known = acknowledged(reports, ready, spec["generation"], spec.get("digest", ""))
        waiting = known.sentence(spec["generation"]) if isinstance(known, Waiting) else ""
    return Live(
        resource_version=config["metadata"]["resourceVersion"],
        generation=spec["generation"],
        serving=spec["serving"],
        candidate=spec.get("candidate") or None,
        weight_percent=spec.get("candidateWeightPercent", 0),
        acknowledged=not waiting,
        waiting_for=waiting,
        served={one["release"]: one["digest"] for one in spec.get("served") or ()},
        candidate_uid=spec.get("candidateUid") or "",
    )


async def _live_of_unreadable(found: Manifest, world: World) -> Live | Unreadable | None:
    """A Release whose spec cannot be read may still answer users: its status has to say so."""
    service, namespace = (found.get("spec") or {}).get("service"), found["metadata"]["namespace"]
    if not isinstance(service, str) or not service:
        return None
    config, slices = await asyncio.gather(
        find(world.cluster, "ServingConfig", namespace, service), find_all(world.cluster, "EndpointSlice", namespace)
    )
    return _live(config, slices)


def _siblings(releases: tuple[Manifest, ...] | Unreadable, name: str, service: str) -> tuple[Sibling, ...] | Unreadable:
    if isinstance(releases, Unreadable):
        return releases
    return tuple(
        Sibling(
            r["metadata"]["name"],
            (r.get("status") or {}).get("phase", "Pending"),
            r["metadata"].get("creationTimestamp", ""),
            (r.get("spec") or {}).get("intent") == "Pause" or bool((r.get("spec") or {}).get("hold")),
            is_true(r.get("status"), "Serving"),
            int(((r.get("status") or {}).get("traffic") or {}).get("generation", 0)),
            (r.get("spec") or {}).get("rollbackTo") or "",
        )
        for r in releases
        if r["metadata"]["name"] != name
        and (r.get("spec") or {}).get("service") == service
        and "deletionTimestamp" not in r["metadata"]
    )


async def _problems(
    world: World, key: Key, spec: ReleaseSpec
) -> tuple[tuple[Problem, ...], tuple[str, ...]] | Unreadable:
    """This release's problems, and what is missing of the content that a rollback would need (R-40)."""
    golden, epochs = await asyncio.gather(
        find(world.cluster, "ConfigMap", key.namespace, spec.eval.golden_set.name),
        find_all(world.cluster, "IndexEpoch", key.namespace),
    )
    try:
        named = [key.name, *([spec.rollback_to] if spec.rollback_to else [])]
        sources = await gather_sources(world.cluster, key.namespace, spec.service, world.settings.region, named)
    except ClusterError as error:
        return Unreadable("references", str(error)[:300])
    if isinstance(golden, Unreadable):
        return golden
    if isinstance(epochs, Unreadable):
        return epochs
    states = {e["metadata"]["name"]: _epoch_status(e) for e in epochs}
    data = None if golden is None else golden.get("data") or {}
    found = compile_manifest(sources, spec.rollback_to) if spec.rollback_to else ()
    missing = tuple(p.message for p in found) if isinstance(found, tuple) else ()
    return check(key.name, spec, sources, data, states), missing


def _epoch_status(epoch: Manifest) -> IndexEpochStatus:
    try:
        return IndexEpochStatus.from_wire(epoch.get("status") or {}, unknown="ignore")
    except ValidationError:
        return IndexEpochStatus()


def _target_content(
    spec: ReleaseSpec, status: ReleaseStatus, live: Live | Unreadable | None, target: Manifest | None
) -> str | None:
    """What the rollback target served: as stored with the pointer, else as this status remembers it.

    Where neither is known (an earlier version wrote both), what is found now is what is remembered from now on.
    """
    if spec.rollback_to is None:
        return None
    stored = live.served.get(spec.rollback_to) if isinstance(live, Live) else None
    return stored or status.rollback_digest or (_content(target) if target else None)


def _content(release: Manifest) -> str | None:
    try:
        return content_digest(ReleaseSpec.from_wire(release.get("spec"), unknown="ignore"))
    except ValidationError:
        return None


def _target(
    name: str,
    spec: ReleaseSpec,
    target: Manifest | None,
    content: str | None,
    pools: tuple[Manifest, ...] | Unreadable,
    slices: tuple[Manifest, ...] | Unreadable,
) -> tuple[tuple[str, ...], bool]:
    """What of the rollback target is not warm, and whether it can be gone back to: the same content, its model reachable."""
    if spec.rollback_to is None:
        return (), True
    if target is None:
        return (f"Release {spec.rollback_to} is gone",), False
    try:
        found = ReleaseSpec.from_wire(target.get("spec"), unknown="ignore")
    except ValidationError:
        return (f"Release {spec.rollback_to} cannot be read",), False
    if content is not None and content_digest(found) != content:
        return (f"Release {spec.rollback_to} was made again with other content",), False
    if found.intent == "Abort" and found.rollback_to == name:
        return (f"Release {spec.rollback_to} is aborted itself, and names this one as its way back",), False
    primary = derived_name(found.models.primary.pool, found.models.primary.version)
    reachable = isinstance(slices, Unreadable) or has_ready_endpoint(slices, primary)
    return cold_versions(found.models, pools, slices), reachable
