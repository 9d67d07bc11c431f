"""What the pipeline needs from outside, one Protocol each; `doubles.py` and `adapters/` implement them.

Everything that limits what may be seen (tenant, groups, epoch) is a required keyword: a call without it is a type error.
An adapter raises StoreUnavailable when it cannot answer (connection, pool, timeout, cancelled statement). "Nothing found" and
"not allowed" look alike: an empty result or None.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import Any, Protocol

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


class StoreUnavailable(Exception):
    """A store could not answer in time. The text is for logs; it never reaches a caller (T-29)."""


class RowRefused(Exception):
    """The store will never take this row: a value in it cannot be stored, or breaks a rule of its table."""


class UnsafeRole(Exception):
    """The database role could get round row-level security; the process must not serve with it (T-26)."""


class ModelFailed(Exception):
    """A target did not answer as it should. `code` is of a closed set.

    unreachable | timeout_first_token | timeout_idle | deadline | status | refused | protocol | truncated

    `refused`: the engine answered, and holds this request for wrong; it says nothing about the target.
    """

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code = code


class Index(Protocol):
    """Hybrid retrieval as one statement under row-level security."""

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
        """At most `limit` passages, best first; both legs see only `tenant`, `groups` (any overlap), `epoch`, current versions.

        `embedding` is `model@revision`; an adapter that has another model raises StoreUnavailable rather than mix vectors.
        """
        ...


class Documents(Protocol):
    """Documents as this caller may see them now."""

    async def current(
        self, *, tenant: str, groups: tuple[str, ...], epoch: str, chunks: Sequence[CitedChunk], timeout_s: float
    ) -> frozenset[CitedChunk]:
        """Those of `chunks` that are visible to `groups` and belong to their document's current version (S-18)."""
        ...

    async def read(
        self, *, tenant: str, groups: tuple[str, ...], epoch: str, doc_id: str, version: int | None, timeout_s: float
    ) -> Document | None:
        """The document at `version` (None: the current one); None when there is none that this caller may see."""
        ...


class Records(Protocol):
    """What must not be lost: request records, audit, outcomes."""

    async def write(self, record: RequestRecord) -> None:
        """Once per request id: writing the same id again changes nothing."""
        ...

    async def audit(self, row: ToolAudit) -> None: ...

    async def outcome(self, *, tenant: str, subject: str, request_id: str, outcome: str, at: datetime) -> bool:
        """False when this subject of this tenant has no such request."""
        ...


class RoleCheck(Protocol):
    """Proof that the database role is held by row-level security."""

    async def check(self) -> None:
        """Raises UnsafeRole (superuser, BYPASSRLS, owner or member of the owner) or StoreUnavailable."""
        ...


class Model(Protocol):
    """A model engine behind a target."""

    def stream(self, call: ModelCall) -> AsyncGenerator[Piece, None]:
        """Pieces as they come. Raises ModelFailed; closing the iterator closes the upstream call at once (H-01).

        A stream that ends without a finish reason raises ModelFailed('truncated') (H-05).
        """
        ...


class Tools(Protocol):
    """The network leg of the tool gateway; authorisation, validation and audit come before it and are not its business."""

    async def call(
        self,
        tool: ServingTool,
        arguments: dict[str, Any],
        caller: Caller,
        *,
        request_id: str,
        traceparent: str,
        timeout_s: float,
    ) -> ToolOutcome: ...


class Keys(Protocol):
    """Public keys of registered issuers, from memory only."""

    def find(self, issuer: str, kid: str) -> Any | None:
        """A PyJWT key (`jwt.PyJWK`) or None. May schedule a bounded refresh; never waits for one."""
        ...

    def knows(self, issuer: str) -> bool: ...


class Clock(Protocol):
    """Time, so that tests own it."""

    def now(self) -> datetime:
        """Aware, UTC."""
        ...

    def monotonic(self) -> float: ...
