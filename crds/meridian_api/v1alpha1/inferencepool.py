"""InferencePool: one model in one region, in several deployable versions."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from meridian_api.meta import (
    PINNED,
    ApiModel,
    Condition,
    DnsLabel,
    ImageByDigest,
    LongText,
    ObjectName,
    PinnedVersion,
    RegionName,
    Rule,
    Sha256,
    Timestamp,
)

Argument = Annotated[str, Field(max_length=256)]
LabelValue = Annotated[str, Field(max_length=63, pattern=r"^([A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?)?$")]
LABEL_KEY = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?$"


class EnvVar(ApiModel):
    """A literal environment variable. There is no `valueFrom`: a pool cannot read a Secret (T-46)."""

    name: Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    value: Annotated[str, Field(max_length=1024)]


class Resources(ApiModel):
    """Kubernetes quantities, used as request and limit alike so that an engine is never throttled by surprise."""

    cpu: Annotated[str, Field(max_length=20, pattern=r"^[0-9]+(\.[0-9]+)?m?$")] = "1"
    memory: Annotated[str, Field(max_length=20, pattern=r"^[0-9]+(Ki|Mi|Gi|Ti)$")] = "1Gi"
    gpus: Annotated[int, Field(ge=0, le=16)] = 0


class Placement(ApiModel):
    """Where pods may run."""

    node_selector: Annotated[dict[str, LabelValue], Field(max_length=16)] = {}
    spread_over_zones: bool = True

    RULES = (
        Rule(
            f"self.nodeSelector.all(k, k.size() <= 317 && k.matches('{LABEL_KEY}'))",
            "nodeSelector: a key is the key of a label",
            lambda p: all(len(k) <= 317 and re.search(LABEL_KEY, k) for k in p.node_selector),
            at_birth=True,
        ),
    )


class Engine(ApiModel):
    """The serving engine, vLLM-compatible: OpenAI chat completions, `/health`, vLLM's metrics. Closed on purpose.

    What changes behaviour never changes in place: it would roll the serving version and its rollback target at once, without a
    gate. Another engine is another version with its own `image` or `args`; resources and placement may be edited.
    """

    IMMUTABLE = ("image", "args", "env", "port", "weightsClaim")

    image: ImageByDigest
    args: Annotated[tuple[Argument, ...], Field(max_length=64)] = ()
    env: Annotated[
        tuple[EnvVar, ...], Field(max_length=32, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = ()
    port: Annotated[int, Field(ge=1, le=65535)] = 8080
    resources: Resources = Resources()
    placement: Placement = Placement()
    weights_claim: DnsLabel | None = None
    """PersistentVolumeClaim of the same namespace, mounted read-only at /weights."""
    image_pull_secrets: Annotated[tuple[DnsLabel, ...], Field(max_length=8)] = ()

    RULES = (
        # A list of type `map` would say this too, but the server compares maps without their order: R-22.
        Rule(
            "self.env.all(e, self.env.exists_one(o, o.name == e.name))",
            "engine.env: each name stands once",
            lambda e: len({v.name for v in e.env}) == len(e.env),
            at_birth=True,
        ),
    )


class PoolVersion(ApiModel):
    """One deployable version: what `models.primary.version` of a Release names. Never edited once it exists."""

    name: PinnedVersion
    uri: Annotated[str, Field(max_length=300, pattern=r"^[a-z][a-z0-9+.-]*://[^ ]+$"), *PINNED] | None = None
    """Where the weights are, with their revision, e.g. `hf://org/model@<commit>` or `pvc://weights/v12`."""
    digest: Sha256 | None = None
    """Digest of the weights, where the store has one."""
    image: ImageByDigest | None = None
    """Engine image of this version, if it differs from the pool's."""
    args: Annotated[tuple[Argument, ...], Field(max_length=32)] = ()
    """Appended to the engine's arguments."""

    RULES = (
        Rule(
            "has(self.uri) != has(self.digest)",
            "exactly one of uri and digest pins a version's weights",
            lambda v: (v.uri is None) != (v.digest is None),
        ),
    )


class Hosted(ApiModel):
    """A model behind a provider's API. The endpoint's URL and key are registered by an administrator, not here (T-44)."""

    endpoint: DnsLabel
    model: Annotated[str, Field(min_length=1, max_length=120), *PINNED]


class Scaling(ApiModel):
    """Replicas per version that serves. Scaling up takes `warmupSeconds`, so the floor, not the loop, absorbs spikes."""

    min_replicas: Annotated[int, Field(ge=0, le=200)] = 3
    max_replicas: Annotated[int, Field(ge=1, le=200)] = 15
    min_per_zone: Annotated[int, Field(ge=0, le=50)] = 1
    target_queue_wait_ms: Annotated[int, Field(ge=1, le=60_000)] = 200
    warmup_seconds: Annotated[int, Field(ge=0, le=3600)] = 240

    RULES = (
        Rule(
            "self.minReplicas <= self.maxReplicas",
            "minReplicas must not exceed maxReplicas",
            lambda s: s.min_replicas <= s.max_replicas,
        ),
        Rule(
            "self.minPerZone <= self.maxReplicas",
            "minPerZone must not exceed maxReplicas",
            lambda s: s.min_per_zone <= s.max_replicas,
            at_birth=True,
        ),
    )


class Warmup(ApiModel):
    """The completion that a pod must have served before it is Ready (S-52)."""

    prompt: Annotated[str, Field(min_length=1, max_length=1024)] = "Say ready."
    max_tokens: Annotated[int, Field(ge=1, le=256)] = 4
    timeout_seconds: Annotated[int, Field(ge=1, le=300)] = 20
    failure_threshold: Annotated[int, Field(ge=1, le=600)] = 60
    """Attempts, one each 5 s, before the kubelet restarts the pod."""


class Capacity(ApiModel):
    """Measured per replica by a load test on the target, never from a data sheet (S-57)."""

    requests_per_second: Annotated[float, Field(gt=0, le=100_000)]
    concurrency: Annotated[int, Field(ge=1, le=10_000)]
    measured_at: Timestamp


class Price(ApiModel):
    """US dollars per million tokens."""

    input_usd: Annotated[float, Field(ge=0, le=10_000)] = 1.0
    cached_input_usd: Annotated[float, Field(ge=0, le=10_000)] = 1.0
    output_usd: Annotated[float, Field(ge=0, le=10_000)] = 4.0


class InferencePoolSpec(ApiModel):
    """What a platform engineer declares."""

    model: Annotated[str, Field(min_length=1, max_length=120, pattern=r"^[A-Za-z0-9][-._/A-Za-z0-9]*$")]
    """The name that requests carry (`model` of the OpenAI API)."""
    region: RegionName
    provider: Literal["KServe", "Deployment", "Hosted"]
    engine: Engine | None = None
    hosted: Hosted | None = None
    versions: Annotated[
        tuple[PoolVersion, ...],
        Field(
            min_length=1,
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ]
    scaling: Scaling = Scaling()
    warmup: Warmup = Warmup()
    drain_seconds: Annotated[int, Field(ge=8, le=600)] = 30
    """Termination grace; above the longest permitted request (8 s)."""
    capacity: Capacity | None = None
    price: Price = Price()

    IMMUTABLE = ("model", "region", "provider", "hosted")
    RULES = (
        Rule(
            "(self.provider == 'Hosted') == has(self.hosted)",
            "hosted is required by provider Hosted and refused by the others",
            lambda s: (s.provider == "Hosted") == (s.hosted is not None),
        ),
        Rule(
            "(self.provider != 'Hosted') == has(self.engine)",
            "engine is required by providers KServe and Deployment and refused by Hosted",
            lambda s: (s.provider != "Hosted") == (s.engine is not None),
        ),
        Rule(
            "oldSelf.versions.all(o, !self.versions.exists(n, n.name == o.name)"
            " || self.versions.exists(n, n.name == o.name && n == o))",
            "a version is never edited: add one with another name",
        ),
    )


class PoolVersionStatus(ApiModel):
    """What one demanded version runs as."""

    name: PinnedVersion
    workload: ObjectName = "none"
    """Name of the InferenceService or Deployment."""
    replicas: Annotated[int, Field(ge=0)] = 0
    ready_replicas: Annotated[int, Field(ge=0)] = 0
    """Replicas that have served a real completion."""
    warm: bool = False
    demanded_by: Annotated[tuple[ObjectName, ...], Field(max_length=32)] = ()
    message: LongText = ""


class InferencePoolStatus(ApiModel):
    """Computed by the operator; never read as a fact."""

    observed_generation: Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})] = 0
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=16, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
        ),
    ] = ()
    versions: Annotated[
        tuple[PoolVersionStatus, ...],
        Field(
            max_length=16, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
        ),
    ] = ()
    warm_versions: Annotated[
        tuple[PinnedVersion, ...], Field(max_length=16, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ] = ()
    """Names of those that are warm: `kubectl get` shows only one element of a list of objects."""
