"""What is needed now: which releases are alive, and the pool versions, epochs and tenants that they and the data plane use. Pure.

What serves is read from the stored ServingConfig, the one commit point; a release's status says only how far a candidate is.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from meridian_api.serving import unpack
from meridian_api.v1alpha1.servingconfig import ReplicaReport
from meridian_operator.cluster import Manifest
from meridian_operator.serving.acknowledgements import has_applied

CANDIDATE_PHASES = frozenset({"Checks", "OfflineEval", "SecurityProbes", "Shadow", "Canary", "Bake", "Held"})
SERVED_PHASES = frozenset({"Bake", "Promoted"})
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class ServingView:
    """One stored ServingConfig, opened. `usable` False: nobody knows what the data plane routes to."""

    service: str
    generation: int
    releases: frozenset[str] = frozenset()
    serving: str = ""
    targets: frozenset[tuple[str, str]] = frozenset()
    """(pool, version) that requests may be sent to."""
    epochs: frozenset[str] = frozenset()
    tenants: frozenset[str] = frozenset()
    region: str = ""
    issued_at: datetime = LONG_AGO
    applied: frozenset[str] = frozenset()
    """Replicas that have said that they applied this very generation."""
    usable: bool = True

    def waits_for(self, ready: Iterable[str]) -> tuple[str, ...]:
        """Ready replicas that have not said that they applied this generation."""
        return tuple(sorted(set(ready) - self.applied))


def view(config: Manifest) -> ServingView:
    """Open a ServingConfig. The signature is the data plane's to check: only the operator may write this kind."""
    spec = config.get("spec") or {}
    name = config["metadata"]["name"]
    try:
        snapshot = unpack(base64.b64decode(spec["payload"], validate=True))
        issued = datetime.fromisoformat(snapshot.issued_at)
    except (KeyError, ValueError):
        return ServingView(service=name, generation=int(spec.get("generation", 0)), usable=False)
    manifests = [snapshot.serving] + ([snapshot.candidate.manifest] if snapshot.candidate else [])
    targets = {(t.pool, t.version) for m in manifests for t in (m.primary, m.fallback) if t is not None}
    reports = (config.get("status") or {}).get("replicas") or ()
    mine = (int(spec["generation"]), spec.get("digest") or "")
    return ServingView(
        service=snapshot.service,
        generation=int(spec["generation"]),
        releases=frozenset(m.release for m in manifests),
        serving=snapshot.serving.release,
        targets=frozenset(targets),
        epochs=frozenset(m.index.epoch for m in manifests),
        tenants=frozenset(t.tenant_id for t in snapshot.tenants),
        region=snapshot.region,
        issued_at=issued if issued.tzinfo else issued.replace(tzinfo=UTC),
        applied=frozenset(r["replica"] for r in reports if has_applied(_report(r), *mine)),
    )


def _report(stored: Manifest) -> ReplicaReport:
    """As stored: what does not look like a report is one of no generation, not the end of the look."""
    return ReplicaReport.model_construct(
        replica=stored["replica"], generation=int(stored.get("generation", 0)), digest=stored.get("digest")
    )


def live_releases(releases: Iterable[Manifest], views: Iterable[ServingView]) -> dict[str, Manifest]:
    """By name: those that serve, those on their way, and the rollback target of each."""
    by_name = {r["metadata"]["name"]: r for r in releases}
    named = {name for v in views for name in v.releases}
    alive = {
        name
        for name, release in by_name.items()
        if name in named or (release.get("status") or {}).get("phase") in CANDIDATE_PHASES
    }
    targets = {by_name[name].get("spec", {}).get("rollbackTo") for name in alive}
    return {name: by_name[name] for name in sorted((alive | targets) & by_name.keys())}


def unseen_services(releases: Iterable[Manifest], views: Iterable[ServingView]) -> tuple[ServingView, ...]:
    """Services whose releases have answered users but whose ServingConfig is gone: the data plane serves on from what it
    accepted, and nobody knows what that routes to.
    """
    known = {v.service for v in views}
    served = {
        str((r.get("spec") or {}).get("service") or "")
        for r in releases
        if (r.get("status") or {}).get("phase") in SERVED_PHASES
    }
    return tuple(ServingView(service=name, generation=0, usable=False) for name in sorted(served - known))


def pool_demand(pool: str, alive: Mapping[str, Manifest]) -> dict[str, tuple[str, ...]]:
    """Versions of `pool` that live releases name, with those releases."""
    demand: dict[str, list[str]] = {}
    for name, release in alive.items():
        models: Mapping[str, Any] = release.get("spec", {}).get("models") or {}
        versions = {
            m["version"] for m in (models.get("primary"), models.get("fallback")) if m and m.get("pool") == pool
        }
        for version in versions:
            demand.setdefault(version, []).append(name)
    return {version: tuple(names) for version, names in sorted(demand.items())}


def epoch_demand(epoch: str, alive: Mapping[str, Manifest]) -> tuple[str, ...]:
    """Live releases that read `epoch`."""
    return tuple(n for n, r in alive.items() if (r.get("spec", {}).get("index") or {}).get("epoch") == epoch)


def ready_replicas(slices: Iterable[Manifest]) -> frozenset[str]:
    """Pods behind a Service that may get requests, by its EndpointSlices."""
    return frozenset(
        endpoint["targetRef"]["name"]
        for piece in slices
        for endpoint in piece.get("endpoints") or ()
        if (endpoint.get("conditions") or {}).get("ready") is not False and endpoint.get("targetRef")
    )
