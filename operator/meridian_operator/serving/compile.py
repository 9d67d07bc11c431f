"""What serves, as one value: a pure function from the world to a Snapshot, or to the names of what is missing.

A problem of one manifest stops a switch to it. A problem of one tenant never does: a rollback must not wait for somebody
else's mistake, so such a tenant is reported and the data plane fails closed for it alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import jsonschema
from pydantic import ValidationError

from meridian_api.digest import configmap_digest
from meridian_api.meta import ConfigMapRef
from meridian_api.names import derived_name
from meridian_api.serving import (
    MAX_PAYLOAD_BYTES,
    Candidate,
    Manifest,
    ServingIndex,
    ServingTenant,
    ServingTool,
    Snapshot,
    Target,
    pack,
)
from meridian_api.v1alpha1.indexepoch import IndexEpochSpec
from meridian_api.v1alpha1.inferencepool import InferencePoolSpec
from meridian_api.v1alpha1.release import ModelRef, ReleaseSpec, Tool
from meridian_api.v1alpha1.tenantpolicy import TenantPolicySpec

_MESSAGE_LIMIT = 500
# In base64 it has to fit into a ConfigMap (1 MiB), from which a data plane starts without control plane.
_PACKED_LIMIT = min(MAX_PAYLOAD_BYTES, 750_000)


@dataclass(frozen=True)
class Problem:
    """One thing that is missing or does not fit, named so that a person can put it right."""

    reason: str
    message: str


@dataclass(frozen=True)
class Pointer:
    """Which releases serve, and how traffic is split between them."""

    serving: str
    candidate: str | None = None
    weight_percent: int = 0
    salt: str = ""
    shadow_percent: int = 0

    @classmethod
    def of(cls, snapshot: Snapshot) -> Pointer:
        """The pointer that `snapshot` was compiled for."""
        trial = snapshot.candidate
        if trial is None:
            return cls(snapshot.serving.release)
        return cls(
            snapshot.serving.release, trial.manifest.release, trial.weight_percent, trial.salt, trial.shadow_percent
        )


@dataclass(frozen=True)
class Sources:
    """One look at everything a snapshot is compiled from. Specs by name; what cannot be parsed is in `unreadable`."""

    service: str
    region: str
    namespace: str
    releases: Mapping[str, ReleaseSpec]
    pools: Mapping[str, InferencePoolSpec]
    epochs: Mapping[str, IndexEpochSpec]
    tenants: tuple[ServingTenant, ...]
    config_maps: Mapping[str, Mapping[str, str]]
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """`kind/name` to the error, for objects that a newer or older schema let in (K-35)."""
    revoked_subjects: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stamp:
    """What differs between two snapshots of the same content."""

    generation: int
    lease_epoch: int
    issued_at: str
    shrink_confirmed: bool = False


@dataclass(frozen=True)
class Compiled:
    """A snapshot that can be signed. `warnings` do not stop it: they concern single tenants or a manifest kept from before."""

    snapshot: Snapshot
    warnings: tuple[Problem, ...] = ()


def compile_snapshot(
    sources: Sources, pointer: Pointer, stamp: Stamp, last: Snapshot | None = None
) -> Compiled | tuple[Problem, ...]:
    """The snapshot for `pointer`, or every problem that stands against it.

    `last` is the stored snapshot: a manifest whose references have gone since (somebody deleted a ConfigMap) is taken from
    there, because a release's content never changes under its name and rolling back must stay possible.
    """
    if pointer.candidate == pointer.serving:
        return (Problem("SameRelease", f"release {pointer.serving} cannot be its own candidate"),)
    warnings: list[Problem] = []
    problems: list[Problem] = []
    manifests: dict[str, Manifest] = {}
    for name in filter(None, (pointer.serving, pointer.candidate)):
        made = compile_manifest(sources, name)
        if isinstance(made, Manifest):
            manifests[name] = made
        elif kept := _manifest_in(last, name):
            manifests[name] = kept
            warnings.extend(
                Problem("KeptLastGood", f"{problem.message}; the last good manifest is kept") for problem in made
            )
        else:
            problems.extend(made)
    if not sources.tenants:
        # Replicas refuse a configuration for nobody as blank (F-03).
        problems.append(Problem("NoTenants", "no TenantPolicy can be read: there is nobody to serve"))
    if problems:
        return tuple(problems)
    serving = manifests[pointer.serving]
    candidate = None
    if pointer.candidate is not None:
        candidate = Candidate(
            manifest=manifests[pointer.candidate],
            weight_percent=pointer.weight_percent,
            salt=pointer.salt,
            shadow_percent=pointer.shadow_percent,
        )
    for manifest in manifests.values():
        warnings += tenants_without_target(sources.tenants, manifest)
    snapshot = Snapshot(
        service=sources.service,
        region=sources.region,
        generation=stamp.generation,
        lease_epoch=stamp.lease_epoch,
        issued_at=stamp.issued_at,
        serving=serving,
        candidate=candidate,
        tenants=tuple(sorted(sources.tenants, key=lambda tenant: tenant.tenant_id)),
        revoked_subjects=tuple(sorted(sources.revoked_subjects)),
        shrink_confirmed=stamp.shrink_confirmed,
    )
    size = len(pack(snapshot))
    if size > _PACKED_LIMIT:
        return (Problem("TooLarge", f"the snapshot has {size} bytes packed, the limit is {_PACKED_LIMIT}"),)
    return Compiled(snapshot, tuple(warnings))


def compile_manifest(sources: Sources, name: str) -> Manifest | tuple[Problem, ...]:
    """One release in full, or every reference of it that does not resolve."""
    release = sources.releases.get(name)
    if release is None:
        return (_missing(sources, "Release", name),)
    if release.service != sources.service:
        return (Problem("WrongService", f"release {name} is for service {release.service}, not {sources.service}"),)
    found: list[Problem] = []
    prompt = _config_map(sources, release.prompt, found)
    system_prompt = prompt.get("system.txt", "")
    if prompt and not system_prompt.strip():
        found.append(Problem("PromptEmpty", f"ConfigMap {release.prompt.name} has no text under system.txt"))
    primary = _target(sources, release.models.primary, found)
    fallback = _target(sources, release.models.fallback, found) if release.models.fallback else None
    index = _index(sources, release, found)
    tools = tuple(filter(None, [_tool(sources, tool, found) for tool in release.tools]))
    if found or primary is None or index is None:
        return tuple(found)
    return Manifest(
        release=name,
        app_version=release.app.version,
        prompt=release.prompt.name,
        system_prompt=system_prompt,
        history_format=prompt.get("format.txt", "").strip() or "1",
        primary=primary,
        fallback=fallback,
        index=index,
        tools=tools,
        settings=release.settings,
    )


def serving_tenant(spec: TenantPolicySpec) -> ServingTenant:
    """The part of a TenantPolicy that the data plane needs."""
    return ServingTenant(
        tenant_id=spec.tenant_id,
        identity=spec.identity,
        tier=spec.tier,
        allowed_regions=spec.allowed_regions,
        overflow=spec.overflow,
        budgets=spec.budgets,
        roles=spec.roles,
        cache=spec.cache,
        canary_eligible=spec.canary_eligible,
        not_after=spec.not_after,
    )


def tenants_without_target(tenants: tuple[ServingTenant, ...], manifest: Manifest) -> list[Problem]:
    """Tenants whom `manifest` cannot serve where their data may go: the data plane fails closed for them (IV-12)."""
    regions = {target.region for target in (manifest.primary, manifest.fallback) if target is not None}
    found = []
    for tenant in tenants:
        allowed = (
            f"tenant {tenant.tenant_id} may use only {', '.join(tenant.allowed_regions)}; release {manifest.release}"
        )
        if not regions.intersection(tenant.allowed_regions):
            found.append(Problem("NoEligibleTarget", f"{allowed} has models only in {', '.join(sorted(regions))}"))
        if manifest.index.region not in tenant.allowed_regions:
            found.append(Problem("IndexOutsideRegions", f"{allowed} has its index in {manifest.index.region}"))
    return found


def same_content(one: Snapshot, other: Snapshot) -> bool:
    """Whether two snapshots serve alike: all but generation, issue time, lease epoch and the permission to shrink."""
    neutral = {"generation": 1, "lease_epoch": 0, "issued_at": "", "shrink_confirmed": False}
    return one.model_copy(update=neutral) == other.model_copy(update=neutral)


def _manifest_in(snapshot: Snapshot | None, name: str) -> Manifest | None:
    if snapshot is None:
        return None
    if snapshot.serving.release == name:
        return snapshot.serving
    if snapshot.candidate and snapshot.candidate.manifest.release == name:
        return snapshot.candidate.manifest
    return None


def _missing(sources: Sources, kind: str, name: str) -> Problem:
    unreadable = sources.unreadable.get(f"{kind}/{name}")
    if unreadable:
        return Problem(f"{kind}Invalid", f"{kind} {name} cannot be read: {unreadable}"[:_MESSAGE_LIMIT])
    return Problem(f"{kind}NotFound", f"{kind} {name} does not exist")


def _config_map(sources: Sources, reference: ConfigMapRef, found: list[Problem]) -> Mapping[str, str]:
    """Its data; empty with a problem in `found` when it is missing or is not what was pinned."""
    data = sources.config_maps.get(reference.name)
    if data is None:
        found.append(_missing(sources, "ConfigMap", reference.name))
        return {}
    actual = configmap_digest(data)
    if actual != reference.digest:
        found.append(
            Problem(
                "DigestMismatch",
                f"ConfigMap {reference.name} has digest {actual}, the release pins {reference.digest}",
            )
        )
        return {}
    return data


def _target(sources: Sources, reference: ModelRef, found: list[Problem]) -> Target | None:
    pool = sources.pools.get(reference.pool)
    if pool is None:
        found.append(_missing(sources, "InferencePool", reference.pool))
        return None
    if reference.version not in {version.name for version in pool.versions}:
        known = ", ".join(version.name for version in pool.versions)
        found.append(
            Problem(
                "VersionNotFound", f"InferencePool {reference.pool} has no version {reference.version} (has {known})"
            )
        )
        return None
    if pool.region != reference.region:
        found.append(
            Problem(
                "RegionMismatch",
                f"InferencePool {reference.pool} is in {pool.region}, the release says {reference.region}",
            )
        )
        return None
    if pool.engine is None:
        found.append(
            Problem(
                "ProviderNotServed",
                f"InferencePool {reference.pool} has provider {pool.provider}, which is not served yet",
            )
        )
        return None
    host = f"{derived_name(reference.pool, reference.version)}.{sources.namespace}.svc.cluster.local"
    return Target(
        pool=reference.pool,
        version=reference.version,
        region=pool.region,
        model=pool.model,
        provider=pool.provider,
        # A headless Service: the port is the engine's own.
        base_url=f"http://{host}:{pool.engine.port}",
        price=pool.price,
    )


def _index(sources: Sources, release: ReleaseSpec, found: list[Problem]) -> ServingIndex | None:
    name = release.index.epoch
    epoch = sources.epochs.get(name)
    if epoch is None:
        found.append(_missing(sources, "IndexEpoch", name))
        return None
    if epoch.embedding.ident != release.index.embedding_model:
        found.append(
            Problem(
                "EmbeddingMismatch",
                f"IndexEpoch {name} was made with {epoch.embedding.ident}, the release says {release.index.embedding_model}",
            )
        )
        return None
    return ServingIndex(epoch=name, region=epoch.region, embedding=epoch.embedding, normaliser=epoch.normaliser)


def _tool(sources: Sources, reference: Tool, found: list[Problem]) -> ServingTool | None:
    data = _config_map(sources, reference.config_map, found)
    if not data:
        return None
    where = f"ConfigMap {reference.config_map.name}, tool.json"
    try:
        tool = ServingTool.from_wire(json.loads(data["tool.json"]))
        jsonschema.Draft202012Validator.check_schema(tool.parameters)  # the dialect that the data plane checks with
    except KeyError:
        found.append(Problem("ToolInvalid", f"ConfigMap {reference.config_map.name} has no key tool.json"))
        return None
    except (ValidationError, ValueError) as wrong:
        found.append(Problem("ToolInvalid", f"{where}: {wrong}"[:_MESSAGE_LIMIT]))
        return None
    except jsonschema.SchemaError as wrong:
        found.append(
            Problem("ToolInvalid", f"{where}: parameters are no JSON Schema: {wrong.message}"[:_MESSAGE_LIMIT])
        )
        return None
    if (tool.name, tool.schema_version) != (reference.name, reference.schema_version):
        found.append(
            Problem(
                "ToolMismatch",
                f"{where} declares {tool.name} {tool.schema_version},"
                f" the release names {reference.name} {reference.schema_version}",
            )
        )
        return None
    return tool
