"""The digest of what a release serves: the same for the same content, for good, and another for any other."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from meridian_api.content import CONTENT, content_digest
from meridian_api.v1alpha1.release import ReleaseSpec

GOLDEN = "sha256:85ba5e6157cf3a9454debd7c97f50513d8413d25db1c161637d400c732d8d6c4"

MODEL = {"pool": "p", "version": "v1", "region": "eu-1"}
DEFAULTS: dict[str, Any] = {
    "models.fallback": None, "tools": [], "settings.deadlineMs": 8000, "settings.objectives.availability": 0.999,
    "settings.objectives.ttftP95Ms": 1500, "settings.objectives.answerP95Ms": 8000,
    "settings.objectives.maxCostPerSuccessUsd": 0.006, "settings.retrieval.candidates": 40, "settings.retrieval.topK": 6,
    "settings.retrieval.rerank": True, "settings.retrievalCalls.timeoutMs": 800, "settings.retrievalCalls.retries": 1,
    "settings.retrievalCalls.breaker.window": 20, "settings.retrievalCalls.breaker.openAtFailureRatio": 0.5,
    "settings.orderCalls.timeoutMs": 2000, "settings.orderCalls.retries": 1, "settings.orderCalls.breaker.window": 20,
    "settings.orderCalls.breaker.openAtFailureRatio": 0.5, "settings.sideEffectCalls.timeoutMs": 5000,
    "settings.sideEffectCalls.retries": 0, "settings.sideEffectCalls.breaker.window": 20,
    "settings.sideEffectCalls.breaker.openAtFailureRatio": 0.5, "settings.model.firstTokenTimeoutMs": 3000,
    "settings.model.maxOutputTokens": 256, "settings.model.inputTokenBudget": 3700, "settings.model.breaker.window": 20,
    "settings.model.breaker.openAtFailureRatio": 0.5, "settings.maxExtraLoadRatio": 0.1, "settings.admission.maxWaitMs": 2000,
    "settings.admission.maxInFlight": 64,
    "settings.admission.shedOrder": ["batch", "free_tier", "standard", "interactive_support"],
    "settings.ladder": ["full", "no_rerank", "fallback_model", "snippets_only", "open_ticket"],
}  # fmt: skip
"""As the first version had them. More may come; none of these may change."""


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


def flat(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {path: value}
    return {k: v for key, one in value.items() for k, v in flat(one, f"{path}.{key}".lstrip(".")).items()}


def test_no_default_of_what_is_served_ever_changes():
    """K-31, K-32: the API server has written the old one into stored releases, which would have another digest then, and would not
    be what serves any more. A better default needs a field of another name.
    """
    dumped = ReleaseSpec.from_wire(wire()).model_dump(mode="json", by_alias=True, include=CONTENT)
    assert {path: value for path, value in flat(dumped).items() if path in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize(
    "changes",
    [
        {"app": {"version": "3.14.2", "image": "docker.io/meridian/dataplane:3.14.2@sha256:" + "a" * 64}},
        {"settings": {"retrieval": {"candidates": 6, "topK": 12}}},
        {
            "models": {
                "primary": {"pool": "p", "version": "v", "region": "eu-1"},
                "fallback": {"pool": "p", "version": "v", "region": "eu-1"},
            }
        },
        {"models": {"primary": {**MODEL, "version": "v1-latest"}}},
        {"rollout": {"maxDurationSeconds": 60, "canary": {"labelDelaySeconds": 600}}},
    ],
    ids=["tagged image", "topK", "fallback", "latest", "label delay"],
)
def test_what_was_stored_before_a_rule_stays_readable_and_nothing_new_breaks_it(changes: dict[str, Any]):
    """K-32: a release that serves does not become unreadable by an upgrade; one that is written today is refused."""
    ReleaseSpec.from_wire(wire(**changes), unknown="ignore")
    with pytest.raises(ValidationError):
        ReleaseSpec.from_wire(wire(**changes))
