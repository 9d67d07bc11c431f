"""One look at a pool: who demands what, what runs, and whether the data plane has let go of the rest."""

from __future__ import annotations

import asyncio

from pydantic import ValidationError

from meridian_api.v1alpha1.inferencepool import InferencePoolSpec
from meridian_operator.cluster import ClusterError, Key, Manifest, Unreadable, controller_uid, find, find_all
from meridian_operator.converge import World
from meridian_operator.demand import live_releases, pool_demand, ready_replicas, unseen_services, view
from meridian_operator.inferencepool import kserve_types
from meridian_operator.inferencepool.objects import POOL_LABEL, VERSION_LABEL, workload_name
from meridian_operator.inferencepool.seen import Observed, Routing


async def observe(key: Key, world: World) -> Observed | None | Unreadable:
    """None when the pool is gone; Unreadable when its children cannot be listed, since then nothing may be decided."""
    cluster = world.cluster
    pool = await find(cluster, key.kind, key.namespace, key.name)
    if pool is None or isinstance(pool, Unreadable):
        return pool
    try:
        spec = InferencePoolSpec.from_wire(pool.get("spec"), unknown="ignore")
    except ValidationError as error:
        first = error.errors()[0]
        return Observed(pool, None, f"{'.'.join(str(p) for p in first['loc'])}: {first['msg']}")
    if spec.provider == "Hosted":
        return Observed(pool, spec)
    if spec.region != world.settings.region:
        # It would run here under another region's name, and tenants bound to that region would be sent to it (IV-12).
        why = (
            f"region: this installation is in {world.settings.region}, so that a pool of {spec.region} cannot run here"
        )
        return Observed(pool, None, why)
    try:
        kserve = await cluster.serves("InferenceService")
    except ClusterError as error:
        return Unreadable("discovery", str(error)[:300])
    if spec.provider == "KServe" and kserve:
        await asyncio.to_thread(kserve_types.load)
    mine = {POOL_LABEL: key.name}
    lists = await asyncio.gather(
        find_all(cluster, "InferenceService", key.namespace, mine) if kserve else _none(),
        find_all(cluster, "Deployment", key.namespace, mine),
        find_all(cluster, "Service", key.namespace, mine),
        find_all(cluster, "Pod", key.namespace, mine),
        find_all(cluster, "Deployment", key.namespace) if spec.provider == "KServe" else _none(),
    )
    for found in lists:
        if isinstance(found, Unreadable):
            return found
    inference, deployments, services, pods, all_deployments = (x for x in lists if not isinstance(x, Unreadable))
    uid = pool["metadata"]["uid"]
    workloads = tuple(w for w in (*inference, *deployments) if controller_uid(w) == uid)
    routing = await _routing(key, world)
    return Observed(
        object=pool,
        spec=spec,
        kserve=kserve,
        routing=routing,
        workloads=workloads,
        services=tuple(s for s in services if controller_uid(s) == uid),
        foreign=await _foreign(key, world, spec, routing, uid),
        predictors=_predictors(inference, all_deployments),
        pods=_pods(pods),
    )


async def _routing(key: Key, world: World) -> Routing | Unreadable:
    releases, configs, slices = await asyncio.gather(
        find_all(world.cluster, "Release", key.namespace),
        find_all(world.cluster, "ServingConfig", key.namespace),
        find_all(
            world.cluster,
            "EndpointSlice",
            key.namespace,
            {"kubernetes.io/service-name": world.settings.dataplane_service},
        ),
    )
    if isinstance(releases, Unreadable):
        return releases
    if isinstance(configs, Unreadable):
        return configs
    if isinstance(slices, Unreadable):
        return slices
    views = tuple(view(c) for c in configs)
    views += unseen_services(releases, views)
    return Routing(pool_demand(key.name, live_releases(releases, views)), views, ready_replicas(slices))


async def _foreign(
    key: Key, world: World, spec: InferencePoolSpec, routing: Routing | Unreadable, uid: str
) -> frozenset[str]:
    """Taken names among those we are about to apply; what nobody could read is left to `apply`, which checks again."""
    if isinstance(routing, Unreadable):
        return frozenset()
    kinds = ["Service", "InferenceService" if spec.provider == "KServe" else "Deployment"]
    names = [workload_name(key.name, version) for version in routing.demand]
    pairs = [(kind, name) for kind in kinds for name in names]
    found = await asyncio.gather(*(find(world.cluster, kind, key.namespace, name) for kind, name in pairs))
    return frozenset(
        name
        for (_, name), live in zip(pairs, found, strict=True)
        if isinstance(live, dict) and controller_uid(live) != uid
    )


def _predictors(inference: tuple[Manifest, ...], deployments: tuple[Manifest, ...]) -> dict[str, int]:
    """Only Deployments that KServe made for the InferenceService itself: by owner, not by name."""
    owners = {i["metadata"]["uid"]: i["metadata"]["name"] for i in inference}
    return {
        owners[owner]: int((d.get("spec") or {}).get("replicas") or 0)
        for d in deployments
        if (owner := controller_uid(d)) in owners and d["metadata"]["name"] == f"{owners[owner]}-predictor"
    }


def _pods(pods: tuple[Manifest, ...]) -> dict[str, tuple[int, int]]:
    counts: dict[str, tuple[int, int]] = {}
    for pod in pods:
        if pod["metadata"].get("deletionTimestamp"):
            continue
        name = (pod["metadata"].get("labels") or {}).get(VERSION_LABEL, "")
        ready = any(
            c["type"] == "Ready" and c["status"] == "True" for c in (pod.get("status") or {}).get("conditions") or ()
        )
        existing, warm = counts.get(name, (0, 0))
        counts[name] = (existing + 1, warm + ready)
    return counts


async def _none() -> tuple[Manifest, ...]:
    return ()
