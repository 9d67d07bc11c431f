"""The sample's objects: they parse, resolve against each other, and pass every check."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from meridian_api.digest import configmap_digest
from meridian_api.v1alpha1.indexepoch import IndexEpochSpec, IndexEpochStatus
from meridian_api.v1alpha1.inferencepool import InferencePoolSpec
from meridian_api.v1alpha1.release import ReleaseSpec
from meridian_api.v1alpha1.tenantpolicy import TenantPolicySpec
from meridian_operator.planning.canary import PlannedSample
from meridian_operator.release.checks import check, planned_sample
from meridian_operator.serving.compile import Sources, serving_tenant

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / "crds" / "samples" / "templates" / "support"
MANIFESTS = ROOT / "e2e" / "stories" / "manifests"
IMAGE = "docker.io/meridian/any@sha256:" + "a" * 64


def objects() -> list[dict[str, Any]]:
    texts = [p.read_text() for p in (*sorted(TEMPLATES.glob("*.yaml")), *sorted(MANIFESTS.glob("*.yaml")))]
    raw = [d for t in texts for d in yaml.safe_load_all(t) if d]
    digests = {d["metadata"]["name"]: configmap_digest(d["data"]) for d in raw if d["kind"] == "ConfigMap"}
    filled = [
        re.sub(r"\$\{DIGEST:([^}]+)\}", lambda m: digests[m[1]], re.sub(r"\$\{[A-Z]+_IMAGE\}", IMAGE, t)) for t in texts
    ]
    return [d for t in filled for d in yaml.safe_load_all(t) if d]


OBJECTS = objects()


def specs(kind: str, model: Any) -> dict[str, Any]:
    return {d["metadata"]["name"]: model.from_wire(d["spec"]) for d in OBJECTS if d["kind"] == kind}


RELEASES = specs("Release", ReleaseSpec)
MAPS = {d["metadata"]["name"]: d["data"] for d in OBJECTS if d["kind"] == "ConfigMap"}
SOURCES = Sources(
    service="support",
    region="eu-1",
    namespace="meridian",
    releases=RELEASES,
    pools=specs("InferencePool", InferencePoolSpec),
    epochs=specs("IndexEpoch", IndexEpochSpec),
    tenants=tuple(serving_tenant(t) for t in specs("TenantPolicy", TenantPolicySpec).values()),
    config_maps=MAPS,
)
BUILT = {"idx-2026-10-27": IndexEpochStatus(phase="Built")}


def problems(name: str, **changes: Any) -> list[str]:
    parts: dict[str, Any] = {"spec": RELEASES[name], "golden": MAPS["golden-support-1"], "epochs": BUILT, **changes}
    return [p.reason for p in check(name, parts["spec"], SOURCES, parts["golden"], parts["epochs"])]


@pytest.mark.parametrize("name", ["2026-10-28.1", "2026-11-04.1", "2026-11-11.1"])
def test_every_sample_release_passes_its_checks(name: str):
    assert problems(name) == []


def test_the_samples_canary_needs_155_judged_requests_per_arm():
    """R-09."""
    assert planned_sample(RELEASES["2026-11-04.1"]) == PlannedSample(155, 155)


def test_the_chain_of_rollback_targets_is_the_storys():
    assert [r.rollback_to for r in RELEASES.values()] == [None, "2026-10-28.1", "2026-11-04.1"]


def test_one_tenant_is_bound_to_the_eu_and_one_is_not():
    assert {t.tenant_id: set(t.allowed_regions) for t in SOURCES.tenants} == {
        "acme-eu": {"eu-1"},
        "globex": {"eu-1", "us-1"},
    }


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"golden": None}, "GoldenSetNotFound"),
        ({"golden": {"golden.jsonl": "{}\n"}}, "GoldenSetDigestMismatch"),
        ({"epochs": {"idx-2026-10-27": IndexEpochStatus(phase="Building")}}, "IndexEpochNotBuilt"),
        ({"epochs": {"idx-2026-10-27": IndexEpochStatus(phase="Failed")}}, "IndexEpochFailed"),
    ],
)
def test_what_does_not_hold_is_named(changes: dict[str, Any], reason: str):
    """R-29, R-40."""
    assert problems("2026-11-04.1", **changes) == [reason]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"golden.jsonl": "\n  \n"}, "GoldenSetEmpty"),
        ({"other": "x"}, "GoldenSetEmpty"),
        ({"golden.jsonl": "not json\n"}, "GoldenSetInvalid"),
        ({"golden.jsonl": '{"id": "1", "question": "?"}\n'}, "GoldenSetInvalid"),
        ({"golden.jsonl": "[1]\n"}, "GoldenSetInvalid"),
    ],
)
def test_a_golden_set_without_usable_cases_is_refused_before_any_traffic(data: dict[str, str], reason: str):
    """R-03."""
    wire = RELEASES["2026-11-04.1"].to_wire()
    wire["eval"]["goldenSet"]["digest"] = configmap_digest(data)
    found = check("2026-11-04.1", ReleaseSpec.from_wire(wire), SOURCES, data, BUILT)
    assert [(p.reason, p.heals) for p in found] == [(reason, False)]


def test_a_prompt_of_another_digest_and_a_foreign_embedding_model_cannot_heal():
    """R-35."""
    wire = RELEASES["2026-11-04.1"].to_wire()
    wire["prompt"]["digest"] = "sha256:" + "0" * 64
    wire["index"]["embeddingModel"] = "wordllama@other"
    spec = ReleaseSpec.from_wire(wire)
    sources = Sources(**{**SOURCES.__dict__, "releases": {"r": spec}})
    found = check("r", spec, sources, MAPS["golden-support-1"], BUILT)
    assert {p.reason for p in found} == {"DigestMismatch", "EmbeddingMismatch"} and not any(p.heals for p in found)


def test_a_canary_that_leaves_no_control_cannot_be_planned():
    """R-11."""
    wire = RELEASES["2026-11-04.1"].to_wire()
    wire["rollout"]["canary"]["steps"] = [{"weight": 50}, {"weight": 100}]
    found = check("2026-11-04.1", ReleaseSpec.from_wire(wire), SOURCES, MAPS["golden-support-1"], BUILT)
    assert [p.reason for p in found] == ["CanaryNotPlannable"]
