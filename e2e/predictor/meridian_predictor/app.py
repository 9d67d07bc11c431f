"""The HTTP face of the engine: chat completions, models, health, metrics."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from meridian_predictor.engine import (
    CutStream,
    Engine,
    EngineFault,
    chunks,
    finish,
    generation,
    whole_text,
)
from meridian_predictor.metrics import observe_slots
from meridian_predictor.slots import QueueFull
from meridian_predictor.wire import (
    DONE,
    MAX_BODY_BYTES,
    ChatRequest,
    Refused,
    chunk,
    completion,
    read_chat_request,
    usage,
    usage_chunk,
)

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]


def build_app(engine: Engine) -> Starlette:
    async def chat(request: Request) -> ASGIApp:
        try:
            asked = read_chat_request(await _bounded_body(request))
            _check_model(engine, asked.model)
            if engine.slots.refuses():
                raise QueueFull
        except Refused as refused:
            return JSONResponse(refused.body(), refused.status)
        except QueueFull:
            return _overloaded()
        return _while_connected(_streamed(engine, asked) if asked.stream else _whole(engine, asked))

    async def models(_: Request) -> Response:
        card = {
            "id": engine.settings.model_name,
            "object": "model",
            "created": engine.started,
            "owned_by": "meridian",
        }
        return JSONResponse({"object": "list", "data": [{**card, "version": engine.settings.version}]})

    async def health(_: Request) -> Response:
        return Response(status_code=503 if engine.draining else 200)

    async def version(_: Request) -> Response:
        return JSONResponse({"version": engine.settings.version})

    async def metrics(_: Request) -> Response:
        observe_slots(engine.metrics, engine.slots, engine.cached_tokens)
        return Response(generate_latest(engine.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/models", models),
            Route("/health", health),
            Route("/version", version),
            Route("/metrics", metrics),
        ],
        exception_handlers={404: _not_found, 405: _not_found},
    )


def _streamed(engine: Engine, asked: ChatRequest) -> Callable[[Send], Awaitable[None]]:
    """Headers go out with the first token's slot, then a chunk a token, the finish reason, the
    usage if asked for, the terminator."""

    async def run(send: Send) -> None:
        identity = _identity(engine)
        try:
            async with generation(engine, asked) as sequence:
                await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
                await _send_part(send, chunk(identity, {"role": "assistant", "content": ""}))
                async with aclosing(chunks(engine, sequence)) as made:
                    async for text in made:
                        await _send_part(send, chunk(identity, {"content": text}))
                await _send_part(send, chunk(identity, {}, finish(sequence, asked.max_tokens)))
                if asked.include_usage:
                    await _send_part(send, usage_chunk(identity, usage(sequence.prompt_tokens, sequence.made)))
                await _send_part(send, DONE)
        except CutStream:
            pass  # the body just ends: no finish reason, no [DONE]
        except EngineFault:
            await _send_json(send, *_FAILED)
            return
        except QueueFull:
            await _send_json(send, *_OVERLOADED)
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return run


def _whole(engine: Engine, asked: ChatRequest) -> Callable[[Send], Awaitable[None]]:
    async def run(send: Send) -> None:
        try:
            async with generation(engine, asked) as sequence:
                text = await whole_text(engine, sequence)
                reason = finish(sequence, asked.max_tokens)
                used = usage(sequence.prompt_tokens, sequence.made)
        except (CutStream, EngineFault):
            await _send_json(send, *_FAILED)
            return
        except QueueFull:
            await _send_json(send, *_OVERLOADED)
            return
        await _send_json(send, 200, completion(_identity(engine), text, reason, used))

    return run


def _while_connected(run: Callable[[Send], Awaitable[None]]) -> ASGIApp:
    """Runs an answer until it ends or its client leaves, in the queue, in prefill and in mid-stream
    alike (H-01, H-02, H-04)."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def client_left() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        answering = asyncio.ensure_future(run(send))
        leaving = asyncio.ensure_future(client_left())
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            answering.cancel()
            leaving.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)

    return app


async def _bounded_body(request: Request) -> bytes:
    """The body, read no further than its bound (H-21). Raises Refused."""
    received = bytearray()
    try:
        async for part in request.stream():
            received += part
            if len(received) > MAX_BODY_BYTES:
                raise Refused(413, f"the body is over {MAX_BODY_BYTES} bytes")
    except ClientDisconnect:
        raise Refused(400, "the client left while it sent the body") from None
    return bytes(received)


def _check_model(engine: Engine, model: str) -> None:
    settings = engine.settings
    if model not in (settings.model_name, f"{settings.model_name}@{settings.version}"):
        raise Refused(404, f"The model `{model}` does not exist.", "NotFoundError", "model")


def _identity(engine: Engine) -> Mapping[str, Any]:
    settings = engine.settings
    made = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": settings.model_name,
    }
    return {**made, "system_fingerprint": settings.version}


_FAILED = (500, Refused(500, "the engine failed", "InternalServerError").body())
_OVERLOADED = (503, Refused(503, "the queue is full", "ServiceUnavailableError").body())


def _overloaded() -> Response:
    return JSONResponse(_OVERLOADED[1], _OVERLOADED[0], headers={"retry-after": "1"})


async def _not_found(request: Request, exc: Exception) -> Response:
    status = getattr(exc, "status_code", 404)
    return JSONResponse(
        Refused(status, f"{request.method} {request.url.path} is not served", "NotFoundError").body(),
        status,
    )


async def _send_part(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _send_json(send: Send, status: int, value: Mapping[str, Any]) -> None:
    body = JSONResponse(value).body
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", b"application/json")],
        }
    )
    await send({"type": "http.response.body", "body": body, "more_body": False})
