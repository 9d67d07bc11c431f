"""What one look at a pool found: values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from meridian_api.v1alpha1.inferencepool import InferencePoolSpec
from meridian_operator.cluster import Manifest, Unreadable
from meridian_operator.demand import ServingView


@dataclass(frozen=True)
class Routing:
    """What the data plane may still send requests to."""

    demand: dict[str, tuple[str, ...]]
    """Version to the releases that need it."""
    views: tuple[ServingView, ...]
    ready: frozenset[str]
    """Data-plane replicas that may get requests."""


@dataclass(frozen=True)
class Observed:
    """What `decide` reads. Names are workload names."""

    object: Manifest
    spec: InferencePoolSpec | None
    problem: str = ""
    kserve: bool = True
    routing: Routing | Unreadable = field(default_factory=lambda: Unreadable("nothing", "not looked"))
    workloads: tuple[Manifest, ...] = ()
    """InferenceServices and Deployments that this pool controls."""
    services: tuple[Manifest, ...] = ()
    foreign: frozenset[str] = frozenset()
    """Names of demanded versions that somebody else's object has."""
    predictors: dict[str, int] = field(default_factory=dict)
    """Replica count of the Deployment that KServe made, by InferenceService."""
    pods: dict[str, tuple[int, int]] = field(default_factory=dict)
    """(existing, ready) by workload."""
