"""One pass over one object: observe, decide, act, report. Nothing here knows a kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar

from meridian_operator.cluster import Cluster, Key, Manifest, Unreadable
from meridian_operator.plan import EnsureEpoch, EnsureTenant, Plan
from meridian_operator.settings import Settings


class Deposed(Exception):
    """This process does not hold the Lease (any more); nothing may be written."""


class Store(Protocol):
    """PostgreSQL for observers and actors. Rows are dicts."""

    async def read(self, sql: str, parameters: tuple[object, ...] = ()) -> list[dict[str, Any]] | Unreadable:
        """Rows, as `meridian_evidence` sees them; Unreadable when PostgreSQL does not answer in 5 s or the query fails."""
        ...

    async def ensure(self, action: EnsureTenant | EnsureEpoch) -> None:
        """DDL as the owner; idempotent. Raises StoreError."""
        ...


@dataclass(frozen=True)
class World:
    """What observers read and actors write through."""

    cluster: Cluster
    store: Store
    settings: Settings
    clock: Callable[[], datetime]
    """Aware, UTC."""
    fence: Callable[[], int]
    """The lease epoch of this leader, to go into every ServingConfig. Raises Deposed: call it right before a write."""


class Seen(Protocol):
    """What every `observe` returns has at least this."""

    @property
    def object(self) -> Manifest:
        """The object itself, as read: its resourceVersion guards the status write."""
        ...


S = TypeVar("S", bound=Seen)


@dataclass(frozen=True)
class Kind(Generic[S]):
    """One of our kinds. `observe` answers None when the object is gone, and Unreadable when it could not be read."""

    name: str
    observe: Callable[[Key, World], Awaitable[S | None | Unreadable]]
    decide: Callable[[S, datetime], Plan]


async def converge(key: Key, kind: Kind[Any], world: World) -> timedelta:
    """One pass. Answers when to look again; raises ClusterError, StoreError or Deposed when an action failed."""
    raise NotImplementedError
