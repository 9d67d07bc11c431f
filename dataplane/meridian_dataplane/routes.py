"""The public routes. Each answers with a body, an event stream, or one problem; nothing is decided here but transport."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import cast

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from meridian_dataplane import trace
from meridian_dataplane.calls import DOC_ID, Event, Identified, Received
from meridian_dataplane.pipeline import answer
from meridian_dataplane.plane import Plane
from meridian_dataplane.ports import StoreUnavailable
from meridian_dataplane.refusals import Refusal, not_found, problem, unavailable
from meridian_dataplane.requests import Feedback, Question, authorization, known_parameters, read_body
from meridian_dataplane.stages.deliver import error_event
from meridian_dataplane.stages.identify import identify
from meridian_dataplane.stages.settle import ShuttingDown
from meridian_dataplane.telemetry import log_failure

PING_S = 15.0
SEND_S = 10.0
"""A client that reads nothing for this long has left."""
_STORE_S = 1.0
_RECORD_LAG_S = 0.25
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]

_TERMINAL = ("done", "error")
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

Handler = Callable[[Request, Received], Awaitable[Response]]


def answers(plane: Plane) -> Callable[[Request], Awaitable[Response]]:
    """POST /v1/answers"""

    async def handle(request: Request, received: Received) -> Response:
        _identified(received, plane)  # whoever shows no good token has no body read; it may be revoked meanwhile
        asked = cast("Question", await read_body(request, Question))
        whole = Received(
            received.request_id,
            received.traceparent,
            received.authorization,
            asked.question,
            asked.conversation_id,
            asked.locale,
            received.arrived_at,
        )
        return _AnswerResponse(whole, plane)

    return _refusing(plane, handle)


def feedback(plane: Plane) -> Callable[[Request], Awaitable[Response]]:
    """POST /v1/feedback"""

    async def handle(request: Request, identified: Identified) -> Response:
        caller = identified.caller
        given = cast("Feedback", await read_body(request, Feedback))

        async def note() -> bool:
            return await plane.records.outcome(
                tenant=caller.tenant_id,
                subject=caller.subject,
                request_id=given.request_id,
                outcome=given.outcome,
                at=plane.clock.now(),
            )

        try:
            async with asyncio.timeout(_STORE_S * 3):
                if not await note():
                    # The record may be on its way yet, at another replica: it held `done` back for a moment only.
                    await asyncio.sleep(_RECORD_LAG_S)
                    if not await note():
                        raise not_found()
        except (StoreUnavailable, TimeoutError):
            raise unavailable("store_unavailable", "Feedback cannot be stored at the moment.") from None
        return Response(status_code=202, headers=_headers(identified.received))

    return _refusing(plane, _counted(plane, handle))


def documents(plane: Plane) -> Callable[[Request], Awaitable[Response]]:
    """GET /v1/documents/{docId}?version=N"""

    async def handle(request: Request, identified: Identified) -> Response:
        doc_id, version = request.path_params["doc_id"], _version(request)
        if not DOC_ID.fullmatch(doc_id):
            raise not_found()
        caller, snapshot = identified.caller, identified.snapshot
        manifests = [snapshot.serving] + ([snapshot.candidate.manifest] if snapshot.candidate else [])
        epochs = {m.index.epoch: None for m in manifests if m.index.region in caller.tenant.allowed_regions}
        try:
            for epoch in epochs:
                found = await plane.documents.read(
                    tenant=caller.tenant_id,
                    groups=caller.groups,
                    epoch=epoch,
                    doc_id=doc_id,
                    version=version,
                    timeout_s=_STORE_S,
                )
                if found is not None:
                    body = {
                        "docId": found.doc_id,
                        "docVersion": found.doc_version,
                        "title": found.title,
                        "sourceUri": found.source_uri,
                        "text": found.text,
                        "current": found.current,
                    }
                    raw = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
                    return Response(raw, media_type="application/json", headers=_headers(identified.received))
        except (StoreUnavailable, TimeoutError):
            raise unavailable("store_unavailable", "Documents cannot be read at the moment.") from None
        raise not_found()

    return _refusing(plane, _counted(plane, handle), "version")


def _counted(plane: Plane, handle: Callable[[Request, Identified], Awaitable[Response]]) -> Handler:
    """Whoever is known counts against the tenant's cap while the request runs, its body's arrival included."""

    async def counted(request: Request, received: Received) -> Response:
        identified = _identified(received, plane)
        with plane.admission.counted(identified.caller.tenant):
            return await handle(request, identified)

    return counted


def _refusing(plane: Plane, handle: Handler, *known: str) -> Callable[[Request], Awaitable[Response]]:
    """The one place where a Refusal becomes a response. `known` are the names that the query may have."""

    async def endpoint(request: Request) -> Response:
        request_id = trace.new_request_id()
        try:
            received = Received(
                request_id=request_id,
                traceparent=trace.continued(request.headers.getlist("traceparent")),
                authorization=authorization(request),
                question="",
                conversation_id=None,
                locale=None,
                arrived_at=plane.clock.monotonic(),
            )
            known_parameters(request, known)
            return await handle(request, received)
        except Refusal as refusal:
            return refused(refusal, request_id, plane)

    return endpoint


def refused(refusal: Refusal, request_id: str, plane: Plane) -> Response:
    plane.metrics.refusals.labels(refusal.code).inc()
    status, headers, raw = problem(refusal, request_id)
    response = Response(raw, status)
    response.raw_headers = headers
    return response


def frame(event: Event) -> bytes:
    """One event. Its data is one line of JSON, so no text in it can become framing (H-13, H-14)."""
    data = _encode(event.data)
    return f"event: {event.name}\ndata: {data}\n\n".encode()


class _AnswerResponse(Response):
    """Runs the pipeline while the client is there. Refusals before the first event are problems, later ends are events."""

    def __init__(self, received: Received, plane: Plane) -> None:
        super().__init__()
        self._received, self._plane = received, plane
        self._started = self._owes_done = self._ended = self._closed = False
        self._work = anyio.CancelScope()
        self._sent_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as work:
            self._work = work.cancel_scope
            # Noticed before the response starts too, so that nothing goes on for nobody (H-01, H-02).
            work.start_soon(self._until_gone, receive, work.cancel_scope)
            work.start_soon(self._ping, send)
            await self._produce(scope, receive, send)
            work.cancel_scope.cancel()

    async def _produce(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with answer(self._received, self._plane.watched(self._owe_done)) as events:
                await self._send_all(events, send)
        except Refusal as refusal:
            await refused(refusal, self._received.request_id, self._plane)(scope, receive, send)
        except ShuttingDown:
            await self._end(send, "shutting_down")
        except Exception as broken:  # noqa: BLE001
            log_failure("answer_failed", broken, request_id=self._received.request_id)
            if self._started:
                await self._end(send, "internal")
            else:
                internal = Refusal(500, "internal", "Something went wrong.")
                await refused(internal, self._received.request_id, self._plane)(scope, receive, send)

    async def _send_all(self, events: AsyncGenerator[Event, None], send: Send) -> None:
        """Raises ShuttingDown when the grace ends before the stream does."""
        was_cut = False
        async with anyio.create_task_group() as race:

            async def cut() -> None:
                nonlocal was_cut
                await self._plane.cut.wait()
                if not self._owes_done and not self._ended:
                    was_cut = True
                    race.cancel_scope.cancel()

            race.start_soon(cut)
            async with aclosing(events):
                async for event in events:
                    # From here on it may be on its way, whatever becomes of the sending: nothing may follow it (IV-28).
                    self._ended = event.name in _TERMINAL
                    await self._send(send, frame(event))
            race.cancel_scope.cancel()
        if was_cut:
            raise ShuttingDown
        await self._close(send)

    def _owe_done(self) -> None:
        """The record says that the answer is whole, so the client is told the same; the grace lasts for that (H-35)."""
        self._owes_done = True

    async def _send(self, send: Send, body: bytes) -> None:
        # Cancelled like any client that left; there is nobody to tell.
        limit = asyncio.get_running_loop().call_later(SEND_S, self._work.cancel)
        try:
            await self._start_and_send(send, body)
        finally:
            limit.cancel()

    async def _start_and_send(self, send: Send, body: bytes) -> None:
        if not self._started:
            self._started = True
            headers = [
                *_STREAM_HEADERS,
                (b"x-request-id", self._received.request_id.encode()),
                (b"traceparent", self._received.traceparent.encode()),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        self._sent_at = self._plane.clock.monotonic()
        await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _end(self, send: Send, code: str) -> None:
        if not self._ended:
            self._ended = True
            await self._send(send, frame(error_event(code, self._received.request_id)))
        await self._close(send)

    async def _close(self, send: Send) -> None:
        if not self._closed:
            self._closed = True
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _until_gone(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async def _ping(self, send: Send) -> None:
        """A comment between events when nothing else was sent, so that balancers do not cut the stream (H-07)."""
        while True:
            await asyncio.sleep(PING_S / 3)
            if self._started and self._plane.clock.monotonic() - self._sent_at >= PING_S:
                await self._send(send, b": ping\n\n")


def _identified(received: Received, plane: Plane) -> Identified:
    return identify(received, plane.snapshot(), stale=plane.live.stale, keys=plane.keys, clock=plane.clock)


def _version(request: Request) -> int | None:
    values = request.query_params.getlist("version")
    if len(values) > 1 or (values and not re.fullmatch(r"[0-9]{1,9}", values[0])):
        raise Refusal(400, "version", "version is one number.")
    return int(values[0]) if values else None


def _headers(received: Received) -> dict[str, str]:
    return {
        "x-request-id": received.request_id,
        "traceparent": received.traceparent,
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
    }
