"""One request's state while it runs: the stream's state machine and what has been counted so far.

Billing, breaker, citations and the record all read this one value, so that they cannot disagree about how a stream ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meridian_api.serving import Target
from meridian_dataplane.calls import CitedChunk, Passage, StreamState, Usage

_NEXT: dict[StreamState, frozenset[StreamState]] = {
    StreamState.ADMITTED: frozenset(
        {
            StreamState.DISPATCHED,
            StreamState.FIRST_CONTENT,
            StreamState.TERMINAL,
            StreamState.INCOMPLETE,
            StreamState.CANCELLED,
        }
    ),
    StreamState.DISPATCHED: frozenset(
        {
            StreamState.DISPATCHED,
            StreamState.FIRST_CONTENT,
            StreamState.TERMINAL,
            StreamState.INCOMPLETE,
            StreamState.CANCELLED,
        }
    ),
    StreamState.FIRST_CONTENT: frozenset({StreamState.TERMINAL, StreamState.INCOMPLETE, StreamState.CANCELLED}),
    StreamState.TERMINAL: frozenset(),
    StreamState.INCOMPLETE: frozenset(),
    StreamState.CANCELLED: frozenset(),
}


@dataclass
class Run:
    """Mutable, one per request, never shared."""

    state: StreamState = StreamState.ADMITTED
    target: Target | None = None
    usage: Usage | None = None
    received_chars: int = 0
    """Of model text received from upstream, sent or not: what an estimate of usage rests on."""
    first_text_at: float | None = None
    retrieved: tuple[Passage, ...] = ()
    tool_outcome: str | None = None
    cited: tuple[CitedChunk, ...] = ()
    citations_valid: int = 0
    citations_invalid: int = 0
    abstained: bool = False
    uncited_claims: bool = False
    degraded: str = "full"
    error_code: str | None = None
    refused: bool = False
    estimated_input_tokens: int = 0
    stage_ms: dict[str, float] = field(default_factory=dict)

    def move(self, to: StreamState) -> None:
        """Raises ValueError for a step that the machine does not have: an ended stream stays ended."""
        if to not in _NEXT[self.state]:
            raise ValueError(f"no step from {self.state} to {to}")
        self.state = to

    @property
    def ended(self) -> bool:
        return not _NEXT[self.state]

    @property
    def has_content(self) -> bool:
        """Content has been seen; from here on nothing may be repeated or replaced."""
        return self.state is StreamState.FIRST_CONTENT or self.first_text_at is not None
