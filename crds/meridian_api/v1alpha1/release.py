"""Release: one consistent set of app, prompt, models, index and tools, and how it may replace the one before."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from meridian_api.meta import (
    PINNED,
    ApiModel,
    Condition,
    ConfigMapRef,
    DnsLabel,
    ImageByDigest,
    LongText,
    ObjectName,
    PinnedName,
    PinnedVersion,
    Ratio,
    RegionName,
    Rule,
    Sha256,
    ShortText,
    Timestamp,
    instant,
)
from meridian_api.v1alpha1.settings import Settings
from meridian_api.v1alpha1.tenantpolicy import ToolName

Phase = Literal[
    "Pending", "Checks", "OfflineEval", "SecurityProbes", "Shadow", "Canary", "Bake", "Promoted",
    "Queued", "Held", "Superseded", "Rejected", "RolledBack",
]  # fmt: skip
Verdict = Literal["Pass", "Fail", "Inconclusive"]
Percent = Annotated[int, Field(ge=1, le=100)]
Seconds = Annotated[int, Field(ge=0, le=30 * 86_400)]
MAP_BY_NAME = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}


class App(ApiModel):
    """The data plane's code that this release is meant to run on."""

    version: PinnedVersion
    image: ImageByDigest


class ModelRef(ApiModel):
    """One version of one pool. The region is repeated on purpose: a reader of the manifest sees where data goes."""

    pool: DnsLabel
    version: PinnedVersion
    region: RegionName


class Models(ApiModel):
    """The fallback is used before the first content only, and only where a tenant's regions allow it."""

    primary: ModelRef
    fallback: ModelRef | None = None

    RULES = (
        Rule(
            "!has(self.fallback) || self.fallback.pool != self.primary.pool || self.fallback.version != self.primary.version",
            "models.fallback: the primary again is no fallback",
            lambda m: (
                m.fallback is None or (m.fallback.pool, m.fallback.version) != (m.primary.pool, m.primary.version)
            ),
            at_birth=True,
        ),
    )


class Index(ApiModel):
    """Epoch and embedding model change together, or not at all (R-35)."""

    epoch: PinnedName
    embedding_model: Annotated[str, Field(min_length=3, max_length=130, pattern=r"^[^@ ]+@[^@ ]+$"), *PINNED]
    """`model@revision`; must be the epoch's own."""


class Tool(ApiModel):
    """A tool with the ConfigMap that holds its declaration (`tool.json`, with its JSON Schema)."""

    name: ToolName
    schema_version: PinnedVersion
    config_map: ConfigMapRef


class Eval(ApiModel):
    """Golden set and floors (S-02). A cheaper release below a floor is refused whatever its price (S-114)."""

    golden_set: ConfigMapRef
    min_groundedness: Ratio = 0.95
    min_task_success: Ratio = 0.88
    min_citation_validity: Ratio = 1.0
    min_recall_at_6: Ratio = 0.8
    min_abstention: Ratio = 0.8
    """Share of the unanswerable cases that must be declined."""
    max_unscored: Ratio = 0.05
    """Share of cases without a score beyond which the gate is Inconclusive (Q-71)."""


class Step(ApiModel):
    """One step of the canary."""

    weight: Percent
    """Percent of canary-eligible conversations."""


class Canary(ApiModel):
    """Non-inferiority of task success against the concurrent control (S-37)."""

    steps: Annotated[
        tuple[Step, ...], Field(min_length=1, max_length=10, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = (
        Step(weight=5),
        Step(weight=25),
    )
    margin: Annotated[float, Field(gt=0, le=0.5)] = 0.03
    """Largest loss of task success, in absolute share, that still counts as equal."""
    alpha: Annotated[float, Field(gt=0, le=0.2)] = 0.05
    """One-sided."""
    power: Annotated[float, Field(ge=0.5, lt=1)] = 0.8
    baseline_success: Annotated[float, Field(gt=0, lt=1)] = 0.88
    """Planning value until the control's own rate is known."""
    label_delay_seconds: Seconds = 0
    """Outcomes younger than this are not counted (R-16)."""

    RULES = (
        Rule(
            "self.steps.map(s, s.weight).isSorted() && self.steps.all(s, self.steps.filter(t, t.weight == s.weight).size() == 1)",
            "canary.steps: each weight must be above the one before",
            lambda c: all(a.weight < b.weight for a, b in pairwise(c.steps)),
        ),
        # The server compares a whole number with the bound's whole part: 0 passed `minimum: 0.5`.
        Rule("self.power >= 0.5", "canary.power: at least 0.5", lambda c: c.power >= 0.5, at_birth=True),
    )


class Guardrails(ApiModel):
    """Checked at every look, in absolute terms; one breach rolls back (R-15, R-17)."""

    max_error_ratio: Ratio = 0.05
    ttft_p95_ms: Annotated[int, Field(ge=1, le=600_000)] = 1500
    answer_p95_ms: Annotated[int, Field(ge=1, le=600_000)] = 8000
    max_cost_per_success_usd: Annotated[float, Field(gt=0, le=1000)] = 0.006
    min_requests: Annotated[int, Field(ge=1, le=100_000)] = 30
    """Below this many candidate requests a relative guardrail says Inconclusive."""


class FreezeWindow(ApiModel):
    """No traffic change towards the candidate between these instants; rollbacks are never frozen."""

    start: Timestamp
    end: Timestamp

    RULES = (
        Rule(
            "self.start < self.end",
            "freezeWindows: end must be after start",
            lambda w: instant(w.start) < instant(w.end),
            at_birth=True,
        ),
    )


class Rollout(ApiModel):
    """How the release may take over."""

    shadow_percent: Annotated[int, Field(ge=0, le=100)] = 0
    canary: Canary = Canary()
    guardrails: Guardrails = Guardrails()
    on_inconclusive: Literal["Hold", "Rollback", "Extend"] = "Hold"
    max_duration_seconds: Annotated[int, Field(ge=10, le=30 * 86_400)] = 86_400
    bake_seconds: Seconds = 1800
    """Observed healthy time after promotion to all traffic, with the previous release warm."""
    required_approvals: Annotated[int, Field(ge=0, le=5)] = 0
    freeze_windows: Annotated[
        tuple[FreezeWindow, ...], Field(max_length=16, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = ()

    RULES = (
        Rule(
            "self.canary.labelDelaySeconds < self.maxDurationSeconds",
            "canary.labelDelaySeconds: below maxDurationSeconds, or no outcome is ever counted",
            lambda r: r.canary.label_delay_seconds < r.max_duration_seconds,
            at_birth=True,
        ),
    )


class Hold(ApiModel):
    """A person's stop; an admission policy checks `by` against the request's user. Automation never removes it (R-25)."""

    by: Annotated[str, Field(min_length=1, max_length=256)]
    reason: Annotated[str, Field(min_length=1, max_length=256)]


class Approval(ApiModel):
    """One person's approval; an admission policy checks `by` against the request's user."""

    by: Annotated[str, Field(min_length=1, max_length=200)]
    at: Timestamp
    comment: ShortText = ""


def _by_name(tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    # The server compares lists of type `map` without their order, so it may change: it must not mean anything.
    return tuple(sorted(tools, key=lambda tool: tool.name))


class ReleaseSpec(ApiModel):
    """Immutable but for `intent`, `attempt`, `hold` and `approvals`."""

    service: DnsLabel
    app: App
    prompt: ConfigMapRef
    """Keys: `system.txt`, and `format.txt` with the version of the history format."""
    models: Models
    index: Index
    tools: Annotated[
        tuple[Tool, ...], Field(max_length=16, json_schema_extra=MAP_BY_NAME), AfterValidator(_by_name)
    ] = ()
    """Always by name, in the content digest and in what serves: their order is no content."""
    eval: Eval
    settings: Settings = Settings()
    rollback_to: PinnedName | None = None
    """The release that serves now; absent for a service's first release, which has no canary."""
    rollout: Rollout = Rollout()
    intent: Literal["Promote", "Pause", "Abort"] = "Promote"
    attempt: Annotated[int, Field(ge=1, le=1000)] = 1
    """Grows to try the same content again; each attempt has its own evidence (R-24)."""
    hold: Hold | None = None
    approvals: Annotated[
        tuple[Approval, ...],
        Field(max_length=10, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["by"]}),
    ] = ()

    IMMUTABLE = ("service", "app", "prompt", "models", "index", "tools", "eval", "settings", "rollbackTo", "rollout")
    RULES = (
        Rule("self.attempt >= oldSelf.attempt", "spec.attempt only grows"),
        Rule(
            "!has(oldSelf.approvals) || (has(self.approvals) && oldSelf.approvals.all(o,"
            " self.approvals.exists(n, n == o)))",
            "spec.approvals is append-only",
        ),
    )


class Evidence(ApiModel):
    """One gate's or guardrail's latest result, with what it rests on."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    verdict: Verdict
    reason: Annotated[str, Field(min_length=1, max_length=64)]
    message: LongText = ""
    candidate_n: Annotated[int, Field(ge=0)] | None = None
    candidate_successes: Annotated[int, Field(ge=0)] | None = None
    control_n: Annotated[int, Field(ge=0)] | None = None
    control_successes: Annotated[int, Field(ge=0)] | None = None
    planned_n: Annotated[int, Field(ge=0)] | None = None
    """Judged requests per arm at which the one look is taken."""
    interval_low: float | None = None
    interval_high: float | None = None
    """Confidence interval of candidate minus control, in share."""
    value: float | None = None
    limit: float | None = None
    at: Timestamp | None = None


class Traffic(ApiModel):
    """What was committed, and whether every ready replica has said that it applied it."""

    weight_percent: Annotated[int, Field(ge=0, le=100)] = 0
    generation: Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})] = 0
    acknowledged: bool = False
    since: Timestamp | None = None


class PhaseEntry(ApiModel):
    """When a phase of the present attempt began."""

    phase: Phase
    at: Timestamp


class ReleaseStatus(ApiModel):
    """The API that people, `kubectl wait`, kstatus and Argo CD read."""

    observed_generation: Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})] = 0
    phase: Phase = "Pending"
    message: LongText = ""
    """One sentence: what it does now, or why it ended."""
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=16, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
        ),
    ] = ()
    attempt: Annotated[int, Field(ge=0)] = 0
    step: Annotated[int, Field(ge=0)] = 0
    step_since: Timestamp | None = None
    traffic: Traffic = Traffic()
    planned_n: Annotated[int, Field(ge=0)] = 0
    """Judged requests per arm, frozen when the attempt began."""
    evidence: Annotated[tuple[Evidence, ...], Field(max_length=32, json_schema_extra=MAP_BY_NAME)] = ()
    evaluation_job: ObjectName | None = None
    bake_observed_seconds: Annotated[int, Field(ge=0)] = 0
    """Accumulated healthy observation, not wall clock (R-47)."""
    bake_last_look: Timestamp | None = None
    history: Annotated[
        tuple[PhaseEntry, ...], Field(max_length=32, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = ()
    rollback_digest: Sha256 | None = None
    """What `rollbackTo` served, should the ServingConfig that remembers it be lost; other content is not gone back to."""
    serving_release: Annotated[str, Field(max_length=120)] = ""
    """The release that answers users now, this one or another (R-49, R-51)."""
