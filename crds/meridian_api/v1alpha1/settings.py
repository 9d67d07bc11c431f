"""Settings that travel with a Release, so that they are canaried like everything else. Defaults are the reference's numbers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from meridian_api.meta import ApiModel, Ratio, Rule
from meridian_api.v1alpha1.tenantpolicy import Tier

Milliseconds = Annotated[int, Field(ge=1, le=600_000)]
Rung = Literal["full", "no_rerank", "fallback_model", "snippets_only", "open_ticket"]


class Objectives(ApiModel):
    """Service objectives (S-01, S-03)."""

    availability: Ratio = 0.999
    ttft_p95_ms: Milliseconds = 1500
    answer_p95_ms: Milliseconds = 8000
    max_cost_per_success_usd: Annotated[float, Field(gt=0, le=1000)] = 0.006


class Breaker(ApiModel):
    """Opens when more than `openAtFailureRatio` of the last `window` calls failed (S-82)."""

    window: Annotated[int, Field(ge=1, le=1000)] = 20
    open_at_failure_ratio: Ratio = 0.5


class Dependency(ApiModel):
    """How one dependency is called. Only idempotent reads may be retried, by one owner, within the deadline (S-80, S-81)."""

    timeout_ms: Milliseconds
    retries: Annotated[int, Field(ge=0, le=1)] = 0
    breaker: Breaker = Breaker()


class ModelCalls(ApiModel):
    """Model calls are never retried: after the first byte there is nothing to retry, before it there is the fallback."""

    first_token_timeout_ms: Milliseconds = 3000
    max_output_tokens: Annotated[int, Field(ge=1, le=32_768)] = 256
    input_token_budget: Annotated[int, Field(ge=256, le=1_000_000)] = 3700
    breaker: Breaker = Breaker()


class Retrieval(ApiModel):
    """Candidates of each leg, and how many chunks reach the prompt (S-13)."""

    candidates: Annotated[int, Field(ge=6, le=500)] = 40
    top_k: Annotated[int, Field(ge=1, le=32)] = 6
    rerank: bool = True

    RULES = (
        Rule(
            "self.topK <= self.candidates",
            "retrieval.topK must not exceed candidates",
            lambda r: r.top_k <= r.candidates,
            at_birth=True,
        ),
    )


class AdmissionQueue(ApiModel):
    """Bounded by waiting time; what would wait longer is refused at once with a retry hint (S-83)."""

    max_wait_ms: Milliseconds = 2000
    max_in_flight: Annotated[int, Field(ge=1, le=100_000)] = 64
    """Requests that one data-plane replica works on at the same time."""
    shed_order: Annotated[
        tuple[Tier, ...], Field(min_length=4, max_length=4, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = ("batch", "free_tier", "standard", "interactive_support")

    RULES = (
        # A list of type `set` would say this too, but the server compares sets without their order: R-22.
        Rule(
            "self.shedOrder.all(t, self.shedOrder.exists_one(o, o == t))",
            "settings.admission.shedOrder: each tier stands once",
            lambda a: len(set(a.shed_order)) == len(a.shed_order),
            at_birth=True,
        ),
    )


class Settings(ApiModel):
    """The resilience block, the objectives and the ladder."""

    deadline_ms: Milliseconds = 8000
    """One absolute budget for the whole answer; every call gets what is left of it."""
    objectives: Objectives = Objectives()
    retrieval: Retrieval = Retrieval()
    retrieval_calls: Dependency = Dependency(timeout_ms=800, retries=1)
    order_calls: Dependency = Dependency(timeout_ms=2000, retries=1)
    side_effect_calls: Dependency = Dependency(timeout_ms=5000, retries=0)
    model: ModelCalls = ModelCalls()
    max_extra_load_ratio: Annotated[float, Field(ge=0, le=0.5)] = 0.10
    """Retries may add at most this share to the request rate."""
    admission: AdmissionQueue = AdmissionQueue()
    ladder: Annotated[
        tuple[Rung, ...], Field(min_length=1, max_length=5, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = ("full", "no_rerank", "fallback_model", "snippets_only", "open_ticket")

    RULES = (
        Rule(
            "self.model.firstTokenTimeoutMs <= self.deadlineMs && self.retrievalCalls.timeoutMs <= self.deadlineMs"
            " && self.orderCalls.timeoutMs <= self.deadlineMs && self.sideEffectCalls.timeoutMs <= self.deadlineMs",
            "settings: every timeout must fit inside deadlineMs",
            lambda s: (
                max(
                    s.model.first_token_timeout_ms,
                    s.retrieval_calls.timeout_ms,
                    s.order_calls.timeout_ms,
                    s.side_effect_calls.timeout_ms,
                )
                <= s.deadline_ms
            ),
        ),
        Rule(
            "self.sideEffectCalls.retries == 0",
            "settings.sideEffectCalls.retries: a side effect is never retried, it is reconciled",
            lambda s: s.side_effect_calls.retries == 0,
        ),
        Rule("self.ladder[0] == 'full'", "settings.ladder must begin with full", lambda s: s.ladder[0] == "full"),
        Rule(
            "self.ladder.all(r, self.ladder.exists_one(o, o == r))",
            "settings.ladder: each rung stands once",
            lambda s: len(set(s.ladder)) == len(s.ladder),
            at_birth=True,
        ),
    )
