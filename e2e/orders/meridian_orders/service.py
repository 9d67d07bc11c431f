"""The order service: one order of the caller's tenant, and the same 404 for every other.

It authorises for itself: the tool gateway's service token says who calls, `X-Tenant` for whom; an
order of another tenant answers with the bytes of an order that does not exist (T-32, T-33, T-37).
"""

import asyncio
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from itertools import count
from typing import Any, Literal, get_args

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

FaultKind = Literal["error", "slow", "hang", "garbage"]
SLOW_FACTOR = 10.0
HANG_S = 300.0
Orders = Mapping[tuple[str, str], Mapping[str, Any]]


@dataclass(frozen=True)
class Fault:
    """A fault that meets the share `rate` (0 to 1) of the calls."""

    kind: FaultKind
    rate: float


@dataclass(frozen=True)
class ServiceSettings:
    """`token` is what the tool gateway has to present; `latency_ms` is added to every look-up."""

    token: str
    latency_ms: float = 0.0
    faults: tuple[Fault, ...] = ()


def seed_orders() -> Orders:
    """The sample's orders by (tenant, order id)."""
    rows = json.loads(resources.files("meridian_orders").joinpath("seed.json").read_text("utf-8"))
    return {(row["tenant"], row["orderId"]): {k: v for k, v in row.items() if k != "tenant"} for row in rows}


def parse_fault(text: str) -> Fault:
    """`kind:rate`. Raises ValueError with what is allowed."""
    kind, _, rate = text.partition(":")
    if kind not in get_args(FaultKind):
        raise ValueError(f"unknown fault {kind!r}: one of {', '.join(get_args(FaultKind))}")
    try:
        share = float(rate)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"fault {text!r}: give kind:rate, rate between 0 and 1")
    return Fault(kind, share)  # pyright: ignore[reportArgumentType]


def build_app(settings: ServiceSettings, orders: Orders | None = None) -> Starlette:
    """Raises ValueError for an empty token: a service without authorisation does not start."""
    if not settings.token:
        raise ValueError("the service token is empty")
    held = seed_orders() if orders is None else orders
    calls = count()

    async def get_order(request: Request) -> Response:
        if not _authorised(request, settings.token):
            return JSONResponse({"error": "unauthorized"}, 401)
        tenants = request.headers.getlist("x-tenant")
        if len(tenants) != 1 or not tenants[0]:
            return JSONResponse({"error": "exactly one X-Tenant is required"}, 400)
        met = _faults_met(settings.faults, next(calls))
        slow = SLOW_FACTOR if "slow" in met else 1.0
        await asyncio.sleep(HANG_S if "hang" in met else settings.latency_ms / 1000 * slow)
        if "error" in met:
            return JSONResponse({"error": "internal"}, 500)
        if "garbage" in met:
            return Response(b'{"orderId": ', media_type="application/json")
        order = held.get((tenants[0], request.path_params["order_id"]))
        return JSONResponse({"error": "not_found"}, 404) if order is None else JSONResponse(order)

    async def health(_: Request) -> Response:
        return Response(status_code=200)

    return Starlette(routes=[Route("/orders/{order_id}", get_order), Route("/health", health)])


def _authorised(request: Request, token: str) -> bool:
    given = request.headers.getlist("authorization")
    expected = f"Bearer {token}"
    return len(given) == 1 and hmac.compare_digest(given[0].encode(), expected.encode())


def _faults_met(faults: tuple[Fault, ...], call: int) -> frozenset[str]:
    """The same calls of the same run meet the same faults."""
    return frozenset(f.kind for f in faults if _share(f.kind, call) < f.rate)


def _share(kind: str, call: int) -> float:
    return int.from_bytes(hashlib.sha256(f"{kind}\n{call}".encode()).digest()[:8], "big") / 2**64
