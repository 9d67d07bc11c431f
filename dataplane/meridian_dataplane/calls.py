"""Frozen values that pass from stage to stage; each wraps the one before, so that a skipped stage is a type error.

Received -> Identified -> Pinned -> Admitted -> Grounded -> Prompt -> Route -> Event*. Durations are seconds unless a name
says `_ms`; `*_at` are readings of the monotonic clock, `*_time` are aware UTC datetimes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from meridian_api.serving import Manifest, ServingTenant, Snapshot, Target

DOC_ID = re.compile(r"[A-Za-z0-9][-._A-Za-z0-9]{0,119}")
"""What a document's id may be, where documents come in and where citations link to them (Q-59, H-26)."""


@dataclass(frozen=True)
class Received:
    """A request as it arrived, size and shape checked, nobody's yet."""

    request_id: str
    traceparent: str
    authorization: str = field(repr=False)
    """Value of the one Authorization header; empty when there was none."""
    question: str = field(repr=False)
    conversation_id: str | None
    locale: str | None
    arrived_at: float


@dataclass(frozen=True)
class Caller:
    """Who asks, from verified claims and the tenant's policy alone."""

    tenant: ServingTenant
    subject: str
    groups: tuple[str, ...]
    """The token's groups and those its roles add: sorted, each once, matched exactly."""
    roles: tuple[str, ...]

    @property
    def tenant_id(self) -> str:
        return self.tenant.tenant_id


@dataclass(frozen=True)
class Identified:
    """A request with its caller, judged by `snapshot`, which it keeps to the end (S-20)."""

    received: Received
    caller: Caller
    snapshot: Snapshot
    stale: bool
    """The snapshot is past its soft expiry: served, and said."""


@dataclass(frozen=True)
class Pinned:
    """One release for the whole request."""

    identified: Identified
    manifest: Manifest
    arm: str
    """`serving` or `candidate`."""
    deadline_at: float
    """The one absolute deadline; every call gets what is left of it."""

    @property
    def caller(self) -> Caller:
        return self.identified.caller

    @property
    def received(self) -> Received:
        return self.identified.received


@dataclass(frozen=True)
class Passage:
    """A chunk that retrieval returned for this tenant, these groups, this epoch (S-13, S-60)."""

    doc_id: str
    doc_version: int
    chunk_id: str
    title: str
    source_uri: str
    text: str = field(repr=False)
    score: float = 0.0


@dataclass(frozen=True)
class CitedChunk:
    """What a citation points at: one chunk of one version of a document."""

    doc_id: str
    doc_version: int
    chunk_id: str


@dataclass(frozen=True)
class Document:
    """A document at one version, as the documents route shows it."""

    doc_id: str
    doc_version: int
    title: str
    source_uri: str
    text: str = field(repr=False)
    current: bool = True


@dataclass(frozen=True)
class ToolOutcome:
    """What became of the order lookup. `fields` is data, never instructions."""

    name: str
    schema_version: str
    outcome: str
    """ok | not_found | denied | invalid | timeout | unavailable"""
    fields: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def live(self) -> bool:
        return self.outcome == "ok"


@dataclass(frozen=True)
class Grounded:
    """What the answer may rest on. A retrieval that failed never gets here: it refuses the request."""

    pinned: Pinned
    passages: tuple[Passage, ...]
    tool: ToolOutcome | None
    stage_ms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Prompt:
    """The messages for the model and the secret markers that stand for the passages."""

    grounded: Grounded
    system: str = field(repr=False)
    user: str = field(repr=False)
    markers: dict[str, int] = field(repr=False)
    """Random marker -> position in `passages`."""
    passages: tuple[Passage, ...]
    """Those of the retrieved passages that fitted into the token budget."""
    estimated_input_tokens: int


@dataclass(frozen=True)
class Route:
    """The targets that may be called, in order. Empty is impossible: that is a refusal."""

    prompt: Prompt
    targets: tuple[Target, ...]
    max_output_tokens: int


@dataclass(frozen=True)
class Usage:
    """Tokens of one model call. `estimated` when the engine did not report them (H-18)."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    estimated: bool = False


class StreamState(StrEnum):
    """Where a stream is; billing, breaker, citations and records all read this one."""

    ADMITTED = "admitted"
    DISPATCHED = "dispatched"
    FIRST_CONTENT = "first_content"
    TERMINAL = "terminal"
    INCOMPLETE = "incomplete"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class ModelCall:
    """One call of one target."""

    target: Target
    system: str = field(repr=False)
    user: str = field(repr=False)
    max_output_tokens: int
    first_token_timeout_s: float
    deadline_at: float
    request_id: str
    traceparent: str
    cache_salt: str
    """Per tenant, so that first-token times tell nothing about what others asked (T-38)."""


@dataclass(frozen=True)
class Piece:
    """A bit of model output; the last one has `finish_reason`, and usage when the engine reports it."""

    text: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None


@dataclass(frozen=True)
class Citation:
    """A checked citation as the client sees it."""

    marker: int
    chunk: CitedChunk
    title: str
    source_uri: str
    url: str


@dataclass(frozen=True)
class RequestRecord:
    """One row per request: everything that explains the answer and lets arms be compared (S-19, S-42). No texts."""

    request_id: str
    tenant_id: str
    subject: str
    traceparent: str
    conversation_hash: str | None
    created_time: datetime
    service: str
    region: str
    generation: int
    release: str
    arm: str
    canary_eligible: bool
    app_version: str
    prompt: str
    model: str | None
    """`pool@version` of the target that answered; None when none did."""
    model_region: str | None
    epoch: str
    embedding: str
    tools: dict[str, str]
    """Tool name -> schema version, of every tool in the manifest."""
    tool_outcome: str | None
    """Outcome of the tool call of this request, if there was one."""
    input_tokens: int
    output_tokens: int
    cached_input_tokens: int
    usage_estimated: bool
    cost_usd: float
    ttft_ms: float | None
    total_ms: float
    stage_ms: dict[str, float]
    retrieved: tuple[CitedChunk, ...]
    cited: tuple[CitedChunk, ...]
    citations_valid: int
    citations_invalid: int
    uncited_claims: bool
    """The answer claims something and cites nothing."""
    abstained: bool
    degraded: str
    state: str
    """StreamState value."""
    outcome: str
    """answered | degraded | error | refused | cancelled"""
    error_code: str | None
    stale_config: bool


@dataclass(frozen=True)
class ToolAudit:
    """Who asked what of which tool, and what came of it. Argument values are hashed."""

    request_id: str
    tenant_id: str
    subject: str
    tool: str
    schema_version: str
    arguments_hash: str
    outcome: str
    created_time: datetime
    duration_ms: float


@dataclass(frozen=True)
class Event:
    """One server-sent event. `name` is of a closed set: meta, token, citations, done, error, ping."""

    name: str
    data: dict[str, Any] = field(repr=False)
