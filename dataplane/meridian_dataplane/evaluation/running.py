"""Asks the golden cases through the data plane's own pipeline and keeps what is needed to judge the answers.

Nothing of the pipeline is repeated here: the same plane with two ports that also remember, and a spool that marks every record
with the arm `evaluation`, so that no canary counts it.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from meridian_api.serving import ServingTool
from meridian_dataplane.calls import Caller, Identified, Passage, Received, RequestRecord, ToolAudit, ToolOutcome
from meridian_dataplane.evaluation.judging import Answered, Unscored
from meridian_dataplane.golden import GoldenCase
from meridian_dataplane.pipeline import answer_as
from meridian_dataplane.plane import Plane
from meridian_dataplane.ports import Index, Tools
from meridian_dataplane.refusals import Refusal
from meridian_dataplane.spool import Spool
from meridian_dataplane.stages.identify import caller_of

ARM = "evaluation"
TRIES = 2
"""A case that was refused or broke is asked once more; then it is unscored."""


@dataclass
class _Seen:
    """What one case's request passed by."""

    passages: tuple[Passage, ...] = ()
    tool: ToolOutcome | None = None
    record: RequestRecord | None = None


_seen: contextvars.ContextVar[_Seen] = contextvars.ContextVar("seen")


@dataclass(frozen=True)
class RememberingIndex:
    """The Index port; remembers what it returned for the case that runs."""

    inner: Index

    async def retrieve(self, **asked: Any) -> Sequence[Passage]:
        found = await self.inner.retrieve(**asked)
        _seen.get().passages = tuple(found)
        return found


@dataclass(frozen=True)
class RememberingTools:
    """The Tools port, likewise."""

    inner: Tools

    async def call(self, tool: ServingTool, arguments: dict[str, Any], caller: Caller, **more: Any) -> ToolOutcome:
        outcome = await self.inner.call(tool, arguments, caller, **more)
        _seen.get().tool = outcome
        return outcome


class EvaluationSpool(Spool):
    """Passes rows on, records under the evaluation's own arm."""

    def __init__(self, inner: Spool) -> None:
        self._inner = inner

    def record(self, row: RequestRecord) -> asyncio.Future[None] | None:
        _seen.get().record = row
        return self._inner.record(replace(row, arm=ARM))

    def audit(self, row: ToolAudit) -> None:
        self._inner.audit(row)


@dataclass(frozen=True)
class Evaluation:
    """Which run this is."""

    release: str
    uid: str
    attempt: int
    request_prefix: str = field(default_factory=lambda: secrets.token_hex(4))


def watched(plane: Plane) -> Plane:
    """The plane as the evaluation uses it."""
    return replace(
        plane,
        index=RememberingIndex(plane.index),
        tools=RememberingTools(plane.tools),
        spool=EvaluationSpool(plane.spool),
    )


async def ask_all(
    plane: Plane, cases: Sequence[GoldenCase], evaluation: Evaluation, *, at_once: int
) -> dict[str, Answered | Unscored]:
    """An answer, or why there is none, for every case; never fewer."""
    permits = asyncio.Semaphore(at_once)
    on = watched(plane)

    async def one(case: GoldenCase) -> tuple[str, Answered | Unscored]:
        async with permits:
            result: Answered | Unscored = Unscored("not asked")
            for attempt in range(TRIES):
                result = await ask(on, case, f"evaluation-{evaluation.request_prefix}-{case.id}-{attempt}")
                if isinstance(result, Answered):
                    break
            return case.id, result

    return dict(await asyncio.gather(*(one(case) for case in cases)))


async def ask(on: Plane, case: GoldenCase, request_id: str) -> Answered | Unscored:
    """One case under its own identity: a known caller, not a token."""
    snapshot = on.snapshot()
    tenant = next((t for t in snapshot.tenants if t.tenant_id == case.tenant), None)
    if tenant is None:
        return Unscored(f"tenant {case.tenant} has no policy")
    received = Received(
        request_id=request_id,
        traceparent=f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01",
        authorization="",
        question=case.question,
        conversation_id=None,
        locale=None,
        arrived_at=on.clock.monotonic(),
    )
    identified = Identified(received, caller_of(tenant, ARM, case.groups, case.roles), snapshot, stale=False)
    seen = _Seen()
    _seen.set(seen)
    said: list[str] = []
    last: dict[str, Any] = {}
    citations: list[dict[str, Any]] = []
    try:
        async with answer_as(identified, on) as events:
            async for event in events:
                if event.name == "token":
                    said.append(event.data["text"])
                elif event.name == "citations":
                    citations = event.data["citations"]
                elif event.name in ("done", "error"):
                    last = {"name": event.name, **event.data}
    except Refusal as refused:
        return Unscored(f"refused: {refused.code}")
    except Exception as broken:  # noqa: BLE001
        # Whatever breaks one case is that case's result; the others are still measured.
        return Unscored(f"broken: {type(broken).__name__}")
    if last.get("name") != "done":
        return Unscored(f"error: {last.get('code', 'no terminal event')}")
    if last["degraded"] != "full":
        return Unscored(f"degraded: {last['degraded']}")
    if seen.record is None:
        return Unscored("broken: no record")
    return _answered("".join(said), citations, seen, seen.record)


def _answered(text: str, citations: Sequence[dict[str, Any]], seen: _Seen, record: RequestRecord) -> Answered:
    passages = {(p.doc_id, p.doc_version, p.chunk_id): f"{p.title}\n{p.text}" for p in seen.passages}
    return Answered(
        text=text,
        abstained=record.abstained,
        retrieved=tuple(dict.fromkeys(p.doc_id for p in seen.passages)),
        cited={c["marker"]: passages.get((c["docId"], c["docVersion"], c["chunkId"]), "") for c in citations},
        cited_documents=tuple(c["docId"] for c in citations),
        citations_valid=record.citations_valid,
        citations_invalid=record.citations_invalid,
        tool_text=_record_text(seen.tool),
    )


def _record_text(tool: ToolOutcome | None) -> str:
    """The order's fields as words to be supported by; amounts in minor units also as they are written, 4900 as 49.00."""
    if tool is None or not tool.live:
        return ""
    text = json.dumps(tool.fields, ensure_ascii=False)
    amounts = re.findall(r'"amountMinor": (\d+)', text)
    # capturedAt: a payment with that field is a captured one.
    return " ".join([text, "order each captured", *(f"{int(amount) / 100:.2f}" for amount in amounts)])
