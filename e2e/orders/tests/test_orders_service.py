"""The order service authorises for itself, and a foreign order is an unknown order."""

import time

import httpx
import pytest

from meridian_orders.service import Fault, ServiceSettings, build_app, parse_fault, seed_orders

TOKEN = "service-token-for-tests"


def client(**settings: object) -> httpx.AsyncClient:
    app = build_app(ServiceSettings(TOKEN, **settings))  # pyright: ignore[reportArgumentType]
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://orders")


async def get(order_id: str, tenant: str | None = "acme-eu", token: str = TOKEN, **settings):
    headers = {"authorization": f"Bearer {token}"} | ({"x-tenant": tenant} if tenant else {})
    async with client(**settings) as http:
        return await http.get(f"/orders/{order_id}", headers=headers)


async def test_own_order_comes_with_its_payments():
    order = (await get("A-77120")).json()
    assert order["status"] == "delivered"
    assert [(p["amountMinor"], p["currency"]) for p in order["payments"]] == [(4900, "EUR")] * 2
    assert "tenant" not in order and "internalFields" in order


@pytest.mark.parametrize("order_id", ["A-77120", "A-99999", "x", "a-77120", "%00", "A-77120%20"])
async def test_foreign_and_unknown_orders_answer_with_the_same_bytes(order_id):
    """T-32, T-33, T-37."""
    unknown, other = await get("nothing", tenant="globex"), await get(order_id, tenant="globex")
    assert other.status_code == 404
    assert (other.content, dict(other.headers)) == (unknown.content, dict(unknown.headers))


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", TOKEN[:-1]])
async def test_without_the_service_token_nothing_is_said(token):
    assert (await get("A-77120", token=token)).status_code == 401


async def test_tenant_is_required_and_given_once():
    assert (await get("A-77120", tenant=None)).status_code == 400
    async with client() as http:
        headers = [("authorization", f"Bearer {TOKEN}"), ("x-tenant", "a"), ("x-tenant", "b")]
        assert (await http.get("/orders/A-77120", headers=headers)).status_code == 400


async def test_tenants_are_compared_as_bytes():
    """T-17."""
    for tenant in ("ACME-EU", "acme-eu,globex", "*"):
        assert (await get("A-77120", tenant=tenant)).status_code == 404


async def test_faults_and_latency_show():
    assert (await get("A-77120", faults=(Fault("error", 1.0),))).status_code == 500
    garbage = await get("A-77120", faults=(Fault("garbage", 1.0),))
    with pytest.raises(ValueError):
        garbage.json()
    start = time.monotonic()
    await get("A-77120", latency_ms=20.0, faults=(Fault("slow", 1.0),))
    assert time.monotonic() - start >= 0.2


@pytest.mark.parametrize("text", ["", "error", "error:2", "worse:1", "error:x"])
def test_a_fault_that_cannot_be_meant_is_refused(text):
    with pytest.raises(ValueError, match="fault"):
        parse_fault(text)


def test_an_empty_service_token_does_not_start():
    with pytest.raises(ValueError, match="token"):
        build_app(ServiceSettings(""))


def test_the_seed_holds_two_tenants_and_hostile_notes():
    orders = seed_orders()
    assert len(orders) == 20
    assert {tenant for tenant, _ in orders} == {"acme-eu", "globex"}
    assert sum("instructions" in o["note"] or "SYSTEM" in o["note"] for o in orders.values()) >= 2
