"""In-memory implementations of the ports, for tests and for trying the pipeline without anything around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from meridian_api.serving import ServingTool
from meridian_dataplane.calls import (
    Caller,
    CitedChunk,
    Document,
    ModelCall,
    Passage,
    Piece,
    RequestRecord,
    ToolAudit,
    ToolOutcome,
)
from meridian_dataplane.ports import ModelFailed, StoreUnavailable, UnsafeRole


@dataclass
class ManualClock:
    """Time that moves when a test says so."""

    seconds: float = 1000.0
    date: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.date

    def monotonic(self) -> float:
        return self.seconds


@dataclass(frozen=True)
class StoredChunk:
    """A passage with what decides who may see it."""

    tenant: str
    epoch: str
    groups: frozenset[str]
    passage: Passage
    current: bool = True


@dataclass
class MemoryIndex:
    """Index and Documents over a list; ranks by shared words."""

    chunks: list[StoredChunk] = field(default_factory=list)
    away: int = 0
    """How many of the next calls fail."""
    delay_s: float = 0.0
    calls: list[dict[str, Any]] = field(default_factory=list)

    async def retrieve(
        self,
        *,
        tenant: str,
        groups: tuple[str, ...],
        epoch: str,
        embedding: str,
        question: str,
        candidates: int,
        limit: int,
        rerank: bool,
        timeout_s: float,
    ) -> Sequence[Passage]:
        self.calls.append({"tenant": tenant, "groups": groups, "epoch": epoch, "embedding": embedding})
        await self._answer()
        words = set(question.lower().split())
        seen = [c.passage for c in self._visible(tenant, groups, epoch) if c.current]
        return sorted(seen, key=lambda p: -len(words & set(p.text.lower().split())))[:limit]

    async def current(
        self, *, tenant: str, groups: tuple[str, ...], epoch: str, chunks: Sequence[CitedChunk], timeout_s: float
    ) -> frozenset[CitedChunk]:
        await self._answer()
        visible = {_cited(c.passage) for c in self._visible(tenant, groups, epoch) if c.current}
        return frozenset(visible & set(chunks))

    async def read(
        self, *, tenant: str, groups: tuple[str, ...], epoch: str, doc_id: str, version: int | None, timeout_s: float
    ) -> Document | None:
        await self._answer()
        for stored in self._visible(tenant, groups, epoch):
            passage = stored.passage
            wanted = stored.current if version is None else passage.doc_version == version
            if passage.doc_id == doc_id and wanted:
                return Document(
                    doc_id, passage.doc_version, passage.title, passage.source_uri, passage.text, stored.current
                )
        return None

    def _visible(self, tenant: str, groups: tuple[str, ...], epoch: str) -> list[StoredChunk]:
        return [c for c in self.chunks if c.tenant == tenant and c.epoch == epoch and c.groups & set(groups)]

    async def _answer(self) -> None:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.away:
            self.away -= 1
            raise StoreUnavailable("double")


@dataclass
class MemoryRecords:
    """Records in lists."""

    written: list[RequestRecord] = field(default_factory=list)
    audited: list[ToolAudit] = field(default_factory=list)
    outcomes: list[tuple[str, str]] = field(default_factory=list)
    away: bool = False

    async def write(self, record: RequestRecord) -> None:
        self._answer()
        if all(one.request_id != record.request_id for one in self.written):
            self.written.append(record)

    async def audit(self, row: ToolAudit) -> None:
        self._answer()
        self.audited.append(row)

    async def outcome(self, *, tenant: str, subject: str, request_id: str, outcome: str, at: datetime) -> bool:
        self._answer()
        known = any((r.tenant_id, r.subject, r.request_id) == (tenant, subject, request_id) for r in self.written)
        if known:
            self.outcomes.append((request_id, outcome))
        return known

    def _answer(self) -> None:
        if self.away:
            raise StoreUnavailable("double")


Script = Callable[[ModelCall], Sequence[Piece | ModelFailed | float]]


@dataclass
class ScriptedModel:
    """Says what the script says for a call: pieces, failures to raise, seconds to wait."""

    script: Script
    calls: list[ModelCall] = field(default_factory=list)
    closed: int = 0

    async def stream(self, call: ModelCall) -> AsyncGenerator[Piece, None]:
        self.calls.append(call)
        try:
            for step in self.script(call):
                if isinstance(step, ModelFailed):
                    raise step
                if isinstance(step, Piece):
                    yield step
                else:
                    await asyncio.sleep(step)
        finally:
            self.closed += 1


@dataclass
class MemoryTools:
    """An order service with orders by tenant and id."""

    orders: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    outcome: str | None = None
    """Overrides every call's outcome."""
    delay_s: float = 0.0
    calls: int = 0

    async def call(
        self,
        tool: ServingTool,
        arguments: dict[str, Any],
        caller: Caller,
        *,
        request_id: str,
        traceparent: str,
        timeout_s: float,
    ) -> ToolOutcome:
        self.calls += 1
        await asyncio.sleep(min(self.delay_s, timeout_s))
        if self.delay_s > timeout_s:
            return ToolOutcome(tool.name, tool.schema_version, "timeout")
        found = self.orders.get((caller.tenant_id, arguments["order_id"]))
        outcome = self.outcome or ("ok" if found else "not_found")
        return ToolOutcome(tool.name, tool.schema_version, outcome, (found or {}) if outcome == "ok" else {})


@dataclass
class MemoryKeys:
    """Keys by issuer and id."""

    keys: dict[str, dict[str, Any]] = field(default_factory=dict)

    def knows(self, issuer: str) -> bool:
        return issuer in self.keys

    def find(self, issuer: str, kid: str) -> Any | None:
        return self.keys.get(issuer, {}).get(kid)


@dataclass
class MemoryRole:
    """A role that is safe, unsafe, or cannot be asked."""

    unsafe: bool = False
    away: bool = False

    async def check(self) -> None:
        if self.away:
            raise StoreUnavailable("double")
        if self.unsafe:
            raise UnsafeRole("double")


def _cited(passage: Passage) -> CitedChunk:
    return CitedChunk(passage.doc_id, passage.doc_version, passage.chunk_id)
