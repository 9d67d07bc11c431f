"""What one look at an epoch found: values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from meridian_api.v1alpha1.indexepoch import IndexEpochSpec
from meridian_operator.cluster import Manifest, Unreadable, controller_uid


@dataclass(frozen=True)
class Observed:
    """What `decide` reads."""

    object: Manifest
    spec: IndexEpochSpec | None
    problem: str = ""
    tenants: frozenset[str] | Unreadable = frozenset()
    """Tenant ids that have a policy."""
    outside: tuple[str, ...] = ()
    """Why documents would be brought to where they may not be."""
    digests: dict[str, str | None] | Unreadable = field(default_factory=dict)
    """Digest of each ConfigMap that the spec names; None: there is none."""
    partitions: frozenset[str] | Unreadable = frozenset()
    """Those of `spec.tenants` whose partition for this epoch exists."""
    job: Manifest | None | Unreadable = None
    wanted_job: Manifest | None = None
    """What to create when there is no Job."""
    build: dict[str, Any] | None | Unreadable = None
    """Row of `epochs` of this very object (by uid)."""
    progress: dict[str, Any] = field(default_factory=dict)
    needed_by: tuple[str, ...] | Unreadable = ()
    serving: bool = False

    @property
    def job_is_foreign(self) -> bool:
        """The Job's name is taken by something that is not this epoch's."""
        return isinstance(self.job, dict) and controller_uid(self.job) != self.object["metadata"]["uid"]
