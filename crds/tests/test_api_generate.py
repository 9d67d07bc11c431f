"""The CRDs in the tree are what the models say."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import yaml

from meridian_api import generate, names
from meridian_api.digest import configmap_digest
from meridian_api.kinds import KINDS
from meridian_api.meta import ApiModel
from meridian_api.schema import Unstructural, structural


def test_the_committed_crds_are_not_stale() -> None:
    assert generate.main(["--check"]) == 0


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_the_written_yaml_reads_back_as_the_same_value(kind: Any) -> None:
    assert yaml.safe_load(generate.render(kind)) == generate.crd(kind)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_text_and_list_is_bounded(kind: Any) -> None:
    """K-35: what reaches etcd has a length."""
    unbounded: list[str] = []

    def walk(node: dict[str, Any], path: str) -> None:
        if node["type"] == "string" and not {"maxLength", "enum"} & set(node):
            unbounded.append(path)
        if node["type"] == "array" and "maxItems" not in node:
            unbounded.append(path)
        if "additionalProperties" in node and "maxProperties" not in node:
            unbounded.append(path)
        for name, child in node.get("properties", {}).items():
            walk(child, f"{path}.{name}")
        if "items" in node:
            walk(node["items"], f"{path}[]")

    walk(structural(kind.spec), "spec")
    walk(structural(kind.status), "status")
    assert not unbounded


def test_a_union_is_refused_with_the_fields_path() -> None:
    class Odd(ApiModel):
        value: int | str

    with pytest.raises(Unstructural, match="Odd.value"):
        structural(Odd)


def test_derived_names_are_labels_stable_and_apart() -> None:
    """A release's name has dots and begins with a digit; Services and KServe refuse both."""
    tries = ["2026-10-28.1", "a.b", "a-b", "x" * 200, "---", "Ünï"]
    made = [names.derived_name(each, "v1") for each in tries]
    for name in made:
        assert len(name) <= names.MAX_LENGTH
        assert name[0].isalpha()
        assert name.replace("-", "").isalnum()
        assert name == name.lower()
    assert len(set(made)) == len(made)
    assert made == [names.derived_name(each, "v1") for each in tries]
    assert all(a != b for a, b in pairwise(made))


def test_a_configmap_digest_ignores_order_and_sees_every_byte() -> None:
    assert configmap_digest({"a": "1", "b": "2"}) == configmap_digest({"b": "2", "a": "1"})
    assert configmap_digest({"a": "1"}) != configmap_digest({"a": "1 "})
