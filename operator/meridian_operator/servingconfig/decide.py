"""Same pointer, newer content: when tenants, pools or epochs changed, the stored object becomes a new generation.

The pointer is the releases' decision; only the traffic of a candidate that no longer exists is taken back here. What cannot be
compiled leaves the last good one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from meridian_api.serving import Snapshot
from meridian_operator.conditions import Say, conditions
from meridian_operator.plan import REST, EventNote, Plan, Switch
from meridian_operator.serving.compile import Compiled, Pointer, Problem, Stamp, compile_snapshot
from meridian_operator.serving.copies import config_map
from meridian_operator.serving.shrinkage import APART_SECONDS
from meridian_operator.serving.stored import reason_to_write
from meridian_operator.servingconfig.seen import Observed

QUIET = timedelta(seconds=2)
"""Between two generations for changes of content: a GitOps run that edits twenty tenants makes a few, not twenty."""
SECOND_LOOK = timedelta(seconds=APART_SECONDS + 1)


@dataclass(frozen=True)
class Found:
    """What was seen, and what compiling it gave."""

    seen: Observed
    now: datetime
    snapshot: Snapshot | None
    problems: tuple[Problem, ...]
    """All of them, warnings too."""


Rule = Callable[[Found], Plan | None]


def decide(seen: Observed, now: datetime) -> Plan:
    """The first rule that answers; the last always does."""
    found = _compile(seen, now)
    plan = next(plan for rule in RULES if (plan := rule(found)) is not None)
    if plan.switch is not None:
        return plan  # it writes this very object: the status is said at the next look, not against the version before
    return replace(plan, status=_status(found), events=_events(found))


def _compile(seen: Observed, now: datetime) -> Found:
    last = seen.stored.snapshot
    if seen.sources is None or last is None:
        return Found(seen, now, None, seen.problems)
    stamp = Stamp(seen.stored.next_generation, last.lease_epoch, last.issued_at, seen.settled.confirmed)
    sources = replace(seen.sources, tenants=seen.settled.tenants)
    made = compile_snapshot(sources, Pointer.of(last), stamp, last)
    if isinstance(made, Compiled):
        return Found(seen, now, made.snapshot, (*seen.problems, *made.warnings))
    return Found(seen, now, None, (*seen.problems, *made))


def restore_copy(found: Found) -> Plan | None:
    """The ConfigMap is missing or not what is stored: a crash between the two writes, or somebody's edit."""
    wanted = config_map(found.seen.object, found.seen.stored.envelope)
    copy = found.seen.copy
    if found.seen.stored.snapshot is None:
        return None  # never spread what cannot be opened
    if copy is not None and _same_data(copy, wanted):
        return None
    return Plan(because="restore_copy", apply=(wanted,), look_again=timedelta(seconds=1))


def keep_last_good(found: Found) -> Plan | None:
    """Nothing can be compiled: what is stored serves on, and the condition names what is missing."""
    if found.snapshot is not None:
        return None
    return Plan(because="keep_last_good", look_again=REST)


def take_back_from_a_candidate_that_is_gone(found: Found) -> Plan | None:
    """A candidate whose Release was deleted, or cannot be read any more, has no guard left. The release that serves takes its
    traffic back, but that object may be deleted too; this one is always there (R-17).
    """
    last, sources = found.seen.stored.snapshot, found.seen.sources
    if last is None or last.candidate is None or sources is None:
        return None
    name = last.candidate.manifest.release
    if name in sources.releases:
        return None
    gone = "cannot be read" if f"Release/{name}" in sources.unreadable else "is gone"
    switch = Switch(
        service=last.service,
        serving=last.serving.release,
        candidate=None,
        weight_percent=0,
        salt="",
        expected_resource_version=found.seen.object["metadata"]["resourceVersion"],
        because=f"release {name} {gone}, its traffic goes back",
    )
    return Plan("take_back_from_a_candidate_that_is_gone", switch=switch, look_again=timedelta(seconds=1))


def wait_for_quiet(found: Found) -> Plan | None:
    """The last generation is a moment old: let changes gather."""
    last = found.seen.stored.snapshot
    if last is None or _reason(found) is None:
        return None
    age = found.now - _parsed(last.issued_at)
    if timedelta(0) <= age < QUIET:
        return Plan(because="wait_for_quiet", look_again=QUIET - age + timedelta(milliseconds=50))
    return None


def follow(found: Found) -> Plan | None:
    """Content differs, or what is stored is behind the replicas or signed by an older key."""
    why = _reason(found)
    if why is None or found.snapshot is None:
        return None
    pointer = Pointer.of(found.snapshot)
    switch = Switch(
        service=found.snapshot.service,
        serving=pointer.serving,
        candidate=pointer.candidate,
        weight_percent=pointer.weight_percent,
        salt=pointer.salt,
        expected_resource_version=found.seen.object["metadata"]["resourceVersion"],
        because=why,
    )
    return Plan(because="follow", switch=switch, look_again=timedelta(seconds=1))


def look_twice(found: Found) -> Plan | None:
    """Many tenants are missing from one list: believe it only when a second one says so (F-04)."""
    if not (found.seen.settled.kept or found.seen.settled.doubted):
        return None
    return Plan(because="look_twice", look_again=SECOND_LOOK)


def in_step(found: Found) -> Plan:
    """Nothing to do."""
    return Plan(because="in_step", look_again=REST)


RULES: tuple[Rule, ...] = (
    take_back_from_a_candidate_that_is_gone,
    wait_for_quiet,
    follow,
    restore_copy,  # after the pointer's own rules: a copy that somebody else owns must not keep a change of content back
    keep_last_good,
    look_twice,
    in_step,
)


def _reason(found: Found) -> str | None:
    if found.snapshot is None:
        return None
    return reason_to_write(found.seen.stored, found.snapshot, found.seen.key_id)


def _status(found: Found) -> dict[str, Any] | None:
    """The stored status with `Accepted` as it is now; None as long as nothing was ever wrong, as replicas report there too."""
    status = found.seen.object.get("status") or {}
    before = next((c for c in status.get("conditions") or () if c["type"] == "Accepted"), None)
    problem = _worst(found)
    if problem is None:
        if before is None or before["reason"] == "InStep":
            return None
        say = Say("Accepted", True, "InStep", "")
    else:
        if before is not None and (before["reason"], before["message"]) == (problem.reason, problem.message[:1024]):
            return None
        say = Say("Accepted", found.snapshot is not None, problem.reason, problem.message)
    generation = int(found.seen.object["metadata"].get("generation", 0))
    return {**status, "conditions": conditions(status, (say,), generation=generation, now=found.now)}


def _events(found: Found) -> tuple[EventNote, ...]:
    problem = _worst(found)
    return (EventNote("Warning", problem.reason, problem.message),) if problem else ()


def _worst(found: Found) -> Problem | None:
    """All problems as one: the first one's reason, everybody's message."""
    if not found.problems:
        return None
    message = "; ".join(dict.fromkeys(problem.message for problem in found.problems))
    return Problem(found.problems[0].reason, message[:1000])


def _parsed(issued_at: str) -> datetime:
    try:
        return datetime.fromisoformat(issued_at).astimezone(UTC)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)


def _same_data(copy: dict[str, Any], wanted: dict[str, Any]) -> bool:
    try:
        have = json.loads((copy.get("data") or {})["envelope.json"])
    except (KeyError, ValueError):
        return False
    return bool(have == json.loads(wanted["data"]["envelope.json"]))
