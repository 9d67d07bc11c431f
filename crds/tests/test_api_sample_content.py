"""The sample's content keeps what the golden set, the traffic and the isolation probes rely on.

Shows S-34 (known answers and citations) for the data itself; the evaluation has its own tests.
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "crds" / "samples"
TRAFFIC = ROOT / "e2e" / "stories" / "questions.jsonl"
CUSTOMER_ACL = ["customers", "support_agent"]
INTERNAL_ACL = ["support_agent", "billing_lead"]
MARKERS = {"acme-eu": "zephyrquartz", "globex": "bramblecobalt"}
ORDER_ID = re.compile(r"\b[A-Z]-[0-9]{4,8}\b")


def _load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_content", SAMPLES / "build_content.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build_content = _load_script()
DOCUMENTS: dict[str, dict[str, Any]] = {
    tenant: {d["docId"]: d for d in build_content.documents(tenant)} for tenant in build_content.TENANTS
}
GOLDEN: list[dict[str, Any]] = build_content.golden_cases()
QUESTIONS: list[dict[str, Any]] = [json.loads(line) for line in TRAFFIC.read_text(encoding="utf-8").splitlines()]
ANSWERED = [case for case in GOLDEN if not case["abstain"]]
ABSTAINED = [case for case in GOLDEN if case["abstain"]]


def _readable(tenant: str, groups: list[str]) -> dict[str, dict[str, Any]]:
    documents = DOCUMENTS[tenant]
    return {i: d for i, d in documents.items() if set(d["aclGroups"]) & set(groups)}


def _text_of(documents: dict[str, dict[str, Any]]) -> str:
    return "\n".join(str(d["text"]) for d in documents.values()).lower()


def _formal(question: str) -> bool:
    return question[0].isupper() and question.endswith("?")


def test_templates_are_what_the_content_gives() -> None:
    assert build_content.stale() == [], "run python crds/samples/build_content.py"


def test_written_yaml_reads_back_as_the_same_immutable_config_maps() -> None:
    for name, objects in build_content.template_files().items():
        text = (build_content.TEMPLATES / name).read_text(encoding="utf-8")
        assert list(yaml.safe_load_all(text)) == objects
        for written in objects:
            assert written["immutable"] is True
            assert written["metadata"]["namespace"] == "meridian"
            assert all(isinstance(value, str) for value in written["data"].values())


def test_a_document_whose_file_is_not_named_after_it_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "POL-EU-999.md"
    wrong.write_text("---\ndocId: POL-EU-001\n---\n# Returns\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"POL-EU-999\.md"):
        build_content.read_document(wrong)


def test_data_beyond_one_mebibyte_is_refused() -> None:
    with pytest.raises(ValueError, match="split the documents"):
        build_content.config_map("documents-large", {"documents.jsonl": "x" * 1024 * 1024})


def test_two_tenants_have_enough_documents_some_of_them_internal() -> None:
    assert len(DOCUMENTS["acme-eu"]) >= 26
    assert len(DOCUMENTS["globex"]) >= 20
    for tenant, documents in DOCUMENTS.items():
        for doc_id, document in documents.items():
            assert document["aclGroups"] in (CUSTOMER_ACL, INTERNAL_ACL), doc_id
            assert document["sourceUri"] == f"https://policies.example/{tenant}/{doc_id}"
            assert 150 <= len(document["text"].split()) <= 500, doc_id
        assert sum(d["aclGroups"] == INTERNAL_ACL for d in documents.values()) >= 3
    assert not DOCUMENTS["acme-eu"].keys() & DOCUMENTS["globex"].keys()


def test_the_running_example_is_version_4_and_for_staff_only() -> None:
    policy = DOCUMENTS["acme-eu"]["POL-EU-009"]
    assert (policy["version"], policy["aclGroups"]) == (4, INTERNAL_ACL)


def test_isolation_markers_occur_in_one_internal_document_of_their_tenant_only() -> None:
    for tenant, marker in MARKERS.items():
        for owner, documents in DOCUMENTS.items():
            holders = [d for d in documents.values() if marker in d["text"].lower()]
            assert len(holders) == (owner == tenant)
            assert all(d["aclGroups"] == INTERNAL_ACL for d in holders)


def test_no_tenant_names_the_other() -> None:
    assert "globex" not in _text_of(DOCUMENTS["acme-eu"])
    assert "acme" not in _text_of(DOCUMENTS["globex"])


def test_instructions_hidden_in_documents_are_part_of_both_tenants() -> None:
    injected = re.compile(r"(ignore|disregard) (all |your |the )?(previous |rules|instructions)")
    for tenant, documents in DOCUMENTS.items():
        assert injected.search(_text_of(documents)), tenant


def test_golden_set_has_enough_cases_with_unique_ids_and_questions() -> None:
    assert len(GOLDEN) >= 60
    assert len(ABSTAINED) >= 8
    assert len({case["id"] for case in GOLDEN}) == len(GOLDEN)
    assert len({(case["tenant"], case["question"]) for case in GOLDEN}) == len(GOLDEN)
    assert all(_formal(case["question"]) for case in GOLDEN)


@pytest.mark.parametrize("case", ANSWERED, ids=lambda case: str(case["id"]))
def test_required_documents_are_readable_and_hold_the_facts(case: dict[str, Any]) -> None:
    readable = _readable(case["tenant"], case["groups"])
    required = {doc_id: readable[doc_id] for doc_id in case["requiredDocuments"]}
    assert required
    assert case["facts"]
    for fact in case["facts"]:
        assert fact.lower() in _text_of(required), fact


def test_order_cases_name_their_order_in_the_question() -> None:
    with_order = [case for case in GOLDEN if case["order"]]
    assert len(with_order) >= 3
    for case in GOLDEN:
        assert ORDER_ID.findall(case["question"]) == ([case["order"]] if case["order"] else [])


def test_abstain_cases_name_neither_documents_nor_facts() -> None:
    assert all(not case["facts"] and not case["requiredDocuments"] for case in ABSTAINED)


@pytest.mark.parametrize(
    ("tenant", "groups", "word", "holder", "why"),
    [
        ("globex", ["customers"], "resoled", "acme-eu", "only the other tenant repairs boots"),
        ("acme-eu", ["customers"], "installments", "globex", "only the other tenant lends"),
        ("acme-eu", ["customers"], "goodwill", "acme-eu", "only internal documents say it"),
        ("globex", ["customers"], "bramblecobalt", "globex", "only internal documents say it"),
        ("globex", ["support_agent"], "zephyrquartz", "acme-eu", "only the other tenant has it"),
    ],
)
def test_abstain_cases_cover_what_the_asker_may_not_read(
    tenant: str, groups: list[str], word: str, holder: str, why: str
) -> None:
    asked = [c for c in ABSTAINED if c["tenant"] == tenant and word in c["question"].lower()]
    assert any(case["groups"] == groups for case in asked), why
    assert word not in _text_of(_readable(tenant, groups))
    assert word in _text_of(DOCUMENTS[holder])


def test_traffic_is_mixed_and_differs_from_the_golden_set() -> None:
    assert len(QUESTIONS) >= 150
    formal = sum(_formal(q["question"]) for q in QUESTIONS)
    assert 0.6 <= formal / len(QUESTIONS) <= 0.75
    golden = {case["question"] for case in GOLDEN}
    assert not [q["question"] for q in QUESTIONS if q["question"] in golden]
    assert not [q["question"] for q in QUESTIONS if ORDER_ID.search(q["question"])]
    assert {q["tenant"] for q in QUESTIONS} == set(DOCUMENTS)


def test_traffic_facts_stand_in_documents_the_asker_may_read() -> None:
    for asked in QUESTIONS:
        text = _text_of(_readable(asked["tenant"], asked["groups"]))
        assert bool(asked["facts"]) != asked["abstain"], asked["question"]
        for fact in asked["facts"]:
            assert fact.lower() in text, (asked["question"], fact)


def test_the_tool_takes_one_well_formed_order_id_and_nothing_else() -> None:
    text = (SAMPLES / "content" / "tools" / "tool-get-order-2.json").read_text(encoding="utf-8")
    tool = json.loads(text)
    parameters = tool["parameters"]
    assert parameters["properties"]["order_id"]["pattern"] == "^[A-Z]-[0-9]{4,8}$"
    assert parameters["additionalProperties"] is False
    assert parameters["required"] == ["order_id"]
    assert tool["sideEffect"] is False


@pytest.mark.parametrize("name", ["prompt-support-1", "prompt-support-2"])
def test_prompts_hold_the_rules_that_the_data_plane_relies_on(name: str) -> None:
    text = (SAMPLES / "content" / "prompts" / f"{name}.txt").read_text(encoding="utf-8")
    assert "I could not find this in the documents available to you." in text
    assert "cite the marker of each passage used in square brackets" in text.lower()
    assert "without a tool result" in text or "Without one" in text
    assert 150 <= len(text.split()) <= 300
