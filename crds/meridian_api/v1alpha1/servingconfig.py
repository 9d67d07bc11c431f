"""ServingConfig: the stored, signed form of what serves. Only the operator writes it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from meridian_api.meta import ApiModel, Condition, DnsLabel, ObjectName, RegionName, Rule, Sha256, ShortText

Counter = Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})]


class ServedContent(ApiModel):
    """What a release served, remembered beside the pointer: a name that is used again is a new thing."""

    release: ObjectName
    digest: Sha256
    """`content_digest` of its spec."""


class ServingConfigSpec(ApiModel):
    """The commit point of every switch: one write, under resourceVersion, of one object per service."""

    service: DnsLabel
    region: RegionName
    generation: Counter
    """Only grows; a rollback is a new generation with old content."""
    lease_epoch: Counter
    """Fencing epoch of the leader that wrote it; only grows, so that a deposed leader's write is refused here (K-06)."""
    payload: Annotated[str, Field(min_length=1, max_length=1_200_000, pattern=r"^[A-Za-z0-9+/=]+$")]
    """Base64 of the gzipped canonical JSON of a Snapshot."""
    signature: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9+/=]+$")]
    """Base64 Ed25519 signature over the gzipped bytes."""
    key_id: DnsLabel
    digest: Sha256
    """Of the gzipped bytes."""
    serving: ObjectName
    """For people (`kubectl get`): the release that serves. The payload is what counts."""
    served: Annotated[
        tuple[ServedContent, ...],
        Field(
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["release"]},
        ),
    ] = ()
    """Releases that had all traffic, the one that serves first: what a rollback may go back to."""
    candidate: Annotated[str, Field(max_length=120)] = ""
    candidate_digest: Sha256 | None = None
    candidate_uid: Annotated[str, Field(max_length=64)] = ""
    """Of the Release that was given traffic: one made again under its name has no evidence, and inherits none."""
    candidate_weight_percent: Annotated[int, Field(ge=0, le=100)] = 0

    IMMUTABLE = ("service", "region")
    RULES = (
        Rule(
            "self.generation >= oldSelf.generation",
            "generation only grows: a rollback is a new generation with old content",
        ),
        Rule("self.leaseEpoch >= oldSelf.leaseEpoch", "leaseEpoch is older than the leader's: this writer was deposed"),
        Rule(
            "self.generation > oldSelf.generation || self.payload == oldSelf.payload",
            "another payload needs a higher generation",
        ),
    )


class ReplicaReport(ApiModel):
    """What one data-plane replica said in its last poll (the idea of xDS ACK and NACK)."""

    replica: Annotated[str, Field(min_length=1, max_length=120)]
    generation: Counter = 0
    """Highest generation accepted and stored."""
    refused_generation: Counter = 0
    """0: none refused."""
    reason: ShortText = ""
    digest: Sha256 | None = None
    """Of what it applied: two histories may have the same generation."""


class ServingConfigStatus(ApiModel):
    """Acknowledgements, shared between control-plane replicas through this object."""

    replicas: Annotated[
        tuple[ReplicaReport, ...],
        Field(
            max_length=500,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["replica"]},
        ),
    ] = ()
    acknowledged: Counter = 0
    """Generation that every known replica has applied; a pod that is gone is forgotten after two or three minutes."""
    highest_accepted: Counter = 0
    """Highest generation any replica has reported: after a restore of an older etcd the next is above it."""
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=4, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
        ),
    ] = ()
    """`Accepted` is False while what is stored cannot follow the kinds it was compiled from; the last good one serves."""
