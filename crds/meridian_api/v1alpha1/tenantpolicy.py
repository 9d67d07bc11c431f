"""TenantPolicy: who a tenant is, what it may use, and where its data may go."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from meridian_api.meta import (
    ApiModel,
    Condition,
    LongText,
    PrincipalName,
    RegionName,
    ShortText,
    TenantId,
    Timestamp,
)

Tier = Literal["interactive_support", "standard", "free_tier", "batch"]
ClaimName = Annotated[str, Field(min_length=1, max_length=120, pattern=r"^[A-Za-z][-._:/A-Za-z0-9]*$")]
ToolName = Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[a-z][a-z0-9_]*$")]


class Identity(ApiModel):
    """Which verified tokens belong to this tenant. The issuer's keys are registered by an administrator (chart values)."""

    issuer: Annotated[str, Field(min_length=1, max_length=300, pattern=r"^https?://[^ ]+$")]
    audience: Annotated[str, Field(min_length=1, max_length=200)] = "meridian"
    tenant_claim: ClaimName = "tenant"
    tenant_value: Annotated[str, Field(min_length=1, max_length=120)]
    """Exact value of `tenantClaim`; compared as bytes."""
    groups_claim: ClaimName = "groups"
    roles_claim: ClaimName = "roles"


class Budgets(ApiModel):
    """Limits of the whole tenant. Every limit is mandatory: a default is a limit too."""

    tokens_per_minute: Annotated[int, Field(ge=1, le=1_000_000_000)] = 2_000_000
    tokens_per_day: Annotated[int, Field(ge=1, le=1_000_000_000_000)] = 500_000_000
    usd_per_month: Annotated[float, Field(gt=0, le=10_000_000)] = 5_000.0
    max_output_tokens: Annotated[int, Field(ge=1, le=32_768)] = 512
    """Cap of one answer, before anything is reserved (G-08)."""
    concurrent_requests: Annotated[int, Field(ge=1, le=100_000)] = 200


class Role(ApiModel):
    """A role of a verified token: the ACL groups it adds and the tools it may use."""

    name: PrincipalName
    groups: Annotated[
        tuple[PrincipalName, ...], Field(max_length=64, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = ()
    tools: Annotated[
        tuple[ToolName, ...], Field(max_length=64, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = ()


class CacheRules(ApiModel):
    """Whether finished answers may be cached, and how long at most."""

    answers: bool = True
    ttl_seconds: Annotated[int, Field(ge=1, le=86_400)] = 3600


class Retention(ApiModel):
    """How long what is kept. Audit is never below 13 months (S-05)."""

    conversations_days: Annotated[int, Field(ge=1, le=3650)] = 30
    bodies_days: Annotated[int, Field(ge=0, le=365)] = 0
    """0: question and answer texts are not stored."""
    audit_months: Annotated[int, Field(ge=13, le=120)] = 13


class TenantPolicySpec(ApiModel):
    """What onboarding a tenant takes."""

    tenant_id: TenantId
    display_name: ShortText = ""
    identity: Identity
    tier: Tier = "standard"
    allowed_regions: Annotated[
        tuple[RegionName, ...], Field(min_length=1, max_length=16, json_schema_extra={"x-kubernetes-list-type": "set"})
    ]
    """Where this tenant's data may be stored and processed."""
    overflow: bool = False
    """May use a hosted target in an allowed region when the fleet is full."""
    budgets: Budgets = Budgets()
    roles: Annotated[
        tuple[Role, ...],
        Field(
            min_length=1,
            max_length=32,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ]
    cache: CacheRules = CacheRules()
    retention: Retention = Retention()
    canary_eligible: bool = True
    """Whether this tenant's requests may be answered by a candidate release."""
    not_after: Timestamp | None = None
    """End of the contract: from then on requests are refused."""

    IMMUTABLE = ("tenantId",)


class TenantPolicyStatus(ApiModel):
    """How far onboarding is."""

    observed_generation: Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})] = 0
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=16, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
        ),
    ] = ()
    phase: Literal["Pending", "Onboarding", "Onboarded", "Rejected", "Offboarding"] = "Pending"
    partitions: Annotated[int, Field(ge=0)] = 0
    """Epochs that hold a partition of this tenant."""
    serving_in: Annotated[tuple[RegionName, ...], Field(max_length=16)] = ()
    message: LongText = ""
