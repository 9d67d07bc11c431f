"""serving.compile: what a snapshot is made of, and what each missing piece is called."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from serving_world import NAMESPACE, configmap, release_spec, sources, tenant

from meridian_api.digest import configmap_digest
from meridian_api.names import derived_name
from meridian_api.serving import Snapshot, pack, unpack
from meridian_operator.serving.compile import (
    Compiled,
    Pointer,
    Problem,
    Stamp,
    compile_snapshot,
    same_content,
)

STAMP = Stamp(generation=7, lease_epoch=3, issued_at="2026-01-01T00:00:00Z")


def compiled(**overrides: object) -> Compiled:
    answer = compile_snapshot(sources(**overrides), Pointer("support-1"), STAMP)
    assert isinstance(answer, Compiled), answer
    return answer


def reasons(answer: Compiled | tuple[Problem, ...]) -> list[str]:
    assert isinstance(answer, tuple), answer
    return [problem.reason for problem in answer]


def test_a_snapshot_holds_the_whole_release_and_survives_packing() -> None:
    """S-32: prompt, models, index, tools and settings, in full."""
    snapshot = compiled().snapshot
    manifest = snapshot.serving
    assert (manifest.release, manifest.prompt, manifest.history_format) == ("support-1", "prompt-1", "h1")
    assert manifest.system_prompt == "Answer from the passages."
    host = f"{derived_name('qwen', 'v1')}.{NAMESPACE}.svc.cluster.local"
    assert manifest.primary.base_url == f"http://{host}:8080"
    assert manifest.index.embedding.ident == "wordllama@r1"
    assert [tool.name for tool in manifest.tools] == ["get_order"]
    assert unpack(pack(snapshot)) == snapshot


def test_a_candidate_travels_in_full_with_weight_and_salt() -> None:
    """S-37."""
    answer = compile_snapshot(sources(), Pointer("support-1", "support-2", 25, "salt"), STAMP)
    assert isinstance(answer, Compiled)
    assert answer.snapshot.candidate is not None
    assert answer.snapshot.candidate.weight_percent == 25
    assert answer.snapshot.candidate.manifest.release == "support-2"
    assert Pointer.of(answer.snapshot) == Pointer("support-1", "support-2", 25, "salt")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"releases": {}}, "ReleaseNotFound"),
        ({"pools": {}}, "InferencePoolNotFound"),
        ({"epochs": {}}, "IndexEpochNotFound"),
        ({"tenants": ()}, "NoTenants"),
        ({"unreadable": {"InferencePool/qwen": "spec.region: required"}, "pools": {}}, "InferencePoolInvalid"),
    ],
)
def test_what_is_missing_is_named(change: dict[str, object], reason: str) -> None:
    """R-08: references to what does not exist."""
    assert reason in reasons(compile_snapshot(sources(**change), Pointer("support-1"), STAMP))


def test_every_missing_config_map_is_reported_at_once() -> None:
    found = reasons(compile_snapshot(sources(config_maps={}), Pointer("support-1"), STAMP))
    assert found == ["ConfigMapNotFound", "ConfigMapNotFound"]


def test_a_prompt_that_changed_under_its_name_is_refused() -> None:
    """S-32: a release pins bytes."""
    maps = {**sources().config_maps, "prompt-1": {"system.txt": "Say anything.", "format.txt": "h1"}}
    assert reasons(compile_snapshot(sources(config_maps=maps), Pointer("support-1"), STAMP)) == ["DigestMismatch"]


def test_an_embedding_model_other_than_the_epochs_is_refused() -> None:
    """S-40, R-35."""
    spec = release_spec(index={"epoch": "epoch-1", "embeddingModel": "wordllama@r2"})
    answer = compile_snapshot(sources(releases={"support-1": spec}), Pointer("support-1"), STAMP)
    assert reasons(answer) == ["EmbeddingMismatch"]


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        ({"parameters": {"type": "no-such-type"}}, "ToolInvalid"),
        ({"name": "other"}, "ToolMismatch"),
        ({"surprise": 1}, "ToolInvalid"),
    ],
)
def test_a_tool_that_is_not_what_the_release_names_is_refused(tool: dict[str, object], reason: str) -> None:
    declared = json.loads(configmap("tool-1")["tool.json"])
    data = {"tool.json": json.dumps({**declared, **tool})}
    spec = release_spec(tool_digest=configmap_digest(data))
    maps = {**sources().config_maps, "tool-1": data}
    answer = compile_snapshot(sources(releases={"support-1": spec}, config_maps=maps), Pointer("support-1"), STAMP)
    assert reasons(answer) == [reason]


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"$ref": "http://169.254.169.254/latest"}, "get_order: $ref http://169.254.169.254/latest"),
        ({"properties": {"a": {"$dynamicRef": "file:///etc/passwd"}}}, "get_order: $dynamicRef file:///etc/passwd"),
        ({"$ref": "#/nowhere"}, "get_order: $ref #/nowhere"),
        ({"$ref": "#gone"}, "get_order: $ref #gone"),
        ({"$defs": {"id": {"type": "string"}}, "properties": {"order_id": {"$ref": "#/$defs/id"}}}, None),
    ],
)
def test_a_tool_schema_that_refers_outside_itself_is_refused_by_name(
    parameters: dict[str, object], named: str | None
) -> None:
    """T-44, H-27: whoever validates with it would fetch what it names."""
    declared = json.loads(configmap("tool-1")["tool.json"])
    data = {"tool.json": json.dumps({**declared, "parameters": parameters})}
    spec = release_spec(tool_digest=configmap_digest(data))
    maps = {**sources().config_maps, "tool-1": data}
    answer = compile_snapshot(sources(releases={"support-1": spec}, config_maps=maps), Pointer("support-1"), STAMP)
    assert isinstance(answer, Compiled) if named is None else reasons(answer) == ["ToolInvalid"]
    assert named is None or (isinstance(answer, tuple) and named in answer[0].message)


def test_a_tenant_without_an_eligible_target_is_reported_and_stops_nobody_else() -> None:
    """IV-12, IV-03: it fails closed at the data plane, and a rollback does not wait for it."""
    answer = compiled(tenants=(tenant("acme"), tenant("far", regions=("us-9",))))
    assert [warning.reason for warning in answer.warnings] == ["NoEligibleTarget", "IndexOutsideRegions"]
    assert "far" in answer.warnings[0].message
    assert [t.tenant_id for t in answer.snapshot.tenants] == ["acme", "far"]


def test_a_manifest_whose_references_are_gone_is_kept_from_the_stored_snapshot() -> None:
    """IV-03: deleting a ConfigMap does not take the way back."""
    last = compiled().snapshot
    answer = compile_snapshot(sources(config_maps={}), Pointer("support-1"), replace(STAMP, generation=8), last)
    assert isinstance(answer, Compiled)
    assert answer.snapshot.serving == last.serving
    assert {warning.reason for warning in answer.warnings} == {"KeptLastGood"}


def test_equal_content_is_recognised_whatever_its_stamp() -> None:
    """K-27."""
    one = compiled().snapshot
    other = compile_snapshot(sources(), Pointer("support-1"), Stamp(9, 4, "2026-02-01T00:00:00Z", True))
    assert isinstance(other, Compiled)
    assert same_content(one, other.snapshot)
    assert not same_content(one, compiled(tenants=(tenant("acme"), tenant("b"))).snapshot)


def test_compiling_twice_gives_the_same_bytes() -> None:
    def bytes_of(snapshot: Snapshot) -> bytes:
        return pack(snapshot)

    assert bytes_of(compiled().snapshot) == bytes_of(compiled().snapshot)
