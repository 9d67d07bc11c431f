"""One look at an epoch: what it refers to, its Job, what the store knows of the build, who needs it."""

from __future__ import annotations

import asyncio

from pydantic import ValidationError

from meridian_api.digest import configmap_digest
from meridian_api.v1alpha1.indexepoch import IndexEpochSpec
from meridian_operator.cluster import Key, Manifest, Unreadable, find, find_all
from meridian_operator.converge import World
from meridian_operator.demand import epoch_demand, live_releases, view
from meridian_operator.indexepoch.objects import index_job, job_name
from meridian_operator.indexepoch.seen import Observed
from meridian_operator.store.partitions import epochs_of_tenant

BUILD = """
select state, chunks, documents, documents_total, corpus_fingerprint, golden_digest, recall_at_6, error, built_at
  from meridian.epochs where name = %s and uid = %s
"""
PROGRESS = """
select coalesce(sum(documents), 0)::bigint as documents, coalesce(sum(documents_total), 0)::bigint as documents_total,
       coalesce(sum(chunks), 0)::bigint as chunks
  from meridian.epoch_sources where epoch = %s
"""


async def observe(key: Key, world: World) -> Observed | None | Unreadable:
    """None when the epoch is gone, Unreadable when it could not be read; what else did not answer is a value inside."""
    cluster, namespace = world.cluster, key.namespace
    epoch = await find(cluster, key.kind, namespace, key.name)
    if epoch is None or isinstance(epoch, Unreadable):
        return epoch
    try:
        spec = IndexEpochSpec.from_wire(epoch.get("spec"), unknown="ignore")
    except ValidationError as error:
        first = error.errors()[0]
        return Observed(epoch, None, f"{'.'.join(str(p) for p in first['loc'])}: {first['msg']}")
    policies, releases, configs = await asyncio.gather(
        find_all(cluster, "TenantPolicy", namespace),
        find_all(cluster, "Release", namespace),
        find_all(cluster, "ServingConfig", namespace),
    )
    job = await find(cluster, "Job", namespace, job_name(key.name))
    build = await world.store.read(BUILD, (key.name, epoch["metadata"]["uid"]))
    digests = await _digests(spec, namespace, world)
    partitions = await _partitions(spec, key.name, world)
    progress = await world.store.read(PROGRESS, (key.name,))
    needed_by: tuple[str, ...] | Unreadable
    serving = False
    if isinstance(releases, Unreadable):
        needed_by = releases
    elif isinstance(configs, Unreadable):
        needed_by = configs
    else:
        views = tuple(view(c) for c in configs)
        needed_by = epoch_demand(key.name, live_releases(releases, views))
        serving = any(key.name in v.epochs for v in views)
    return Observed(
        object=epoch,
        spec=spec,
        tenants=policies if isinstance(policies, Unreadable) else frozenset(_tenant_ids(policies)),
        outside=() if isinstance(policies, Unreadable) else _outside(spec, policies, world.settings.region),
        digests=digests,
        partitions=partitions,
        job=job,
        wanted_job=index_job(epoch, spec, world.settings),
        build=build if isinstance(build, Unreadable) else next(iter(build), None),
        progress={} if isinstance(progress, Unreadable) else next(iter(progress), {}),
        needed_by=needed_by,
        serving=serving,
    )


def _tenant_ids(policies: tuple[Manifest, ...]) -> list[str]:
    return [p["spec"]["tenantId"] for p in policies if (p.get("spec") or {}).get("tenantId")]


def _outside(spec: IndexEpochSpec, policies: tuple[Manifest, ...], here: str) -> tuple[str, ...]:
    """Why the build would bring documents to where they may not be: it runs, and stores, in the region of this installation."""
    if spec.region != here:
        return (f"the epoch is for {spec.region}, and this installation is in {here}",)
    allowed: dict[str, list[str]] = {}
    for policy in sorted(policies, key=lambda p: (p["metadata"].get("creationTimestamp", ""), p["metadata"]["name"])):
        declared = policy.get("spec") or {}
        allowed.setdefault(declared.get("tenantId", ""), list(declared.get("allowedRegions") or ()))
    return tuple(
        f"tenant {tenant} may use only {', '.join(allowed[tenant])}, the epoch is in {spec.region}"
        for tenant in spec.tenants
        if tenant in allowed and spec.region not in allowed[tenant]
    )


async def _digests(spec: IndexEpochSpec, namespace: str, world: World) -> dict[str, str | None] | Unreadable:
    named = [s.config_map for s in spec.sources if s.config_map] + ([spec.golden_set] if spec.golden_set else [])
    names = sorted({reference.name for reference in named})
    found = await asyncio.gather(*(find(world.cluster, "ConfigMap", namespace, name) for name in names))
    digests: dict[str, str | None] = {}
    for name, live in zip(names, found, strict=True):
        if isinstance(live, Unreadable):
            return live
        digests[name] = None if live is None else configmap_digest(live.get("data") or {})
    return digests


async def _partitions(spec: IndexEpochSpec, epoch: str, world: World) -> frozenset[str] | Unreadable:
    found = await asyncio.gather(*(epochs_of_tenant(world.store, tenant) for tenant in spec.tenants))
    there = set()
    for tenant, epochs in zip(spec.tenants, found, strict=True):
        if isinstance(epochs, Unreadable):
            return epochs
        if epochs is not None and epoch in epochs:
            there.add(tenant)
    return frozenset(there)
