"""One pass: in order, fenced, with one status write that says something new or is not sent."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
from operator_world import NAMESPACE, Place, key
from serving_world import manifest, tenant_wire

from meridian_operator.cluster import (
    ClusterError,
    Conflict,
    ForeignOwner,
    Key,
    Manifest,
    Refused,
    Unreachable,
    Unreadable,
    owner_reference,
    ref,
)
from meridian_operator.conditions import Say, conditions
from meridian_operator.converge import Deposed, Kind, StoreError, World, converge
from meridian_operator.logs import log
from meridian_operator.plan import EnsureTenant, EventNote, Plan

ACME = key("TenantPolicy", "acme")


@dataclass(frozen=True)
class Seen:
    object: Manifest
    plan: Plan = field(default_factory=lambda: Plan("test"))


def kind(plan: Plan | None = None) -> Kind[Seen]:
    async def observe(at: Key, world: World) -> Seen | None:
        live = world.cluster.objects.get(tuple(at))  # type: ignore[attr-defined]
        return None if live is None else Seen(dict(live))

    def decide(seen: Seen, now: datetime) -> Plan:
        return plan or Plan("test")

    return Kind("TenantPolicy", observe, decide)


@pytest.fixture
def place() -> Place:
    place = Place()
    place.tenant("acme")
    return place


def child(owner: Manifest, name: str = "child") -> Manifest:
    meta = {"name": name, "namespace": NAMESPACE, "ownerReferences": [owner_reference(owner)]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"a": "1"}}


async def test_what_is_gone_is_gone() -> None:
    assert await converge(ACME, kind(), Place().world) is None


async def test_without_the_lease_nothing_is_even_read(place: Place) -> None:
    def deposed() -> int:
        raise Deposed("no")

    world = World(place.cluster, place.store, place.world.settings, place.world.clock, deposed)
    with pytest.raises(Deposed):
        await converge(ACME, kind(), world)


async def test_a_lease_lost_in_the_middle_stops_before_the_next_write(place: Place) -> None:
    """K-06."""
    left = iter([1, 1])

    def fence() -> int:
        try:
            return next(left)
        except StopIteration:
            raise Deposed("lost") from None

    owner = place.live("TenantPolicy", "acme")
    plan = Plan("test", apply=(child(owner, "one"), child(owner, "two")), status={"phase": "Onboarded"})
    world = World(place.cluster, place.store, place.world.settings, place.world.clock, fence)
    with pytest.raises(Deposed):
        await converge(ACME, kind(plan), world)
    assert place.cluster.writes == [("apply", "ConfigMap", "one")]


async def test_actions_come_in_the_plans_order_and_the_status_last(place: Place) -> None:
    owner = place.live("TenantPolicy", "acme")
    old = place.cluster.put(child(owner, "old"))
    plan = Plan(
        "test",
        store=(EnsureTenant("acme"),),
        apply=(child(owner, "new"),),
        delete=(ref(old),),
        status={"phase": "Onboarded"},
        events=(EventNote("Normal", "Onboarded", "done"),),
    )
    await converge(ACME, kind(plan), place.world)
    assert [(verb, kind) for verb, kind, _ in place.cluster.writes] == [
        ("apply", "ConfigMap"),
        ("delete", "ConfigMap"),
        ("replace_status", "TenantPolicy"),
        ("create", "Event"),
    ]
    assert place.store.tenants == {"acme": set()}


@pytest.mark.parametrize("error", [Unreachable("503"), Conflict("changed")])
async def test_an_action_that_failed_claims_nothing(place: Place, error: ClusterError) -> None:
    """K-15: the status never says what did not happen."""
    plan = Plan("test", apply=(child(place.live("TenantPolicy", "acme")),), status={"phase": "Onboarded"})
    place.cluster.fail = lambda verb, kind, name: error if verb == "apply" else None
    with pytest.raises(type(error)):
        await converge(ACME, kind(plan), place.world)
    assert "status" not in place.live("TenantPolicy", "acme")


@pytest.mark.parametrize(
    ("error", "reason"), [(Refused("admission says no"), "ActionRefused"), (ForeignOwner("taken"), "ForeignOwner")]
)
async def test_a_refusal_is_told_once_and_taken_back_by_the_next_success(
    place: Place, error: ClusterError, reason: str
) -> None:
    generation_1 = conditions({}, (Say("Stalled", False, "UpToDate"),), generation=1, now=place.now)
    plan = Plan("test", apply=(child(place.live("TenantPolicy", "acme")),), status={"conditions": generation_1})
    place.cluster.fail = lambda verb, kind, name: error if verb == "apply" else None
    for _ in range(3):
        with pytest.raises(type(error)):
            await converge(ACME, kind(plan), place.world)
    assert [w[0] for w in place.cluster.writes] == ["replace_status"]
    stalled = place.condition("TenantPolicy", "acme", "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", reason)
    place.cluster.fail = lambda verb, kind, name: None
    await converge(ACME, kind(plan), place.world)
    assert place.condition("TenantPolicy", "acme", "Stalled")["status"] == "False"


async def test_a_status_that_says_nothing_new_is_not_written(place: Place) -> None:
    """K-27: empty and absent are the same."""
    plan = Plan("test", status={"phase": "Pending", "conditions": [], "message": None, "servingIn": []})
    await converge(ACME, kind(plan), place.world)
    await converge(ACME, kind(plan), place.world)
    assert [w[0] for w in place.cluster.writes] == ["replace_status"]


async def test_a_status_decided_on_an_old_view_is_refused(place: Place) -> None:
    """K-13: a hold that was written in between survives."""

    async def stale(at: Key, world: World) -> Seen:
        old = await world.cluster.get(*at)
        place.put("TenantPolicy", "acme", {**tenant_wire("acme"), "overflow": True})
        return Seen(old)

    late = Kind("TenantPolicy", stale, lambda seen, now: Plan("test", status={"phase": "Onboarded"}))
    with pytest.raises(Conflict):
        await converge(ACME, late, place.world)
    assert place.live("TenantPolicy", "acme")["spec"]["overflow"] is True


async def test_what_could_not_be_observed_is_tried_again(place: Place) -> None:
    async def blind(at: Key, world: World) -> Unreadable:
        return Unreadable("TenantPolicy/acme", "503")

    with pytest.raises(StoreError):
        await converge(ACME, Kind("TenantPolicy", blind, lambda seen, now: Plan("never")), place.world)


async def test_a_lost_event_changes_nothing(place: Place) -> None:
    plan = Plan("test", status={"phase": "Onboarded"}, events=(EventNote("Normal", "Onboarded", "done"),))
    place.cluster.fail = lambda verb, kind, name: Unreachable("503") if kind == "Event" else None
    await converge(ACME, kind(plan), place.world)
    assert place.live("TenantPolicy", "acme")["status"] == {"phase": "Onboarded"}


async def test_children_left_behind_by_a_deleted_owner_are_not_taken_over(place: Place) -> None:
    """K-23: --cascade=orphan; adoption is by uid, never by name."""
    owner = place.live("TenantPolicy", "acme")
    place.cluster.put(child(owner))
    reborn = manifest("TenantPolicy", "acme", tenant_wire("acme"), uid="another")
    with pytest.raises(ForeignOwner):
        await place.cluster.apply({**child(reborn), "data": {"a": "2"}})


def test_log_lines_hold_allow_listed_fields_only_and_are_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    log("test", key="TenantPolicy/m/acme", detail="x\ny" * 1000)
    line: dict[str, Any] = json.loads(capsys.readouterr().err)
    assert line["event"] == "test" and len(line["detail"]) <= 300 and "\n" not in line["detail"]
    with pytest.raises(ValueError, match="token"):
        log("test", token="secret")
