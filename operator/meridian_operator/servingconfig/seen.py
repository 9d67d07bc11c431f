"""What `observe` saw, as `decide` reads it."""

from __future__ import annotations

from dataclasses import dataclass

from meridian_operator.cluster import Manifest
from meridian_operator.serving.compile import Problem, Sources
from meridian_operator.serving.shrinkage import Settled
from meridian_operator.serving.stored import Stored


@dataclass(frozen=True)
class Observed:
    """What `decide` reads. `sources` is None when the payload gives no pointer to compile for."""

    object: Manifest
    stored: Stored
    key_id: str
    sources: Sources | None
    settled: Settled
    problems: tuple[Problem, ...]
    copy: Manifest | None
    """The ConfigMap that data-plane pods mount."""
