"""TenantPolicy: onboarding is the store's doing, and visible; two policies of one tenant do not fight."""

from __future__ import annotations

import pytest
from operator_world import NAMESPACE, Place, key

from meridian_operator.converge import Kind, StoreError, converge
from meridian_operator.tenantpolicy.decide import decide
from meridian_operator.tenantpolicy.observe import observe

KIND = Kind("TenantPolicy", observe, decide)


async def look(place: Place, name: str = "acme", times: int = 2) -> None:
    for _ in range(times):
        await converge(key("TenantPolicy", name), KIND, place.world)


async def test_a_tenant_gets_its_partition_and_says_so() -> None:
    """S-61."""
    place = Place()
    place.tenant("acme")
    await look(place)
    assert place.store.tenants == {"acme": set()}
    status = place.live("TenantPolicy", "acme")["status"]
    assert status["phase"] == "Onboarded"
    assert {c["type"]: c["status"] for c in status["conditions"]} == {
        "Accepted": "True",
        "StoreReady": "True",
        "Serving": "False",
        "Reconciling": "False",
        "Stalled": "False",
        "Ready": "True",
    }
    assert {c["observedGeneration"] for c in status["conditions"]} == {1}


async def test_the_older_policy_of_a_tenant_wins_and_the_newer_names_it() -> None:
    place = Place()
    place.tenant("first", "acme")
    place.tenant("second", "acme")
    await look(place, "first")
    await look(place, "second")
    assert place.live("TenantPolicy", "first")["status"]["phase"] == "Onboarded"
    rejected = place.live("TenantPolicy", "second")["status"]
    assert rejected["phase"] == "Rejected" and "first" in rejected["message"]
    place.cluster.remove("TenantPolicy", NAMESPACE, "first")
    await look(place, "second")
    assert place.live("TenantPolicy", "second")["status"]["phase"] == "Onboarded"


async def test_a_silent_store_is_unknown_and_not_a_failure() -> None:
    place = Place()
    place.tenant("acme")
    await look(place)
    place.store.down = True
    await look(place)
    assert place.condition("TenantPolicy", "acme", "StoreReady")["status"] == "Unknown"
    assert place.live("TenantPolicy", "acme")["status"]["phase"] == "Onboarded"
    place.store.down = False
    await look(place)
    assert place.condition("TenantPolicy", "acme", "Ready")["status"] == "True"


async def test_a_partition_that_cannot_be_made_is_tried_again_and_nothing_is_claimed() -> None:
    place = Place()
    place.tenant("acme")

    async def refuse(action: object) -> None:
        raise StoreError("disk full")

    make, place.store.ensure = place.store.ensure, refuse  # type: ignore[method-assign]
    with pytest.raises(StoreError):
        await look(place, times=1)
    assert "status" not in place.live("TenantPolicy", "acme")
    place.store.ensure = make  # type: ignore[method-assign]
    await look(place)
    assert place.live("TenantPolicy", "acme")["status"]["phase"] == "Onboarded"


async def test_the_regions_that_serve_a_tenant_are_read_from_the_stored_configuration() -> None:
    place = Place()
    place.tenant("acme")
    place.serve("r1", "v1")
    await look(place)
    assert place.live("TenantPolicy", "acme")["status"]["servingIn"] == ["eu-1"]


async def test_a_tenant_that_is_being_deleted_is_let_go() -> None:
    """K-21: no finalizer, no write."""
    place = Place()
    policy = place.tenant("acme")
    place.cluster.put({**policy, "metadata": {**policy["metadata"], "deletionTimestamp": "2026-06-01T00:00:00Z"}})
    await look(place)
    assert place.cluster.writes == []
    assert "finalizers" not in policy["metadata"]
