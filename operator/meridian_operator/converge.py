"""One pass over one object: observe, decide, act, report. Nothing here knows a kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar

from meridian_api.meta import CONDITIONS
from meridian_operator import metrics
from meridian_operator.cluster import (
    Cluster,
    ClusterError,
    ForeignOwner,
    Key,
    Manifest,
    NotFound,
    Refused,
    Unreadable,
)
from meridian_operator.conditions import Say, conditions, cut, timestamp
from meridian_operator.logs import log
from meridian_operator.plan import EnsureEpoch, EnsureTenant, EventNote, Plan
from meridian_operator.settings import Settings


class Deposed(Exception):
    """This process does not hold the Lease (any more); nothing may be written."""


class StoreError(Exception):
    """PostgreSQL refused an action or did not answer; nothing is known about its effect."""


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


async def converge(key: Key, kind: Kind[Any], world: World) -> timedelta | None:
    """One pass. Answers when to look again (None: the object is gone).

    Raises ClusterError, StoreError or Deposed when it could not be read or an action failed; the caller tries again later.
    """
    world.fence()
    seen = await kind.observe(key, world)
    if seen is None:
        return None
    if isinstance(seen, Unreadable):
        raise StoreError(f"{seen.source}: {seen.why}")
    plan = kind.decide(seen, world.clock())
    try:
        await act(plan, seen.object, world)
    except (Refused, ForeignOwner) as error:
        if key.kind != "ServingConfig":  # its status belongs to the replicas that poll
            await _report(seen.object, _told(seen.object, error, world.clock()), (), world)
        raise
    if await _report(seen.object, plan.status, plan.events, world):
        log("status", key=str(key), because=plan.because, phase=(plan.status or {}).get("phase"))
        metrics.status_writes.labels(key.kind).inc()
    return plan.look_again


async def act(plan: Plan, owner: Manifest, world: World) -> None:
    """Carry out `plan` in its order. The first failure ends it: what comes later may depend on it."""
    for action in plan.store:
        world.fence()
        await world.store.ensure(action)
    for manifest in plan.apply:
        world.fence()
        await world.cluster.apply(manifest)
    if plan.evaluation is not None:
        from meridian_operator.release.evaluate import start  # compiles and signs, like a switch

        world.fence()
        await start(plan.evaluation, world, owner)
    if plan.switch is not None:
        from meridian_operator.serving.commit import commit  # serving/ compiles and signs; only a switch needs it

        world.fence()
        await commit(plan.switch, world, owner["metadata"]["namespace"])
        log("switch", key=f"ServingConfig/{plan.switch.service}", because=plan.switch.because)
    for ref in plan.delete:
        world.fence()
        await world.cluster.delete(ref)


async def _report(seen: Manifest, status: dict[str, Any] | None, events: tuple[EventNote, ...], world: World) -> bool:
    """The only status write of a pass: skipped when it says nothing new, refused (Conflict) when `seen` is not the live object."""
    if status is None or same(status, seen.get("status") or {}):
        return False
    world.fence()
    try:
        await world.cluster.replace_status({**seen, "status": status})
    except NotFound:
        return False
    for note in events:
        await _post(seen, note, world)
    return True


def same(status: dict[str, Any], stored: dict[str, Any]) -> bool:
    """Whether both say the same; an empty list or object counts as absent, since the API server may drop either (K-27)."""
    return _plain(status) == _plain(stored)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: p for k, v in value.items() if (p := _plain(v)) not in (None, {}, [])}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def _told(seen: Manifest, error: ClusterError, now: datetime) -> dict[str, Any]:
    """The stored status, with Stalled saying what was refused; the next pass that succeeds takes it back."""
    status = dict(seen.get("status") or {})
    reason = "ForeignOwner" if isinstance(error, ForeignOwner) else "ActionRefused"
    generation = int(seen["metadata"].get("generation", 0))
    (stalled,) = conditions(status, (Say("Stalled", True, reason, str(error)),), generation=generation, now=now)
    kept = [c for c in status.get("conditions") or () if c["type"] != "Stalled" and c["type"] in CONDITIONS]
    return {**status, "conditions": [*kept, stalled]}


async def _post(about: Manifest, note: EventNote, world: World) -> None:
    """An Event, as a courtesy to people: its failure is nobody's concern."""
    meta, now = about["metadata"], timestamp(world.clock())
    name = f"{meta['name'][:80]}.{meta['resourceVersion']}.{note.reason.lower()[:40]}"
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": meta["namespace"], "name": name},
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
        },
        "type": note.type,
        "reason": note.reason,
        "message": cut(note.message),
        "source": {"component": "meridian-operator"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    try:
        await world.cluster.create(event)
    except ClusterError as error:
        log("event-lost", key=f"{about['kind']}/{meta['name']}", error=type(error).__name__)
