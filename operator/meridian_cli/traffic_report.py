"""What a run of traffic came to: one record a request, and the sums over them. Pure."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Outcome = Literal["answered", "degraded", "error", "lost"]
_MARKER = re.compile(r"\s*\[\d+\]")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class Question:
    """A question with what a right answer holds: every fact, or an abstention."""

    question: str
    tenant: str
    groups: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    abstain: bool = False


@dataclass(frozen=True)
class Record:
    """One request. `at_s` counts from the start of the run; `right` is None where nothing came to
    judge; `lost` is a stream that began and ended without a terminal event."""

    at_s: float
    question: str
    tenant: str
    outcome: Outcome
    request_id: str | None = None
    release: str | None = None
    arm: str | None = None
    generation: int | None = None
    degraded: str | None = None
    right: bool | None = None
    code: str | None = None
    ttft_ms: float | None = None
    total_ms: float | None = None


@dataclass(frozen=True)
class ReleaseCount:
    """What one release in one arm came to."""

    release: str
    arm: str
    requests: int
    judged: int
    right: int

    @property
    def success_rate(self) -> float | None:
        return self.right / self.judged if self.judged else None


@dataclass(frozen=True)
class TrafficReport:
    """A run. The four outcomes add up to `sent`; `unsent` were due while too many were open."""

    records: tuple[Record, ...]
    unsent: int = 0
    feedback_failed: int = 0

    @property
    def sent(self) -> int:
        return len(self.records)

    @property
    def answered(self) -> int:
        return self._count("answered")

    @property
    def degraded(self) -> int:
        return self._count("degraded")

    @property
    def errors(self) -> int:
        return self._count("error")

    @property
    def lost(self) -> int:
        return self._count("lost")

    def codes(self) -> Mapping[str, int]:
        """How often each error code, degradation or kind of loss came."""
        return Counter(r.code for r in self.records if r.code)

    def releases(self) -> tuple[ReleaseCount, ...]:
        named = sorted({(r.release or "none", r.arm or "none") for r in self.records})
        return tuple(self._release(release, arm) for release, arm in named)

    def ttft_ms(self, share: float) -> float | None:
        return percentile((r.ttft_ms for r in self.records), share)

    def total_ms(self, share: float) -> float | None:
        return percentile((r.total_ms for r in self.records), share)

    def _count(self, outcome: Outcome) -> int:
        return sum(r.outcome == outcome for r in self.records)

    def _release(self, release: str, arm: str) -> ReleaseCount:
        own = [r for r in self.records if (r.release or "none", r.arm or "none") == (release, arm)]
        judged = [r for r in own if r.right is not None]
        right = sum(bool(r.right) for r in judged)
        return ReleaseCount(release, arm, len(own), len(judged), right)


def is_right(question: Question, text: str, abstained: bool) -> bool:
    """Whether the answer abstains where it has to, or holds every fact that it has to."""
    if question.abstain or abstained:
        return question.abstain and abstained
    said = normalised(text)
    return all(normalised(fact) in said for fact in question.facts)


def normalised(text: str) -> str:
    """Without citation markers, in one case, with single spaces."""
    return _SPACE.sub(" ", _MARKER.sub("", text)).strip().casefold()


def percentile(values: Iterable[float | None], share: float) -> float | None:
    """The nearest-rank percentile; None of nothing."""
    held = sorted(v for v in values if v is not None)
    return held[max(math.ceil(share * len(held)) - 1, 0)] if held else None


def as_json(report: TrafficReport) -> dict[str, Any]:
    return {
        "sent": report.sent,
        "answered": report.answered,
        "degraded": report.degraded,
        "errors": report.errors,
        "lost": report.lost,
        "unsent": report.unsent,
        "feedbackFailed": report.feedback_failed,
        "codes": dict(report.codes()),
        "releases": [
            {
                "release": c.release,
                "arm": c.arm,
                "requests": c.requests,
                "judged": c.judged,
                "right": c.right,
                "successRate": c.success_rate,
            }
            for c in report.releases()
        ],
        "ttftMs": {"p50": report.ttft_ms(0.5), "p95": report.ttft_ms(0.95)},
        "totalMs": {"p95": report.total_ms(0.95)},
    }


def as_table(report: TrafficReport) -> str:
    counts = [
        ("sent", report.sent),
        ("answered", report.answered),
        ("degraded", report.degraded),
        ("errors", report.errors),
        ("lost", report.lost),
    ]
    counts += [("unsent", report.unsent)] if report.unsent else []
    counts += [("feedback failed", report.feedback_failed)] if report.feedback_failed else []
    rows = [
        (c.release, c.arm, str(c.requests), f"{c.right}/{c.judged}", _percent(c.success_rate))
        for c in report.releases()
    ]
    lines = ["  ".join(f"{name} {value}" for name, value in counts)]
    lines += [f"  {code}: {count}" for code, count in sorted(report.codes().items())]
    lines += _columns([("RELEASE", "ARM", "REQUESTS", "RIGHT", "SUCCESS"), *rows])
    lines.append(
        f"first token p50 {_ms(report.ttft_ms(0.5))}, p95 {_ms(report.ttft_ms(0.95))}; "
        f"total p95 {_ms(report.total_ms(0.95))}"
    )
    return "\n".join(lines)


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"
