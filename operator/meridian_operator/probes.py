"""The operator's HTTP server: probes, metrics, and what serving/ adds. Ready never means leader."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from meridian_operator import metrics

PERIODS = 3
"""Resync periods without a completed one before the process counts as hung."""


def application(
    age: Callable[[], float | None], ready: Callable[[], bool], period: float, more: Iterable[web.RouteDef] = ()
) -> web.Application:
    """`age`: seconds since the last sign of life that matters (a completed list); None while there is none to expect yet."""

    async def healthz(_: web.Request) -> web.Response:
        seconds = age()
        if seconds is not None and seconds > PERIODS * period:
            return web.Response(status=503, text=f"no completed list for {seconds:.0f} s\n")
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n") if ready() else web.Response(status=503, text="not connected yet\n")

    async def scrape(_: web.Request) -> web.Response:
        metrics.resync_age.set(age() or 0.0)
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application(client_max_size=64 * 1024)
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", scrape), *more])
    return app


async def serve(app: web.Application, port: int) -> web.AppRunner:
    """Listen on all addresses; the caller cleans the runner up."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner
