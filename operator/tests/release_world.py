"""Builders for the tests of `release`: one look at a release, with changes by keyword."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from meridian_api.v1alpha1.release import ReleaseSpec, ReleaseStatus
from meridian_operator.conditions import timestamp
from meridian_operator.evidence.outcomes import Counts, Tally
from meridian_operator.evidence.readings import Metrics, Reading
from meridian_operator.release.seen import Live, Seen

NOW = datetime(2026, 11, 4, 12, 0, 0, tzinfo=UTC)
NAME, BEFORE, OTHER = "2026-11-04.1", "2026-10-28.1", "2026-11-11.1"
_DIGEST = "sha256:" + "b" * 64
_IMAGE = "docker.io/meridian/dataplane@sha256:" + "a" * 64
GOOD_REPORT: dict[str, Any] = {
    "cases": 90, "scored": 90, "unscored": 0, "recallAt6": 0.95, "citationValidity": 1.0, "abstention": 1.0,
    "requiredFacts": 0.93, "taskSuccess": 0.93, "groundedness": 0.99, "goldenDigest": _DIGEST, "errors": [],
}  # fmt: skip


def spec_wire(**changes: Any) -> dict[str, Any]:
    """A release like the sample's: margin 0.10, one step of 50 %, baseline 0.9: 155 judged requests per arm."""
    rollout = {
        "canary": {"steps": [{"weight": 50}], "margin": 0.1, "baselineSuccess": 0.9},
        "maxDurationSeconds": 600,
        "bakeSeconds": 10,
        **changes.pop("rollout", {}),
    }
    return {
        "service": "support",
        "app": {"version": "1", "image": _IMAGE},
        "prompt": {"name": "prompt-1", "digest": _DIGEST},
        "models": {"primary": {"pool": "support-llm", "version": "v13", "region": "eu-1"}},
        "index": {"epoch": "epoch-1", "embeddingModel": "wordllama@r1"},
        "eval": {"goldenSet": {"name": "golden", "digest": _DIGEST}},
        "rollbackTo": BEFORE,
        "rollout": rollout,
        **changes,
    }


def a_spec(**changes: Any) -> ReleaseSpec:
    return ReleaseSpec.from_wire({k: v for k, v in spec_wire(**changes).items() if v is not None})


def live(
    serving: str = BEFORE, candidate: str | None = None, weight: int = 0, *, acknowledged: bool = True, at: int = 7
) -> Live:
    return Live(
        f"rv{at}",
        at,
        serving,
        candidate,
        weight,
        acknowledged,
        "" if acknowledged else "generation 7 is not applied by a",
    )


def status(phase: str = "Pending", *, attempt: int = 1, ago: float = 20, **more: Any) -> dict[str, Any]:
    """A stored status whose phase began `ago` seconds before NOW."""
    since = timestamp(NOW - timedelta(seconds=ago))
    history = [{"phase": "Checks", "at": since}]
    if phase == "Held":
        history.append({"phase": "Canary", "at": since})
    if phase not in ("Pending", "Checks"):
        history.append({"phase": phase, "at": since})
    weight = {"Canary": 50, "Bake": 100}.get(phase, 0)
    return {
        "phase": phase, "attempt": attempt, "history": history, "plannedN": 155,
        **({"step": 1, "stepSince": since} if phase in ("Canary", "Held") else {}),
        "traffic": {"weightPercent": weight, "generation": 7, "acknowledged": True, "since": since},
        **more,
    }  # fmt: skip


def metrics(**changes: Any) -> Metrics:
    values = {"requests": 200.0, "error_ratio": 0.0, "ttft_p95_ms": 300.0, "answer_p95_ms": 900.0, **changes}
    return Metrics(**{k: v if isinstance(v, Reading) else Reading(v) for k, v in values.items()})


SILENT = Metrics(*[Reading(None, "Unreachable", "connection refused")] * 4)
EMPTY = Metrics(*[Reading(None, "NoData", "the query matched nothing")] * 4)


def counts(judged: int = 160, successes: int | None = None, **changes: Any) -> Counts:
    good = int(judged * 0.93) if successes is None else successes
    values: dict[str, Any] = {
        "requests": max(judged, 200), "citations": 300, "judged": judged, "successes": good, "step_requests": max(judged, 200),
        "step_judged": judged, "step_successes": good, "judged_cost_usd": 0.003 * judged, **changes,
    }  # fmt: skip
    return Counts(**values)


def tally(candidate: Counts | None = None, control: Counts | None = None) -> Tally:
    return Tally(candidate or counts(), control or counts())


QUIET = Tally(Counts(), Counts())


def seen(
    stored: dict[str, Any] | None = None, *, spec: ReleaseSpec | None = None, name: str = NAME, meta: dict[str, Any] | None = None,
    **changes: Any,
) -> Seen:  # fmt: skip
    """One look; by default nothing is stored, the release before serves, all references hold and everything is warm."""
    spec = spec or a_spec()
    manifest = {
        "apiVersion": "meridian.dev/v1alpha1",
        "kind": "Release",
        "metadata": {
            "name": name, "namespace": "meridian", "uid": f"uid-{name}", "generation": 1, "resourceVersion": "1",
            "creationTimestamp": "2026-11-04T11:00:00Z", **(meta or {}),
        },
        "spec": spec.to_wire(),
        "status": stored or {},
    }  # fmt: skip
    parts: dict[str, Any] = {"live": live(), "siblings": (), "problems": (), **changes}
    return Seen(manifest, spec, ReleaseStatus.from_wire(stored or {}), **parts)


def in_canary(*, ago: float = 20, **changes: Any) -> Seen:
    """At 50 %, acknowledged, with enough good evidence to be promoted."""
    stored = changes.pop("stored", None) or status("Canary", ago=ago)
    parts: dict[str, Any] = {
        "live": live(BEFORE, changes.get("name", NAME), 50),
        "tally": tally(),
        "metrics": metrics(),
        **changes,
    }
    return seen(stored, **parts)


def in_bake(*, observed: int = 0, last: float | None = 2, **changes: Any) -> Seen:
    """All traffic, acknowledged, healthy; the last healthy look was `last` seconds ago."""
    more: dict[str, Any] = {"bakeObservedSeconds": observed}
    if last is not None:
        more["bakeLastLook"] = timestamp(NOW - timedelta(seconds=last))
    stored = changes.pop("stored", None) or status("Bake", **more)
    world = {"live": live(changes.get("name", NAME)), "tally": tally(control=Counts()), "metrics": metrics()}
    parts: dict[str, Any] = {**world, **changes}
    return seen(stored, **parts)
