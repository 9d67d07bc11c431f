"""Is a model version warm? The pool says that a real completion was served, and its Service has a ready replica now. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from meridian_api.names import derived_name
from meridian_api.v1alpha1.release import ModelRef, Models
from meridian_operator.cluster import Manifest, Unreadable

SERVICE_LABEL = "kubernetes.io/service-name"


def cold_versions(
    models: Models, pools: tuple[Manifest, ...] | Unreadable, slices: tuple[Manifest, ...] | Unreadable
) -> tuple[str, ...]:
    """What is not warm, as `pool/version`; what cannot be read is not known to be warm."""
    wanted = [m for m in (models.primary, models.fallback) if m is not None]
    if isinstance(pools, Unreadable) or isinstance(slices, Unreadable):
        return tuple(f"{m.pool}/{m.version} (unreadable)" for m in wanted)
    return tuple(
        f"{m.pool}/{m.version}"
        for m in wanted
        if not (_said_warm(pools, m) and has_ready_endpoint(slices, derived_name(m.pool, m.version)))
    )


def has_ready_endpoint(slices: Iterable[Manifest], service: str) -> bool:
    """Whether any replica behind the Service takes requests."""
    return any(_is_ready(e) for e in _endpoints(slices, service))


def ready_pods(slices: Iterable[Manifest], service: str) -> frozenset[str]:
    """Names of the pods behind the Service that take requests."""
    return frozenset(
        e["targetRef"]["name"]
        for e in _endpoints(slices, service)
        if _is_ready(e) and (e.get("targetRef") or {}).get("name")
    )


def _endpoints(slices: Iterable[Manifest], service: str) -> Iterable[Manifest]:
    for one in slices:
        if (one["metadata"].get("labels") or {}).get(SERVICE_LABEL) == service:
            yield from one.get("endpoints") or ()


def _is_ready(endpoint: Manifest) -> bool:
    conditions = endpoint.get("conditions") or {}
    # Absent means ready, as Kubernetes says; a terminating pod still drains but takes nothing new.
    return conditions.get("ready") is not False and not conditions.get("terminating")


def _said_warm(pools: Iterable[Manifest], model: ModelRef) -> bool:
    for pool in pools:
        if pool["metadata"]["name"] == model.pool:
            versions = (pool.get("status") or {}).get("versions") or ()
            return any(v.get("name") == model.version and v.get("warm") for v in versions)
    return False
