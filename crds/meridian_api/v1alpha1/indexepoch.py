"""IndexEpoch: one immutable build of an index, made beside the one that serves."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from meridian_api.meta import (
    PINNED,
    ApiModel,
    Condition,
    ConfigMapRef,
    DnsLabel,
    LongText,
    ObjectName,
    PinnedVersion,
    Ratio,
    RegionName,
    Rule,
    TenantId,
    Timestamp,
)


class Embedding(ApiModel):
    """The model that made the vectors; queries must use the same (S-40)."""

    model: Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[a-z0-9][-._a-z0-9]*$"), *PINNED] = "wordllama"
    revision: PinnedVersion
    dimension: Annotated[int, Field(ge=2, le=4096)] = 256

    @property
    def ident(self) -> str:
        """`model@revision`, what a Release's `index.embeddingModel` names."""
        return f"{self.model}@{self.revision}"


class Chunker(ApiModel):
    """How documents become chunks; about 400 tokens each (S-13)."""

    name: Literal["markdown-1"] = "markdown-1"
    target_tokens: Annotated[int, Field(ge=50, le=4000)] = 400
    overlap_tokens: Annotated[int, Field(ge=0, le=400)] = 0

    RULES = (
        Rule(
            "self.overlapTokens < self.targetTokens",
            "chunker.overlapTokens must be below targetTokens",
            lambda c: c.overlap_tokens < c.target_tokens,
            at_birth=True,
        ),
    )


class Source(ApiModel):
    """Documents of one tenant. Further kinds of source come as further optional fields, exactly one of them set."""

    name: DnsLabel
    tenant: TenantId
    config_map: ConfigMapRef | None = None
    """Key `documents.jsonl`, one document a line: docId, version, title, sourceUri, aclGroups, text."""

    RULES = (
        Rule(
            "has(self.configMap)",
            "exactly one kind of source must be set: configMap",
            lambda s: s.config_map is not None,
        ),
    )


class IndexEpochSpec(ApiModel):
    """Wholly immutable: another build is another epoch."""

    region: RegionName
    tenants: Annotated[
        tuple[TenantId, ...], Field(min_length=1, max_length=64, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ]
    embedding: Embedding
    chunker: Chunker = Chunker()
    normaliser: Literal["nfkc-1"] = "nfkc-1"
    sources: Annotated[
        tuple[Source, ...], Field(min_length=1, max_length=64, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    ]
    min_recall_at_6: Ratio = 0.0
    """Floor that the build must reach on `goldenSet`; 0 without one."""
    golden_set: ConfigMapRef | None = None
    max_lag_seconds: Annotated[int, Field(ge=60, le=86_400)] = 900
    """Freshness bound: beyond it, the lag between source and index alerts."""
    shards: Annotated[int, Field(ge=1, le=64)] = 1
    """Completions of the Indexed Job."""

    IMMUTABLE = (
        "region",
        "tenants",
        "embedding",
        "chunker",
        "normaliser",
        "sources",
        "minRecallAt6",
        "goldenSet",
        "maxLagSeconds",
        "shards",
    )
    RULES = (
        # Lists of type `set` and `map` would say this too, but the server compares those without their order: R-22.
        Rule(
            "self.tenants.all(t, self.tenants.exists_one(o, o == t))",
            "tenants: each stands once",
            lambda e: len(set(e.tenants)) == len(e.tenants),
            at_birth=True,
        ),
        Rule(
            "self.sources.all(s, self.sources.exists_one(o, o.name == s.name))",
            "sources: each name stands once",
            lambda e: len({s.name for s in e.sources}) == len(e.sources),
            at_birth=True,
        ),
        Rule(
            "self.sources.all(s, s.tenant in self.tenants)",
            "sources: each source's tenant must be one of spec.tenants",
            lambda e: all(s.tenant in e.tenants for s in e.sources),
        ),
        Rule(
            "self.minRecallAt6 == 0.0 || has(self.goldenSet)",
            "minRecallAt6 needs goldenSet to measure it on",
            lambda e: e.min_recall_at_6 == 0 or e.golden_set is not None,
        ),
    )


class IndexEpochStatus(ApiModel):
    """Progress and result of the build."""

    observed_generation: Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})] = 0
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=16, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
        ),
    ] = ()
    phase: Literal["Pending", "Building", "Built", "Failed"] = "Pending"
    job: ObjectName | None = None
    documents: Annotated[int, Field(ge=0)] = 0
    documents_total: Annotated[int, Field(ge=0)] = 0
    chunks: Annotated[int, Field(ge=0)] = 0
    corpus_fingerprint: Annotated[str, Field(max_length=80)] = ""
    recall_at_6: Ratio | None = None
    needed_by: Annotated[tuple[ObjectName, ...], Field(max_length=32)] = ()
    """Releases that need this epoch; while any does, an admission policy refuses its deletion."""
    built_at: Timestamp | None = None
    message: LongText = ""
