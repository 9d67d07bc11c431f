"""The model's words as they come. Takes a Route; gives Pieces; raises ModelFailed when no target answers; feeds the breakers.

A fallback may start while there is no content, never after it: nothing is repeated, nothing is joined from two models (IV-26).
A model call is never retried on the same target.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from meridian_api.serving import Target
from meridian_dataplane.breaker import Health
from meridian_dataplane.calls import ModelCall, Piece, Route, StreamState, Usage
from meridian_dataplane.ports import Clock, Model, ModelFailed
from meridian_dataplane.run import Run
from meridian_dataplane.telemetry import Metrics, log

ABSTENTION = "I could not find this in the documents available to you."
"""What the system prompt asks for when nothing answers, and what we say ourselves when there is nothing to ask about."""
_CHARS_PER_TOKEN_AT_MOST = 16


async def stream(
    route: Route, run: Run, *, model: Model, health: Health, clock: Clock, metrics: Metrics
) -> AsyncGenerator[Piece, None]:
    """Pieces of one target's answer, the last with a finish reason."""
    grounded = route.prompt.grounded
    if not route.prompt.passages and not (grounded.tool and grounded.tool.live):
        # Without anything to rest on, only the model's memory could answer.
        run.move(StreamState.FIRST_CONTENT)
        run.usage = Usage()
        yield Piece(ABSTENTION, "stop")
        return
    manifest = grounded.pinned.manifest
    last = ModelFailed("unreachable", "every target is cooling down")
    for target in route.targets:
        breaker = health.of(target, manifest.settings.model.breaker)
        if not breaker.healthy():
            continue
        breaker.started()
        call, began = _call(route, target), clock.monotonic()
        run.move(StreamState.DISPATCHED)
        run.target = target
        run.degraded = "full" if target == manifest.primary else "fallback_model"
        try:
            async with aclosing(_bounded(model.stream(call), route, run)) as pieces:
                async for piece in pieces:
                    yield piece
            breaker.succeeded()
            return
        except ModelFailed as failure:
            if _is_the_requests(failure, clock.monotonic() - began, call):
                breaker.abandoned()
            else:
                breaker.failed()
            metrics.model_failures.labels(f"{target.pool}@{target.version}", failure.code).inc()
            log("model_failed", target=f"{target.pool}@{target.version}", code=failure.code)
            last = failure
            if run.has_content or failure.code == "deadline":
                raise
        except (GeneratorExit, asyncio.CancelledError):
            breaker.abandoned()
            raise
    raise last


def _is_the_requests(failure: ModelFailed, took_s: float, call: ModelCall) -> bool:
    """Whether the request brought it on itself; else one tenant's bad requests would take the target from all (G-16, G-23).

    A deadline is the target's only when the target had all the time that it may take for a first token.
    """
    return failure.code == "refused" or (failure.code == "deadline" and took_s < call.first_token_timeout_s)


async def _bounded(source: AsyncGenerator[Piece, None], route: Route, run: Run) -> AsyncGenerator[Piece, None]:
    """`source`, counted, and cut where an engine ignores the cap it was given (H-10)."""
    most = route.max_output_tokens * _CHARS_PER_TOKEN_AT_MOST
    async with aclosing(source) as pieces:
        async for piece in pieces:
            if piece.text and not run.has_content:
                run.move(StreamState.FIRST_CONTENT)
            left = most - run.received_chars
            run.received_chars += len(piece.text)
            run.usage = piece.usage or run.usage
            if len(piece.text) > left:
                yield Piece(piece.text[:left], "length", piece.usage)
                return
            yield piece


def _call(route: Route, target: Target) -> ModelCall:
    pinned = route.prompt.grounded.pinned
    return ModelCall(
        target=target,
        system=route.prompt.system,
        user=route.prompt.user,
        max_output_tokens=route.max_output_tokens,
        first_token_timeout_s=pinned.manifest.settings.model.first_token_timeout_ms / 1000,
        deadline_at=pinned.deadline_at,
        request_id=pinned.received.request_id,
        traceparent=pinned.received.traceparent,
        cache_salt=pinned.caller.tenant_id,
    )
