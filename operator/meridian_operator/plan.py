"""What a `decide` answers: a frozen, printable value. `converge.act` carries it out in the order of the fields here."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from meridian_operator.cluster import Manifest, Ref

SOON = timedelta(seconds=2)
"""While something moves."""
REST = timedelta(seconds=30)
"""When nothing does; the resync wakes everything at that pace anyway."""


@dataclass(frozen=True)
class Switch:
    """A change of traffic, carried out by `serving.commit.commit` as one write of the service's ServingConfig."""

    service: str
    serving: str
    """Release that answers users."""
    candidate: str | None
    weight_percent: int
    salt: str
    expected_resource_version: str | None
    """Of the ServingConfig that `observe` saw; None: there was none. Another live one raises Conflict."""
    because: str
    content: str | None = None
    """`content_digest` that the release which gets traffic must have at the write, too; None where no release gets more."""
    uid: str = ""
    """Of the candidate."""


@dataclass(frozen=True)
class EnsureTenant:
    """Partitions and row-level security for a tenant; idempotent."""

    tenant: str


@dataclass(frozen=True)
class EnsureEpoch:
    """A tenant's partition for one index epoch; idempotent."""

    tenant: str
    epoch: str


@dataclass(frozen=True)
class EvaluationRequest:
    """Start the offline evaluation of a release's attempt: compile its snapshot, sign it, create one Job of that name."""

    release: str
    uid: str
    attempt: int
    service: str
    golden_config_map: str
    job: str


@dataclass(frozen=True)
class EventNote:
    """A Kubernetes Event on the object; posted only along with a changed status, so that none floods."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True)
class Plan:
    """Carried out top to bottom; the first failure ends it (no status is written then, except a condition that says why)."""

    because: str
    """Name of the rule that chose, for logs."""
    store: tuple[EnsureTenant | EnsureEpoch, ...] = ()
    apply: tuple[Manifest, ...] = ()
    """Owned children, by server-side apply."""
    evaluation: EvaluationRequest | None = None
    switch: Switch | None = None
    delete: tuple[Ref, ...] = ()
    status: dict[str, Any] | None = None
    """The whole status in wire form; None leaves it alone. Not written when semantically equal (K-27)."""
    events: tuple[EventNote, ...] = ()
    look_again: timedelta = REST
