"""What all kinds share: the model's strictness, rules that hold on the server and here, conditions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, model_validator
from pydantic.alias_generators import to_camel

GROUP = "meridian.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"


@dataclass(frozen=True)
class Rule:
    """One cross-field rule, said twice: in CEL for the API server, in Python for everything that has no server.

    `check` is None for transition rules (those that read `oldSelf`), which only the server can hold.
    """

    cel: str
    message: str
    check: Callable[[Any], bool] | None = None
    at_birth: bool = False
    """Objects were stored before there was this rule. The server holds it for what is new and lets unchanged fields be; so does
    the model when it reads what is stored (K-32)."""


class ApiModel(BaseModel):
    """A frozen, strict value. snake_case here, camelCase on the wire, unknown keys refused.

    Subclasses may declare `RULES` (see `Rule`) and `IMMUTABLE` (wire names of fields that never change once the object
    exists; the generator turns each into a CEL rule on this level, with `has()` where the field is optional).
    """

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )
    RULES: ClassVar[tuple[Rule, ...]] = ()
    IMMUTABLE: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="after")
    def _rules_hold(self, info: ValidationInfo) -> Self:
        rules = [rule for rule in self.RULES if rule.check and not (rule.at_birth and _is_stored(info))]
        broken = [rule.message for rule in rules if rule.check and not rule.check(self)]
        if broken:
            raise ValueError("; ".join(broken))
        return self

    @classmethod
    def from_wire(cls, value: object, *, unknown: Literal["forbid", "ignore"] = "forbid", stored: bool = False) -> Self:
        """Parse decoded JSON (dicts and lists) strictly. `ignore` is for stored objects: a newer server may have widened them, and
        what an older one accepted stays readable. `stored` says the latter alone, of what was made from such objects.

        Raises pydantic.ValidationError with one entry per wrong field, each with its path.
        """
        context = {"stored": stored or unknown == "ignore"}
        return cls.model_validate_json(json.dumps(value), extra=unknown, by_alias=True, context=context)

    def to_wire(self) -> dict[str, Any]:
        """The JSON form: camelCase, absent instead of null."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def _is_stored(info: ValidationInfo) -> bool:
    return bool(info.context and info.context.get("stored"))


FLOATS = "'latest' floats: pin a version"
_LATEST = "(^|[-._@:/])latest($|[-._@:/])"


def _pinned(version: str, info: ValidationInfo) -> str:
    if not _is_stored(info) and re.search(_LATEST, version.lower()):
        raise ValueError(FLOATS)
    return version


# A version that floats would change behaviour without a deploy (S-41): refused wherever a version can be written, in any case
# and as a part of it. Combined with the field's own pattern: `Annotated[str, Field(...), *PINNED]`.
NOT_LATEST = f"!self.lowerAscii().matches('{_LATEST}')"
PINNED = (
    Field(json_schema_extra={"x-kubernetes-validations": [{"rule": NOT_LATEST, "message": FLOATS}]}),
    AfterValidator(_pinned),
)

NO_REGION = "'global' is no region: name where the data may go"
_ANYWHERE = "^(any|global|world)($|-)"


def _region(name: str) -> str:
    if re.search(_ANYWHERE, name):
        raise ValueError(NO_REGION)
    return name


NO_INSTANT = "an instant with its offset, from 1970 on, like 2026-11-04T10:00:00Z"


def instant(text: str) -> datetime:
    """The instant that a Timestamp names. Raises ValueError when it names none, or one outside 1970 to 9999."""
    try:
        at = datetime.fromisoformat(text)
        year = at.astimezone(UTC).year
    except (ValueError, OverflowError) as wrong:
        raise ValueError(NO_INSTANT) from wrong
    if at.tzinfo is None or year < 1970:
        raise ValueError(NO_INSTANT)
    return at


def _instant(text: str) -> str:
    instant(text)
    return text


# Bounded strings: every text that reaches etcd has a length, and every identifier a pattern.
DnsLabel = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
ObjectName = Annotated[str, Field(min_length=1, max_length=120, pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")]
TenantId = Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
PinnedName = Annotated[ObjectName, *PINNED]
"""The name of an object that a release is made of."""
# Where data goes can be checked against a place only, of stored objects too: no upgrade excuses sending data anywhere (T-40).
RegionName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=40,
        pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$",
        json_schema_extra={
            "x-kubernetes-validations": [{"rule": f"!self.matches('{_ANYWHERE}')", "message": NO_REGION}]
        },
    ),
    AfterValidator(_region),
]
# Pattern and rule say the same: the pattern is what tools read, the rule's message is what a person can act on.
Sha256 = Annotated[
    str,
    Field(
        max_length=71,
        pattern=r"^sha256:[0-9a-f]{64}$",
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "self.matches('^sha256:[0-9a-f]{64}$')",
                    "message": "a digest is sha256: and 64 hex digits; `meridian digest NAME` prints a ConfigMap's",
                }
            ]
        },
    ),
]
BY_DIGEST = "pin the image by digest, with no tag: repository@sha256:<64 hex digits>"
_UNTAGGED = r"^[a-z0-9]+([-._]+[a-z0-9]+)*((:[0-9]{1,5})?(/[a-z0-9]+([-._]+[a-z0-9]+)*)+)?@sha256:[0-9a-f]{64}$"


def _untagged(image: str, info: ValidationInfo) -> str:
    if not _is_stored(info) and not re.search(_UNTAGGED, image):
        raise ValueError(BY_DIGEST)
    return image


# `latest` cannot be written at all: an image is a repository and a digest, with no tag. A colon stands before a registry's port.
ImageByDigest = Annotated[
    str,
    Field(
        max_length=300,
        pattern=r"^[a-z0-9][a-z0-9._/:-]*@sha256:[0-9a-f]{64}$",
        json_schema_extra={
            "pattern": _UNTAGGED,
            "x-kubernetes-validations": [
                {
                    "rule": "self.matches('^[^@:]+(:[0-9]+/[^@:]+)?@sha256:[0-9a-f]{64}$')",
                    "message": BY_DIGEST,
                }
            ],
        },
    ),
    AfterValidator(_untagged),
]
PinnedVersion = Annotated[
    str,
    Field(min_length=1, max_length=60, pattern=r"^[A-Za-z0-9]([-._@A-Za-z0-9]*[A-Za-z0-9])?$"),
    *PINNED,
]
PrincipalName = Annotated[str, Field(min_length=1, max_length=120, pattern=r"^[^\x00-\x1f\x7f,*%]+$")]
ShortText = Annotated[str, Field(max_length=256)]
LongText = Annotated[str, Field(max_length=4096)]
# `format: date-time` alone lets the server take `z`, `+24:00`, leap seconds, the year 0 and even arrays, which nothing of ours
# can read; it types the value in CEL, though, so that the rule refuses what is no instant (K-35, R-29).
Timestamp = Annotated[
    str,
    Field(
        max_length=40,
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T([01][0-9]|2[0-3])(:[0-5][0-9]){2}(\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$",
        json_schema_extra={
            "format": "date-time",
            "x-kubernetes-validations": [
                {"rule": "self.getFullYear() >= 1970 && self.getFullYear() <= 9999", "message": NO_INSTANT}
            ],
        },
    ),
    AfterValidator(_instant),
]
Ratio = Annotated[float, Field(ge=0, le=1)]


class ConfigMapRef(ApiModel):
    """An immutable ConfigMap of the same namespace, pinned by the digest of its `data` (`meridian digest NAME`)."""

    name: PinnedName
    digest: Sha256


ConditionStatus = Literal["True", "False", "Unknown"]


class Condition(ApiModel):
    """A condition as Kubernetes spells it (metav1.Condition)."""

    type: Annotated[str, Field(max_length=64)]
    status: ConditionStatus
    observed_generation: Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})] = 0
    last_transition_time: Timestamp
    reason: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z]([A-Za-z0-9_]*[A-Za-z0-9])?$")]
    # K-28: longer messages are cut before they are written, never refused.
    message: Annotated[str, Field(max_length=1024)] = ""


@dataclass(frozen=True)
class Meaning:
    """What a condition type says: when it is True, who sets it, whether `Ready` needs it."""

    when_true: str
    set_by: str
    counts_for_ready: bool


CONDITIONS: dict[str, Meaning] = {
    "Accepted": Meaning("the spec is valid and every reference resolves", "the kind's decide", True),
    "Reconciling": Meaning("work towards the spec goes on (kstatus)", "the kind's decide", False),
    "Stalled": Meaning("no progress without a person's change (kstatus)", "the kind's decide", False),
    "Ready": Meaning("the object does what its spec asks", "the kind's decide", False),
    "Paused": Meaning("a person's intent or hold stops the rollout where it is", "release", False),
    "Serving": Meaning("this release, pool or epoch answers users now", "the kind's decide", False),
    "RollbackReady": Meaning("the rollback target is complete and warm", "release", False),
    "RollbackTarget": Meaning("a release that has traffic would go back to this one", "release", False),
    "Promoted": Meaning("this release became the serving one", "release", False),
    "Degraded": Meaning("it works, but below what was asked", "the kind's decide", False),
    "Built": Meaning("the epoch's index is complete and passed its floor", "indexepoch", True),
    "StoreReady": Meaning("the tenant's partitions and row-level security exist", "tenantpolicy", True),
}
"""Every condition type there is. A type outside this table is a bug that a test finds."""
