"""The request path, top to bottom, one line a stage. Callable without HTTP: the evaluation Job runs these same lines."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from meridian_dataplane.calls import Event, Identified, Received
from meridian_dataplane.plane import Plane
from meridian_dataplane.stages.assemble import assemble
from meridian_dataplane.stages.choose import choose
from meridian_dataplane.stages.cite import cite
from meridian_dataplane.stages.deliver import deliver
from meridian_dataplane.stages.identify import identify
from meridian_dataplane.stages.pin import pin
from meridian_dataplane.stages.retrieve import ground
from meridian_dataplane.stages.settle import settled
from meridian_dataplane.stages.stream import stream


@asynccontextmanager
async def answer(received: Received, on: Plane) -> AsyncIterator[AsyncGenerator[Event, None]]:
    """The events of one answer. Raises Refusal before there are any. Leaving the context frees everything it held."""
    snapshot = on.snapshot()
    identified = identify(received, snapshot, stale=on.live.stale, keys=on.keys, clock=on.clock)
    async with answer_as(identified, on) as events:
        yield events


@asynccontextmanager
async def answer_as(identified: Identified, on: Plane) -> AsyncIterator[AsyncGenerator[Event, None]]:
    """The same for a caller who is known already (the golden set's)."""
    pinned = pin(identified, contact_age=on.live.contact_age)
    async with on.admission.permit(pinned) as admitted:
        with settled(pinned, clock=on.clock, metrics=on.metrics, write=on.spool.record) as (run, kept):
            grounded = await ground(
                admitted,
                run,
                index=on.index,
                tools=on.tools,
                clock=on.clock,
                retries=on.retries,
                gate=on.retrieval_gate,
                audit=on.spool.audit,
            )
            prompt = assemble(grounded)
            run.estimated_input_tokens = prompt.estimated_input_tokens
            route = choose(prompt, on.health.healthy)
            pieces = stream(route, run, model=on.model, health=on.health, clock=on.clock, metrics=on.metrics)
            cited = cite(pieces, prompt, run, documents=on.documents, clock=on.clock)
            yield deliver(cited, route, run, documents=on.documents, clock=on.clock, kept=kept)
