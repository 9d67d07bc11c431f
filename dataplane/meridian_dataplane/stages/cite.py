"""Citations by code. Takes Pieces; gives `token` events and one `citations` event; raises StoreUnavailable when it cannot check.

A citation counts when its passage was retrieved for this request and when its document, read again at the end, is current at its
version and visible to this caller (S-18, IV-22). The model only proposes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from urllib.parse import quote

from meridian_dataplane.calls import Citation, CitedChunk, Event, Passage, Piece, Prompt
from meridian_dataplane.ports import Clock, Documents, StoreUnavailable
from meridian_dataplane.run import Run
from meridian_dataplane.stages.lookup import order_id_in
from meridian_dataplane.stages.markers import MarkerFilter
from meridian_dataplane.stages.stream import ABSTENTION

_CHECK_S, _LEAST_CHECK_S = 0.8, 0.25


async def cite(
    pieces: AsyncGenerator[Piece, None], prompt: Prompt, run: Run, *, documents: Documents, clock: Clock
) -> AsyncGenerator[Event, None]:
    """Text with `[n]` as it comes, then the checked citations."""
    markers = MarkerFilter(prompt.markers)
    said: list[str] = []
    async with aclosing(pieces) as source:
        async for piece in source:
            text = markers.feed(piece.text)
            if text:
                said.append(text)
                yield Event("token", {"text": text})
    for text in (markers.rest(), _no_live_data(prompt)):
        if text:
            said.append(text)
            yield Event("token", {"text": text})
    cited = [(number, prompt.passages[at]) for at, number in markers.numbers.items()]
    current = await still_valid([p for _, p in cited], prompt, documents=documents, clock=clock)
    kept = [(number, passage) for number, passage in cited if chunk_of(passage) in current]
    withdrawn = [number for number, passage in cited if chunk_of(passage) not in current]
    positions = {number: at for at, number in markers.numbers.items()}
    run.citations_valid = sum(markers.occurrences[positions[number]] for number, _ in kept)
    run.citations_invalid = markers.foreign + sum(markers.occurrences[positions[number]] for number in withdrawn)
    run.cited = tuple(chunk_of(passage) for _, passage in kept)
    run.abstained = ABSTENTION in "".join(said)
    run.uncited_claims = not kept and not run.abstained
    yield citations_event([citation(number, passage) for number, passage in kept], withdrawn)


async def still_valid(
    passages: Sequence[Passage], prompt: Prompt, *, documents: Documents, clock: Clock
) -> frozenset[CitedChunk]:
    """Those that are current and visible now; read twice at most. Raises StoreUnavailable: unchecked is not valid."""
    if not passages:
        return frozenset()
    pinned = prompt.grounded.pinned
    chunks = [chunk_of(passage) for passage in passages]
    for last in (False, True):
        left = max(_LEAST_CHECK_S, min(_CHECK_S, pinned.deadline_at - clock.monotonic()))
        try:
            async with asyncio.timeout(left):
                return await documents.current(
                    tenant=pinned.caller.tenant_id,
                    groups=pinned.caller.groups,
                    epoch=pinned.manifest.index.epoch,
                    chunks=chunks,
                    timeout_s=left,
                )
        except (StoreUnavailable, TimeoutError):
            if last:
                raise StoreUnavailable("citations cannot be checked") from None
    raise AssertionError("unreachable")


def chunk_of(passage: Passage) -> CitedChunk:
    return CitedChunk(passage.doc_id, passage.doc_version, passage.chunk_id)


def citation(number: int, passage: Passage) -> Citation:
    url = f"/v1/documents/{quote(passage.doc_id, safe='')}?version={passage.doc_version}"
    return Citation(number, chunk_of(passage), passage.title, passage.source_uri, url)


def citations_event(citations: Sequence[Citation], withdrawn: Sequence[int]) -> Event:
    """`withdrawn` are numbers in the text whose document stopped being current or visible meanwhile."""
    shown = [
        {
            "marker": one.marker,
            "docId": one.chunk.doc_id,
            "docVersion": one.chunk.doc_version,
            "chunkId": one.chunk.chunk_id,
            "title": one.title,
            "sourceUri": one.source_uri,
            "url": one.url,
        }
        for one in citations
    ]
    data: dict[str, object] = {"citations": shown}
    if withdrawn:
        data["withdrawn"] = list(withdrawn)
    return Event("citations", data)


def _no_live_data(prompt: Prompt) -> str:
    """Said by code when an order was meant and no tool result came: the model is not trusted to say it (S-22)."""
    tool = prompt.grounded.tool
    order = order_id_in(prompt.grounded.pinned.received.question)
    if tool is None or tool.live or order is None:
        return ""
    if tool.outcome in ("not_found", "denied"):
        return f"\n\nNote: order {order} is not among the orders that you may see."
    return f"\n\nNote: live data of order {order} could not be read, so nothing here says what its current state is."
