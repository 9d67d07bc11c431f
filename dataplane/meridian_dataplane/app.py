"""The two ASGI applications: the public one, and the one for probes and metrics on a port of its own."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from meridian_dataplane import routes, trace
from meridian_dataplane.described import described
from meridian_dataplane.plane import Plane
from meridian_dataplane.refusals import Refusal, not_found, problem
from meridian_dataplane.telemetry import log_failure


def public_app(plane: Plane) -> ASGIApp:
    """What tenants reach. Nothing for debugging is in it (H-33)."""

    async def on_http(_: Request, failure: Exception) -> Response:
        status = failure.status_code if isinstance(failure, HTTPException) else 500
        refusal = Refusal(405, "method", "Use another method.") if status == 405 else not_found()
        return routes.refused(refusal, trace.new_request_id(), plane)

    async def on_fault(_: Request, failure: Exception) -> Response:
        log_failure("request_failed", failure)
        refusal = Refusal(500, "internal", "Something went wrong.")
        return routes.refused(refusal, trace.new_request_id(), plane)

    app = described(routes.answers(plane), routes.feedback(plane), routes.documents(plane))
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_fault)
    return _framed_once(app)


def _framed_once(app: ASGIApp) -> ASGIApp:
    """Refuses a body of two lengths before anything reads it, and closes: what follows is nobody's request (H-28)."""

    async def framed(scope: Scope, receive: Receive, send: Send) -> None:
        names = [name for name, _ in scope.get("headers", [])] if scope["type"] == "http" else []
        if b"content-length" in names and b"transfer-encoding" in names:
            status, headers, raw = problem(
                Refusal(400, "framing", "Send one length of the body."), trace.new_request_id()
            )
            await send(
                {"type": "http.response.start", "status": status, "headers": [*headers, (b"connection", b"close")]}
            )
            await send({"type": "http.response.body", "body": raw})
        else:
            await app(scope, receive, send)

    return framed


def admin_app(plane: Plane) -> ASGIApp:
    """Probes and metrics. Liveness depends on nothing but this process (IV-29)."""

    async def healthz(_: Request) -> Response:
        return Response("ok")

    async def readyz(_: Request) -> Response:
        plane.metrics.ready.set(1 if plane.ready else 0)
        return Response("ready" if plane.ready else "not ready", 200 if plane.ready else 503)

    async def metrics(_: Request) -> Response:
        plane.live.report_age()
        return Response(generate_latest(plane.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)],
    )
