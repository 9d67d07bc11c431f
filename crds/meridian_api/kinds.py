"""The list of kinds, with what a CRD says beyond its schema: names, short names, printer columns."""

from __future__ import annotations

from dataclasses import dataclass

from meridian_api.meta import FLOATS, NOT_LATEST, ApiModel, Rule
from meridian_api.v1alpha1.indexepoch import IndexEpochSpec, IndexEpochStatus
from meridian_api.v1alpha1.inferencepool import InferencePoolSpec, InferencePoolStatus
from meridian_api.v1alpha1.release import ReleaseSpec, ReleaseStatus
from meridian_api.v1alpha1.servingconfig import ServingConfigSpec, ServingConfigStatus
from meridian_api.v1alpha1.tenantpolicy import TenantPolicySpec, TenantPolicyStatus


@dataclass(frozen=True)
class Column:
    """A column of `kubectl get`; priority 1 shows only with `-o wide`."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0


@dataclass(frozen=True)
class ApiKind:
    """One kind as users type it."""

    kind: str
    plural: str
    short_names: tuple[str, ...]
    spec: type[ApiModel]
    status: type[ApiModel]
    columns: tuple[Column, ...]
    about: str
    root_rules: tuple[Rule, ...] = ()
    """Rules that read the name, which only the server has in hand."""


DNS_LABEL_NAME = Rule(
    "self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
    "metadata.name: at most 63 of a-z, 0-9 and -, as other objects name it so",
)
NOT_ITS_OWN_WAY_BACK = Rule(
    "!has(self.spec.rollbackTo) || self.spec.rollbackTo != self.metadata.name",
    "rollbackTo: a release cannot be rolled back to itself",
)
# What names a release or an epoch refuses this name (S-41); so does its birth, or it could not be replaced.
NAME_NOT_LATEST = Rule(NOT_LATEST.replace("self", "self.metadata.name"), f"metadata.name: {FLOATS}")
READY = Column("Ready", '.status.conditions[?(@.type=="Ready")].status')
AGE = Column("Age", ".metadata.creationTimestamp", "date")

KINDS: tuple[ApiKind, ...] = (
    ApiKind(
        "Release", "releases", ("rel",), ReleaseSpec, ReleaseStatus,
        (
            Column("Service", ".spec.service"),
            Column("Phase", ".status.phase"),
            Column("Weight", ".status.traffic.weightPercent", "integer"),
            Column("Serving", '.status.conditions[?(@.type=="Serving")].status'),
            Column("Promoted", '.status.conditions[?(@.type=="Promoted")].status', priority=1),
            Column("Message", ".status.message"),
            AGE,
        ),
        "One consistent set of app, prompt, models, index and tools, rolled out on evidence.",
        (NAME_NOT_LATEST, NOT_ITS_OWN_WAY_BACK),
    ),
    ApiKind(
        # `ipool` and the full name: plain `inferencepool` collides with the Gateway API Inference Extension's kind.
        "InferencePool", "inferencepools", ("ipool",), InferencePoolSpec, InferencePoolStatus,
        (
            Column("Model", ".spec.model"),
            Column("Provider", ".spec.provider"),
            Column("Region", ".spec.region"),
            Column("Warm", ".status.warmVersions"),
            READY,
            AGE,
        ),
        "A model in a region, in several deployable versions.",
        (DNS_LABEL_NAME,),
    ),
    ApiKind(
        "IndexEpoch", "indexepochs", ("epoch",), IndexEpochSpec, IndexEpochStatus,
        (
            Column("Phase", ".status.phase"),
            Column("Documents", ".status.documents", "integer"),
            Column("Of", ".status.documentsTotal", "integer"),
            Column("Chunks", ".status.chunks", "integer"),
            Column("Recall@6", ".status.recallAt6", "number", priority=1),
            READY,
            AGE,
        ),
        "An immutable build of an index, made beside the one that serves.",
        (NAME_NOT_LATEST,),
    ),
    ApiKind(
        "TenantPolicy", "tenantpolicies", ("tenant",), TenantPolicySpec, TenantPolicyStatus,
        (
            Column("Tenant", ".spec.tenantId"),
            Column("Tier", ".spec.tier"),
            Column("Regions", ".spec.allowedRegions"),
            Column("Phase", ".status.phase"),
            READY,
            AGE,
        ),
        "Who a tenant is, what it may use, where its data may go.",
    ),
    ApiKind(
        "ServingConfig", "servingconfigs", ("sconf",), ServingConfigSpec, ServingConfigStatus,
        (
            Column("Generation", ".spec.generation", "integer"),
            Column("Serving", ".spec.serving"),
            Column("Candidate", ".spec.candidate"),
            Column("Weight", ".spec.candidateWeightPercent", "integer"),
            Column("Acknowledged", ".status.acknowledged", "integer"),
            AGE,
        ),
        "Internal: the signed configuration that serves. Only the operator writes it.",
        (DNS_LABEL_NAME,),
    ),
)  # fmt: skip
