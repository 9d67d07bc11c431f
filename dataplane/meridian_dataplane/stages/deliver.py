"""The events in order: `meta`, text, citations, and exactly one of `done` and `error`. Takes cited events; gives Events.

Here the ladder takes its step down: when no model answers and nothing was said yet, the retrieved passages are shown with their
citations and no prose (`snippets_only`), and the answer is named so (S-85, S-86).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from meridian_dataplane.calls import Event, Route, StreamState
from meridian_dataplane.ports import Clock, Documents, ModelFailed, StoreUnavailable
from meridian_dataplane.run import Run
from meridian_dataplane.stages.assemble import unmarked
from meridian_dataplane.stages.cite import chunk_of, citation, citations_event, still_valid
from meridian_dataplane.stages.settle import cost_usd, usage_of

_SNIPPET_CHARS = 600
_MESSAGES = {
    "citations_unverified": "The sources of this answer could not be checked, so do not rely on it.",
    "deadline_exceeded": "The answer took longer than it may.",
    "model_interrupted": "The answer was cut off and is not complete.",
    "model_unavailable": "No model can answer at the moment.",
    "shutting_down": "This replica is leaving; ask again.",
    "internal": "Something went wrong; the answer is not complete.",
}


async def deliver(
    cited: AsyncGenerator[Event, None],
    route: Route,
    run: Run,
    *,
    documents: Documents,
    clock: Clock,
    kept: Callable[[], Awaitable[None]],
) -> AsyncGenerator[Event, None]:
    """Ends with one terminal event, whatever happens to the model or the store; `done` after the answer's record is `kept`."""
    yield _meta(route)
    try:
        try:
            async with aclosing(cited) as events:
                async for event in events:
                    _first_text(event, run, clock)
                    yield event
        except ModelFailed:
            if run.has_content or not _may_show_snippets(route):
                raise
            async for event in _snippets(route, run, documents, clock):
                _first_text(event, run, clock)
                yield event
    except ModelFailed as failure:
        yield failed(_code(failure, run), run, route.prompt.grounded.pinned.received.request_id)
        return
    except StoreUnavailable:
        request_id = route.prompt.grounded.pinned.received.request_id
        yield failed("citations_unverified", run, request_id)
        return
    run.move(StreamState.TERMINAL)
    done = _done(route, run, clock)
    await kept()
    yield done


def failed(code: str, run: Run, request_id: str) -> Event:
    """The terminal event of a stream that is not complete."""
    run.error_code = code
    run.move(StreamState.INCOMPLETE)
    return error_event(code, request_id)


def error_event(code: str, request_id: str) -> Event:
    return Event("error", {"code": code, "message": _MESSAGES[code], "requestId": request_id})


def _code(failure: ModelFailed, run: Run) -> str:
    if failure.code == "deadline":
        return "deadline_exceeded"
    return "model_interrupted" if run.has_content else "model_unavailable"


def _first_text(event: Event, run: Run, clock: Clock) -> None:
    if event.name == "token" and run.first_text_at is None:
        run.first_text_at = clock.monotonic()


def _may_show_snippets(route: Route) -> bool:
    ladder = route.prompt.grounded.pinned.manifest.settings.ladder
    return bool(route.prompt.passages) and "snippets_only" in ladder


async def _snippets(route: Route, run: Run, documents: Documents, clock: Clock) -> AsyncGenerator[Event, None]:
    """Passages as they stand, checked like any citation before they are shown."""
    run.degraded, run.target = "snippets_only", None
    passages = route.prompt.passages
    current = await still_valid(passages, route.prompt, documents=documents, clock=clock)
    shown = [passage for passage in passages if chunk_of(passage) in current]
    for number, passage in enumerate(shown, 1):
        # A document that holds "[1]" must not look as if another one said it.
        text = unmarked(passage.text)[:_SNIPPET_CHARS]
        yield Event("token", {"text": f"{unmarked(passage.title)}: {text} [{number}]\n\n"})
    run.cited = tuple(chunk_of(passage) for passage in shown)
    run.citations_valid = len(shown)
    yield citations_event([citation(n, p) for n, p in enumerate(shown, 1)], [])


def _meta(route: Route) -> Event:
    pinned = route.prompt.grounded.pinned
    data: dict[str, object] = {
        "requestId": pinned.received.request_id,
        "release": pinned.manifest.release,
        "arm": pinned.arm,
        "generation": pinned.identified.snapshot.generation,
        "epoch": pinned.manifest.index.epoch,
        "traceparent": pinned.received.traceparent,
    }
    if pinned.identified.stale:
        data["stale"] = True
    return Event("meta", data)


def _done(route: Route, run: Run, clock: Clock) -> Event:
    pinned = route.prompt.grounded.pinned
    used = usage_of(run)
    began, now = pinned.received.arrived_at, clock.monotonic()
    data: dict[str, object] = {
        "requestId": pinned.received.request_id,
        "usage": {
            "inputTokens": used.input_tokens,
            "outputTokens": used.output_tokens,
            "cachedInputTokens": used.cached_input_tokens,
        },
        "costUsd": cost_usd(used, run.target),
        "degraded": run.degraded,
        "abstained": run.abstained,
        "ttftMs": round(((run.first_text_at or now) - began) * 1000, 1),
        "totalMs": round((now - began) * 1000, 1),
    }
    if used.estimated:
        data["usageEstimated"] = True
    if run.uncited_claims:
        data["uncited"] = True
    return Event("done", data)
