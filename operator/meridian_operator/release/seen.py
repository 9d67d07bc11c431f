"""What one look at a Release and its surroundings gives. Plain values; what could not be read is Unreadable, not absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from meridian_api.content import content_digest
from meridian_api.v1alpha1.release import Phase, ReleaseSpec, ReleaseStatus
from meridian_operator.cluster import Manifest, Unreadable
from meridian_operator.evidence.outcomes import Tally
from meridian_operator.evidence.readings import Metrics

JobState = Literal["absent", "running", "succeeded", "failed"]
OVER = ("Promoted", "Rejected", "RolledBack", "Superseded")
"""Phases in which a release wants nothing any more."""


@dataclass(frozen=True)
class Live:
    """The service's ServingConfig: who answers users now, and whether every ready replica says so."""

    resource_version: str
    generation: int
    serving: str
    candidate: str | None
    weight_percent: int
    acknowledged: bool
    waiting_for: str = ""
    """A clause naming the replicas that have not applied it."""
    served: Mapping[str, str] = field(default_factory=dict)
    """`content_digest` by release, of those that had all traffic; an earlier version stored none."""
    candidate_uid: str = ""


@dataclass(frozen=True)
class Problem:
    """A reference that does not hold. `heals`: it may yet appear; otherwise only another release can put it right."""

    reason: str
    message: str
    heals: bool


@dataclass(frozen=True)
class Sibling:
    """Another release of the same service."""

    name: str
    phase: str
    created: str
    paused: bool
    serves: bool = False
    """Its status says that it answers users."""
    generation: int = 0
    """Of the ServingConfig that its status is about."""
    goes_back_to: str = ""


@dataclass(frozen=True)
class Seen:
    """One look. Evidence fields are None when the phase asks for none."""

    object: Manifest
    spec: ReleaseSpec | str
    """A str says why it cannot be parsed."""
    status: ReleaseStatus
    live: Live | Unreadable | None
    siblings: tuple[Sibling, ...] | Unreadable
    problems: tuple[Problem, ...] | Unreadable
    cold: tuple[str, ...] = ()
    """Model versions of this release that are not warm, as `pool/version`."""
    cold_target: tuple[str, ...] = ()
    """The same for the rollback target; a target that is gone, and content of it that is missing, are named here too."""
    target_reachable: bool = True
    """Whether the rollback target's primary model has a ready replica, or nobody knows."""
    target_content: str | None = None
    """Digest of what the rollback target is known to have served."""
    job: JobState = "absent"
    report: object | None = None
    """The offline report as stored, whatever it is; Unreadable when PostgreSQL did not answer."""
    tally: Tally | Unreadable | None = None
    metrics: Metrics | None = None

    @property
    def name(self) -> str:
        return self.object["metadata"]["name"]

    @property
    def uid(self) -> str:
        return self.object["metadata"]["uid"]

    @property
    def content(self) -> str | None:
        """Digest of what this release declares; None when it cannot be read."""
        return None if isinstance(self.spec, str) else content_digest(self.spec)

    @property
    def is_serving(self) -> bool:
        """This very content, not only its name: what is made again under the name of what serves does not serve."""
        if not isinstance(self.live, Live) or self.live.serving != self.name:
            return False
        return self.content is None or self.live.served.get(self.name, self.content) == self.content

    @property
    def is_candidate(self) -> bool:
        """This very object: evidence belongs to a uid (R-05)."""
        if not isinstance(self.live, Live) or self.live.candidate != self.name:
            return False
        return self.live.candidate_uid in ("", self.uid)

    @property
    def has_namesakes_traffic(self) -> bool:
        """The candidate is a Release of this name that was deleted."""
        return isinstance(self.live, Live) and self.live.candidate == self.name and not self.is_candidate

    @property
    def weight(self) -> int:
        """Percent of traffic that is committed to this release now."""
        if self.is_serving:
            return 100
        return self.live.weight_percent if self.is_candidate and isinstance(self.live, Live) else 0


def salt(uid: str, attempt: int) -> str:
    """Assignment's salt: the same for an attempt, another for the next (R-33)."""
    return f"{uid}/{attempt}"


def parse_time(text: str | None) -> datetime | None:
    """An RFC 3339 timestamp of ours."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None


def entered(status: ReleaseStatus, phase: str) -> datetime | None:
    """When the present attempt last entered `phase`: entries of earlier attempts lie before its Checks."""
    for entry in reversed(status.history):
        if entry.phase == phase:
            return parse_time(entry.at)
        if entry.phase == "Checks":
            return None
    return None


def phase_of(status: ReleaseStatus, *, is_candidate: bool, is_serving: bool) -> Phase:
    """The phase as traffic shows it: the ServingConfig is the commit point, so a status that missed its write, or one that is
    ahead of a restored pointer, gives way (K-11, K-15)."""
    if is_serving and status.phase not in OVER:
        return "Bake"
    if is_candidate and status.phase not in ("Held", "Rejected", "RolledBack", "Superseded"):
        return "Canary"
    return status.phase
