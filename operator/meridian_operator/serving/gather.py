"""One whole look at what a snapshot is compiled from. A read that fails gives no snapshot at all, never a part of one (F-09)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from meridian_api.meta import ApiModel
from meridian_api.serving import ServingTenant, Snapshot
from meridian_api.v1alpha1.indexepoch import IndexEpochSpec
from meridian_api.v1alpha1.inferencepool import InferencePoolSpec
from meridian_api.v1alpha1.release import ReleaseSpec
from meridian_api.v1alpha1.tenantpolicy import TenantPolicySpec
from meridian_operator.cluster import Cluster, Manifest, NotFound
from meridian_operator.serving.compile import Problem, Sources, serving_tenant
from meridian_operator.serving.sign import KeyUnusable, SigningKey, load_key, open_own
from meridian_operator.serving.stored import Stored, doubled, envelope_of
from meridian_operator.settings import Settings

Spec = TypeVar("Spec", bound=ApiModel)


async def gather_sources(
    cluster: Cluster, namespace: str, service: str, region: str, releases: Iterable[str]
) -> Sources:
    """The live world for `releases` of `service`. Raises ClusterError when any part did not answer."""
    names = sorted(set(releases))
    (pools, epochs, policies), found = await asyncio.gather(
        asyncio.gather(*(cluster.list(kind, namespace) for kind in ("InferencePool", "IndexEpoch", "TenantPolicy"))),
        asyncio.gather(*(_get(cluster, "Release", namespace, name) for name in names)),
    )
    unreadable: dict[str, str] = {}
    release_specs = _specs(ReleaseSpec, [item for item in found if item is not None], unreadable)
    wanted = {spec.prompt.name for spec in release_specs.values()}
    wanted |= {tool.config_map.name for spec in release_specs.values() for tool in spec.tools}
    maps = await asyncio.gather(*(_get(cluster, "ConfigMap", namespace, name) for name in sorted(wanted)))
    return Sources(
        service=service,
        region=region,
        namespace=namespace,
        releases=release_specs,
        pools=_specs(InferencePoolSpec, pools, unreadable),
        epochs=_specs(IndexEpochSpec, epochs, unreadable),
        tenants=tuple(_tenants(policies, unreadable)),
        config_maps={item["metadata"]["name"]: item.get("data") or {} for item in maps if item is not None},
        unreadable=unreadable,
    )


def keep_unreadable_tenants(sources: Sources, last: Snapshot | None) -> tuple[tuple[ServingTenant, ...], list[Problem]]:
    """The live tenants, and from `last` those whose policy is there but cannot be read: a typo ends nobody's service (K-35)."""
    live = {tenant.tenant_id for tenant in sources.tenants}
    kept = []
    problems = []
    for tenant in last.tenants if last else ():
        why = sources.unreadable.get(f"tenant/{tenant.tenant_id}")
        if why and tenant.tenant_id not in live:
            kept.append(tenant)
    for key, why in sources.unreadable.items():
        if key.startswith("TenantPolicy/"):
            problems.append(Problem("TenantPolicyInvalid", f"{key}: {why}; what was known of it is kept"))
    return (*sources.tenants, *kept), problems


async def read_stored(
    cluster: Cluster, settings: Settings, service: str, key: SigningKey, namespace: str
) -> Stored | None:
    """The stored ServingConfig, opened. Raises ClusterError."""
    manifest = await _get(cluster, "ServingConfig", namespace, service)
    return None if manifest is None else await open_stored(cluster, settings, manifest, key)


async def open_stored(cluster: Cluster, settings: Settings, manifest: Manifest, key: SigningKey) -> Stored:
    """A ServingConfig as decisions need it; a payload that is not ours gives `snapshot=None`. Raises ClusterError.

    Only after a rotation is the ConfigMap of public keys read, to know an earlier key of ours from a stranger's.
    """
    envelope = envelope_of(manifest)
    highest = int((manifest.get("status") or {}).get("highestAccepted", 0))
    twice = doubled(manifest, envelope)
    trusted: dict[str, str] = {}
    if envelope.key_id != key.key_id:
        keys = await _get(cluster, "ConfigMap", manifest["metadata"]["namespace"], settings.keys_config_map)
        trusted = (keys or {}).get("data") or {}
    try:
        return Stored(manifest, envelope, highest, open_own(envelope, key, trusted), has_a_double=twice)
    except ValueError as unusable:
        return Stored(manifest, envelope, highest, None, str(unusable)[:200], twice)


def signing_key(folder: str) -> SigningKey | KeyUnusable:
    """The key, or why there is none, as a value."""
    try:
        return load_key(Path(folder))
    except KeyUnusable as unusable:
        return unusable


async def _get(cluster: Cluster, kind: str, namespace: str, name: str) -> Manifest | None:
    try:
        return await cluster.get(kind, namespace, name)
    except NotFound:
        return None


def _specs(model: type[Spec], items: Iterable[Manifest], unreadable: dict[str, str]) -> dict[str, Spec]:
    specs = {}
    for item in items:
        name = item["metadata"]["name"]
        try:
            specs[name] = model.from_wire(item.get("spec"), unknown="ignore")
        except ValidationError as wrong:
            unreadable[f"{item['kind']}/{name}"] = _first(wrong)
    return specs


def _tenants(policies: Iterable[Manifest], unreadable: dict[str, str]) -> Iterable[ServingTenant]:
    """Oldest first: a later policy that claims another's id or tokens is left out, and takes nothing from the first."""
    taken: dict[object, str] = {}
    for item in sorted(policies, key=lambda p: (p["metadata"].get("creationTimestamp", ""), p["metadata"]["name"])):
        name = item["metadata"]["name"]
        try:
            spec = TenantPolicySpec.from_wire(item.get("spec"), unknown="ignore")
            _instant(spec.not_after)
        except ValueError as wrong:
            unreadable[f"TenantPolicy/{name}"] = _first(wrong)
            unreadable[f"tenant/{(item.get('spec') or {}).get('tenantId')}"] = name
            continue
        identity = spec.identity
        claims = (spec.tenant_id, (identity.issuer, identity.tenant_claim, identity.tenant_value))
        first = next((taken[claim] for claim in claims if claim in taken), None)
        if first is not None:
            unreadable[f"TenantPolicy/{name}"] = f"TenantPolicy {first} has this tenant id or these tokens already"
            continue
        taken.update(dict.fromkeys(claims, name))
        yield serving_tenant(spec)


def _instant(text: str | None) -> None:
    """Raises ValueError when `text` is no instant: replicas refuse such a configuration as a whole."""
    if text is not None and datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("notAfter has no time zone")


def _first(wrong: ValueError) -> str:
    if not isinstance(wrong, ValidationError):
        return str(wrong)[:300]
    error = wrong.errors()[0]
    return f"{'.'.join(str(part) for part in error['loc'])}: {error['msg']}"[:300]
