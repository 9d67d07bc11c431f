"""The checks that need no traffic and no model: does everything a release names exist, and is it what was pinned? Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from meridian_api.digest import configmap_digest
from meridian_api.v1alpha1.indexepoch import IndexEpochStatus
from meridian_api.v1alpha1.release import ReleaseSpec
from meridian_operator.planning.canary import PlannedSample, plan_non_inferiority
from meridian_operator.release.seen import Problem
from meridian_operator.serving.compile import Sources, compile_manifest

GOLDEN_KEY = "golden.jsonl"
# Everything else that `compile` finds lies in content that is pinned or immutable, so that waiting cannot mend it.
_HEALING = ("NotFound", "ReleaseInvalid", "InferencePoolInvalid", "IndexEpochInvalid")


def check(
    name: str,
    spec: ReleaseSpec,
    sources: Sources,
    golden: Mapping[str, str] | None,
    epochs: Mapping[str, IndexEpochStatus],
) -> tuple[Problem, ...]:
    """Every problem, in the order a person would look: content, golden set, index, the plan of the canary."""
    made = compile_manifest(sources, name)
    found = [Problem(p.reason, p.message, p.reason.endswith(_HEALING)) for p in made] if isinstance(made, tuple) else []
    found += _golden(spec, golden)
    found += _epoch(spec, epochs)
    if spec.rollback_to is not None:
        planned = planned_sample(spec)
        if isinstance(planned, str):
            found.append(Problem("CanaryNotPlannable", f"rollout.canary: {planned}", heals=False))
    return tuple(found)


def look_alpha(spec: ReleaseSpec) -> float:
    """One-sided alpha of each look. `Extend` plans a second look at the deadline, and so each has half (R-08)."""
    alpha = spec.rollout.canary.alpha
    return alpha / 2 if spec.rollout.on_inconclusive == "Extend" else alpha


def planned_sample(spec: ReleaseSpec) -> PlannedSample | str:
    """Judged requests per arm of the last step, a function of the immutable spec alone; or why there is no plan."""
    canary = spec.rollout.canary
    try:
        return plan_non_inferiority(
            canary.baseline_success, canary.margin, look_alpha(spec), canary.power, canary.steps[-1].weight
        )
    except ValueError as wrong:
        return str(wrong)


def _golden(spec: ReleaseSpec, golden: Mapping[str, str] | None) -> list[Problem]:
    ref = spec.eval.golden_set
    if golden is None:
        return [Problem("GoldenSetNotFound", f"golden set: ConfigMap {ref.name} does not exist", heals=True)]
    actual = configmap_digest(golden)
    if actual != ref.digest:
        return [
            Problem(
                "GoldenSetDigestMismatch",
                f"golden set: ConfigMap {ref.name} has digest {actual}, the release pins {ref.digest}",
                heals=False,
            )
        ]
    lines = [line for line in golden.get(GOLDEN_KEY, "").splitlines() if line.strip()]
    if not lines:
        return [
            Problem("GoldenSetEmpty", f"golden set: ConfigMap {ref.name} has no case under {GOLDEN_KEY}", heals=False)
        ]
    for number, line in enumerate(lines, 1):
        why = _case(line)
        if why:
            return [Problem("GoldenSetInvalid", f"golden set: {ref.name}, line {number}: {why}", heals=False)]
    return []


def _case(line: str) -> str | None:
    """Why a line is no golden case. A tenant is needed: every question is asked as somebody."""
    try:
        case = json.loads(line)
    except ValueError:
        return "is no JSON"
    if not isinstance(case, dict):
        return "is no JSON object"
    return next((f"has no {key}" for key in ("id", "tenant", "question") if not isinstance(case.get(key), str)), None)


def _epoch(spec: ReleaseSpec, epochs: Mapping[str, IndexEpochStatus]) -> list[Problem]:
    """An epoch that does not exist, or of another model, is named by `compile` already."""
    status = epochs.get(spec.index.epoch)
    if status is None or status.phase == "Built":
        return []
    if status.phase == "Failed":
        return [
            Problem("IndexEpochFailed", f"IndexEpoch {spec.index.epoch} failed: {status.message}"[:500], heals=True)
        ]
    return [
        Problem("IndexEpochNotBuilt", f"IndexEpoch {spec.index.epoch} is not built yet ({status.phase})", heals=True)
    ]
