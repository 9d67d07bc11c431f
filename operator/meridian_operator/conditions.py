"""Conditions from what a `decide` says: transition times kept, messages cut, the kstatus three derived. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from meridian_api.meta import CONDITIONS

MAX_MESSAGE = 1024


@dataclass(frozen=True)
class Say:
    """One condition as decided. `status` None means Unknown: nobody could look."""

    type: str
    status: bool | None
    reason: str
    message: str = ""


def cut(text: str, limit: int = MAX_MESSAGE) -> str:
    """`text` without control characters, at most `limit` characters (K-28)."""
    clean = "".join(c if c.isprintable() else " " for c in text).strip()
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def timestamp(at: datetime) -> str:
    """RFC 3339, UTC, whole seconds, as Kubernetes writes it."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def conditions(
    previous: Mapping[str, Any] | None, said: Iterable[Say], *, generation: int, now: datetime
) -> list[dict[str, Any]]:
    """Wire form, in the order said. lastTransitionTime moves only with the status, so that a quiet pass writes nothing (K-27)."""
    before = {c["type"]: c for c in (previous or {}).get("conditions") or ()}
    result: list[dict[str, Any]] = []
    for one in said:
        if one.type not in CONDITIONS:
            raise ValueError(f"{one.type} is not in meridian_api.meta.CONDITIONS")
        status = "Unknown" if one.status is None else str(one.status)
        old = before.get(one.type)
        same = old is not None and old.get("status") == status
        result.append(
            {
                "type": one.type,
                "status": status,
                "observedGeneration": generation,
                "lastTransitionTime": old["lastTransitionTime"] if same and old else timestamp(now),
                "reason": one.reason[:64],
                "message": cut(one.message),
            }
        )
    return result


def kstatus(*said: Say, stalled: bool = False, waiting_for: tuple[str, str] | None = None) -> tuple[Say, ...]:
    """`said` and the three conditions that kstatus and Argo CD read.

    Ready is True when every condition of `said` that counts for it is, and nothing is waited for (reason, message);
    otherwise the first that is not explains. Work goes on (Reconciling) unless Ready, or unless it needs a person (`stalled`).
    """
    missing = next((s for s in said if CONDITIONS[s.type].counts_for_ready and s.status is not True), None)
    if missing is None and waiting_for is not None:
        missing = Say("Ready", False, *waiting_for)
    if missing is None:
        return (
            *said,
            Say("Reconciling", False, "UpToDate"),
            Say("Stalled", False, "UpToDate"),
            Say("Ready", True, "UpToDate"),
        )
    why = (missing.reason, missing.message)
    return (
        *said,
        Say("Reconciling", not stalled, *why),
        Say("Stalled", stalled, *why),
        Say("Ready", False if missing.status is False else None, *why),
    )


def is_true(status: Mapping[str, Any] | None, condition: str) -> bool:
    """Whether the stored status says `condition` is True."""
    return any(c["type"] == condition and c["status"] == "True" for c in (status or {}).get("conditions") or ())
