"""The digest of what a release serves: the same for the same content, for good, and another for any other."""

from __future__ import annotations

from typing import Any

import pytest

from meridian_api.v1alpha1.release import CONTENT, ReleaseSpec, content_digest

GOLDEN = "sha256:85ba5e6157cf3a9454debd7c97f50513d8413d25db1c161637d400c732d8d6c4"


def wire(**changes: Any) -> dict[str, Any]:
    image = "docker.io/meridian/dataplane@sha256:" + "a" * 64
    return {
        "service": "support",
        "app": {"version": "3.14.2", "image": image},
        "prompt": {"name": "prompt-1", "digest": "sha256:" + "b" * 64},
        "models": {"primary": {"pool": "support-llm", "version": "v12", "region": "eu-1"}},
        "index": {"epoch": "epoch-1", "embeddingModel": "wordllama@r1"},
        "eval": {"goldenSet": {"name": "golden", "digest": "sha256:" + "c" * 64}},
        **changes,
    }


def digest(**changes: Any) -> str:
    return content_digest(ReleaseSpec.from_wire(wire(**changes)))


def test_the_digest_of_an_unchanged_release_never_changes():
    """K-31: an upgrade that changed it would call every rollback target replaced."""
    assert digest() == GOLDEN


def test_a_default_written_out_is_the_same_content():
    """K-31, K-32: the API server stores defaults that a person left out, and a later version may have more of them."""
    assert digest(settings={"deadlineMs": 8000, "retrieval": {}}, tools=[]) == GOLDEN


def test_the_order_of_tools_is_no_content():
    """R-22: the server lets a list of type `map` be reordered in place; the same release must not be called replaced."""
    tools = [
        {"name": name, "schemaVersion": "2", "configMap": {"name": "t", "digest": "sha256:" + "e" * 64}}
        for name in ("get_order", "get_refund")
    ]
    assert digest(tools=tools) == digest(tools=tools[::-1]) != digest(tools=tools[:1])


@pytest.mark.parametrize(
    "changes",
    [
        {"rollbackTo": "before"},
        {"intent": "Abort"},
        {"attempt": 2},
        {"rollout": {"bakeSeconds": 7}},
        {"approvals": [{"by": "ada", "at": "2026-11-04T10:00:00Z"}]},
    ],
    ids=lambda c: next(iter(c)),
)
def test_how_a_release_is_rolled_out_is_not_what_it_serves(changes: dict[str, Any]):
    assert digest(**changes) == GOLDEN


@pytest.mark.parametrize(
    "changes",
    [
        {"app": {**wire()["app"], "version": "3.14.3"}},
        {"prompt": {"name": "prompt-1", "digest": "sha256:" + "d" * 64}},
        {"models": {"primary": {"pool": "support-llm", "version": "v13", "region": "eu-1"}}},
        {"index": {"epoch": "epoch-2", "embeddingModel": "wordllama@r1"}},
        {"settings": {"deadlineMs": 9000}},
        {
            "tools": [
                {"name": "get_order", "schemaVersion": "2", "configMap": {"name": "t", "digest": "sha256:" + "e" * 64}}
            ]
        },
        {"service": "sales"},
    ],
    ids=lambda c: next(iter(c)),
)
def test_any_change_of_what_is_served_changes_the_digest(changes: dict[str, Any]):
    assert digest(**changes) != GOLDEN


def test_every_immutable_field_is_content_or_says_why_not():
    """A field that is added to the manifest has to be decided on here."""
    about_the_rollout = {"eval", "rollbackTo", "rollout"}
    assert set(ReleaseSpec.IMMUTABLE) == CONTENT | about_the_rollout
