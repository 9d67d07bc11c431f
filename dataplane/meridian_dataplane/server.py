"""Two uvicorn servers in one loop and the way out: not ready, a beat, no new connections, streams to their end, the cut."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from meridian_dataplane import trace
from meridian_dataplane.plane import Plane
from meridian_dataplane.refusals import Refusal, problem
from meridian_dataplane.telemetry import log

REQUEST_S = 10.0
"""For the head of a request, from the connection's beginning or from its first byte."""
LINGER_S = 2.0
MAX_HEADER_BYTES = 32_768
_CUT_BEFORE_END_S = 2.0
_FOLDED = re.compile(rb"\n[ \t]")
_LENGTH = re.compile(rb"\ncontent-length:", re.IGNORECASE)
_LENGTHS = re.compile(rb"\ncontent-length:[^\n]*,", re.IGNORECASE)
_MALFORMED = Refusal(400, "malformed", "This is not one HTTP request.")
_TOO_LARGE = Refusal(
    431, "headers_too_large", f"The line of the request and its headers may have {MAX_HEADER_BYTES} bytes."
)


class OneWayConnection(h11.Connection):
    """h11, and no head of a request that two readers may read differently: it joins folded lines and equal lengths (H-32)."""

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        unread = self.trailing_data[0] if self.their_state is h11.IDLE else b""
        event = super().next_event()
        if isinstance(event, h11.Request):
            head = unread[: len(unread) - len(self.trailing_data[0])]
            if len(head) > MAX_HEADER_BYTES:
                raise h11.RemoteProtocolError("too large", error_status_hint=431)
            if _FOLDED.search(head) or len(_LENGTH.findall(head)) > 1 or _LENGTHS.search(head):
                raise h11.RemoteProtocolError("ambiguous")
        return event


class BoundedProtocol(H11Protocol):
    """h11 is the strict parser (H-28, H-32); a connection that sends no whole request in time is closed (H-23)."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn = OneWayConnection(h11.SERVER, MAX_HEADER_BYTES)
        self._application, self.app = self.app, self._closing_early
        self._waiting: asyncio.TimerHandle | None = None
        self._lingering = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            return
        super().data_received(data)
        # Any byte ends the time for which a connection may be idle; from the first one of a head its own time runs.
        if self.conn.their_state is h11.IDLE and not self._lingering:
            self._wait_for_request()

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state is not h11.IDLE and not self._lingering:
            self._wait_no_more()

    def on_response_complete(self) -> None:
        if self._lingering:
            self.server_state.total_requests += 1
        else:
            super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """What is no request gets a problem like every other refusal, and time to read it."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        too_large = getattr(sys.exception(), "error_status_hint", 400) == 431
        status, headers, raw = problem(_TOO_LARGE if too_large else _MALFORMED, trace.new_request_id())
        for event in (
            h11.Response(status_code=status, headers=[*headers, CLOSE_HEADER], reason=STATUS_PHRASES[status]),
            h11.Data(data=raw),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.linger()

    def linger(self) -> None:
        """Half-closes, and drops what still comes: a socket closed with bytes unread resets what the client has not read yet."""
        if self._lingering or self.transport.is_closing():
            return
        self._lingering = True
        self._unset_keepalive_if_required()
        self._wait_no_more()
        self.transport.write_eof()
        self.flow.resume_reading()
        self._waiting = self.loop.call_later(LINGER_S, self.transport.abort)

    async def _closing_early(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application. A response to a request that is still being sent is the connection's last (H-23)."""

        async def last(message: Message) -> None:
            if message["type"] == "http.response.start" and self.conn.their_state is h11.SEND_BODY:
                self.cycle.transport = cast("asyncio.Transport", _Lingering(self.transport, self.linger))
                message = {**message, "headers": [*message.get("headers", []), CLOSE_HEADER]}
            await send(message)

        await self._application(scope, receive, last)

    def _wait_for_request(self) -> None:
        if self._waiting is None:
            self._waiting = self.loop.call_later(REQUEST_S, self._too_slow)

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _too_slow(self) -> None:
        self._waiting = None
        if not self.transport.is_closing():
            self.transport.close()


class _Lingering:
    """A transport as one response uses it, that closes in time."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write, self.is_closing, self.close = transport.write, transport.is_closing, close


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
