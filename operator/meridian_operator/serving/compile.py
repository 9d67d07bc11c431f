"""What serves, as one value: a pure function from the world to a Snapshot, or to the names of what is missing.

A problem of one manifest stops a switch to it. A problem of one tenant never does: a rollback must not wait for somebody
else's mistake, so such a tenant is reported and the data plane fails closed for it alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from meridian_api.serving import MAX_PAYLOAD_BYTES, Candidate, Manifest, ServingTenant, Snapshot, pack
from meridian_api.v1alpha1.tenantpolicy import TenantPolicySpec
from meridian_operator.serving.manifests import Problem, Sources, compile_manifest

# In base64 it has to fit into a ConfigMap (1 MiB), from which a data plane starts without control plane.
_PACKED_LIMIT = min(MAX_PAYLOAD_BYTES, 750_000)


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
    kept: frozenset[str] = frozenset()
    """Releases whose manifest is the stored one, because it cannot be compiled from what they declare now."""


def compile_snapshot(
    sources: Sources, pointer: Pointer, stamp: Stamp, last: Snapshot | None = None
) -> Compiled | tuple[Problem, ...]:
    """The snapshot for `pointer`, or every problem that stands against it.

    `last` is the stored snapshot: a manifest whose references have gone since (somebody deleted a ConfigMap) is taken from
    there, because a release's content never changes under its name and rolling back must stay possible. For the same reason a
    release that was deleted and made again with other content gets no traffic under the old name (R-22).
    """
    if pointer.candidate == pointer.serving:
        return (Problem("SameRelease", f"release {pointer.serving} cannot be its own candidate"),)
    warnings: list[Problem] = []
    problems: list[Problem] = []
    manifests: dict[str, Manifest] = {}
    for name in filter(None, (pointer.serving, pointer.candidate)):
        made = compile_manifest(sources, name)
        kept = _manifest_in(last, name)
        if isinstance(made, Manifest) and kept is not None and _pinned(made) != _pinned(kept):
            manifests[name] = kept
            why = f"Release {name} was deleted and made again with other content, which no evidence is about"
            warnings.append(
                Problem("ReleaseReplaced", f"{why}; what was promoted serves on, give the new one a new name")
            )
        elif isinstance(made, Manifest):
            manifests[name] = made
        elif kept is not None:
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
    return Compiled(snapshot, tuple(warnings), frozenset(n for n, m in manifests.items() if m is _manifest_in(last, n)))


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


def _pinned(manifest: Manifest) -> object:
    """What a Release's immutable spec alone decides; the rest (prices, an engine's port) follows its pool and epoch."""
    models = [(m.pool, m.version) for m in (manifest.primary, manifest.fallback) if m is not None]
    neutral = {"primary": None, "fallback": None, "index": None}
    return models, manifest.index.epoch, manifest.model_copy(update=neutral)


def _manifest_in(snapshot: Snapshot | None, name: str) -> Manifest | None:
    if snapshot is None:
        return None
    if snapshot.serving.release == name:
        return snapshot.serving
    if snapshot.candidate and snapshot.candidate.manifest.release == name:
        return snapshot.candidate.manifest
    return None
