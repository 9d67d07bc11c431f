"""Two uvicorn servers in one loop and the way out: not ready, a beat, no new connections, streams to their end, the cut."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from meridian_dataplane.plane import Plane
from meridian_dataplane.telemetry import log

FIRST_REQUEST_S = 10.0
MAX_HEADER_BYTES = 32_768
_CUT_BEFORE_END_S = 2.0


class BoundedProtocol(H11Protocol):
    """h11 is the strict parser (H-28, H-32); a connection that sends no whole request in time is closed (H-23)."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._first = self.loop.call_later(FIRST_REQUEST_S, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._first.cancel()
        super().connection_lost(exc)

    def _too_slow(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


class _Server(uvicorn.Server):
    """Signals are ours: readiness has to go before the socket does."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def server(app: ASGIApp, host: str, port: int, grace_s: int) -> uvicorn.Server:
    """A server that shuts down within `grace_s` seconds of `should_exit`."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=1024,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=max(1, grace_s),
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )
    return _Server(config)


async def serve(plane: Plane, public: uvicorn.Server, admin: uvicorn.Server, *, beat_s: float, grace_s: float) -> int:
    """Serves until SIGTERM or SIGINT; the exit code."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, plane.leaving.set)
    async with asyncio.TaskGroup() as work:
        servers = [work.create_task(public.serve()), work.create_task(admin.serve())]
        ending = [loop.create_task(e.wait()) for e in (plane.leaving, plane.failed)]
        await asyncio.wait([*servers, *ending], return_when=asyncio.FIRST_COMPLETED)
        code = 1 if plane.failed.is_set() or any(task.done() for task in servers) else 0
        plane.leaving.set()
        log("leaving", code=code)
        if code == 0:
            await asyncio.sleep(beat_s)
        await _drain(plane, public, servers[0], grace_s - beat_s)
        admin.should_exit = True
        for task in ending:
            task.cancel()
    return code


async def _drain(plane: Plane, public: uvicorn.Server, serving: asyncio.Task[None], left_s: float) -> None:
    """Streams run to their end; what is left shortly before the grace ends is told so (H-35, IV-28)."""
    public.should_exit = True
    cut_after = max(0.0, left_s - _CUT_BEFORE_END_S)
    await asyncio.wait([serving], timeout=cut_after)
    if not serving.done():
        plane.admission.draining = True
        plane.cut.set()
        await asyncio.wait([serving], timeout=_CUT_BEFORE_END_S)
    log("drained", count=plane.admission.in_flight)
