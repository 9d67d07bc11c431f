"""The value in which the planes meet: what serves, whole and immutable, as one data-plane replica receives it.

Compiled by the operator (a pure function of the four kinds), signed over its exact bytes, verified and swapped in whole by
every replica. Unknown fields are an error, so that an older replica refuses what it cannot honour (F-08).
"""

from __future__ import annotations

import gzip
import json
from io import BytesIO
from typing import Annotated, Any, Literal

from pydantic import Field

from meridian_api.digest import canonical_json
from meridian_api.meta import ApiModel, Rule
from meridian_api.v1alpha1.indexepoch import Embedding
from meridian_api.v1alpha1.inferencepool import Price
from meridian_api.v1alpha1.settings import Settings
from meridian_api.v1alpha1.tenantpolicy import Budgets, CacheRules, Identity, Role, Tier

MAX_PAYLOAD_BYTES = 800_000
"""Of the gzipped bytes; a larger one is refused before it is opened (F-02)."""
MAX_EXPANDED_BYTES = 16_000_000


class Target(ApiModel):
    """A model version that can be called."""

    pool: str
    version: str
    region: str
    model: str
    """The name that the engine expects in `model`."""
    provider: Literal["KServe", "Deployment", "Hosted"]
    base_url: str
    """Up to and without `/v1`. A headless Service: every address it resolves to is a replica."""
    price: Price


class ServingIndex(ApiModel):
    """The epoch a release reads, with the embedding model its queries must use."""

    epoch: str
    region: str
    embedding: Embedding
    normaliser: str


class ServingTool(ApiModel):
    """A declared tool. `endpoint` names an address that an administrator registered with the data plane."""

    name: str
    schema_version: str
    description: str
    parameters: dict[str, Any]
    """JSON Schema of the arguments."""
    endpoint: str
    path: str
    method: Literal["GET", "POST"]
    side_effect: bool
    timeout_ms: Annotated[int, Field(ge=1, le=60_000)]
    roles: tuple[str, ...]
    result_fields: tuple[str, ...]
    """Only these fields of a result reach the prompt."""


class Manifest(ApiModel):
    """One release in full: everything that may influence an answer."""

    release: str
    app_version: str
    prompt: str
    """Name of the prompt, recorded with each request."""
    system_prompt: Annotated[str, Field(min_length=1)]
    history_format: str
    primary: Target
    fallback: Target | None = None
    index: ServingIndex
    tools: tuple[ServingTool, ...] = ()
    settings: Settings


class Candidate(ApiModel):
    """The release under trial and its share."""

    manifest: Manifest
    weight_percent: Annotated[int, Field(ge=0, le=100)]
    salt: str
    """Assignment hashes tenant, conversation and this; it stays the same for the whole attempt."""
    shadow_percent: Annotated[int, Field(ge=0, le=100)] = 0


class ServingTenant(ApiModel):
    """A tenant as the data plane needs it."""

    tenant_id: Annotated[str, Field(min_length=1)]
    identity: Identity
    tier: Tier
    allowed_regions: Annotated[tuple[str, ...], Field(min_length=1)]
    overflow: bool
    budgets: Budgets
    roles: tuple[Role, ...]
    cache: CacheRules
    canary_eligible: bool
    not_after: str | None = None


class Snapshot(ApiModel):
    """Everything one service in one region serves by."""

    schema_version: Literal[1] = 1
    service: Annotated[str, Field(min_length=1)]
    region: Annotated[str, Field(min_length=1)]
    generation: Annotated[int, Field(ge=1)]
    lease_epoch: Annotated[int, Field(ge=0)]
    issued_at: str
    """RFC 3339, UTC; no decision about time rests on it alone."""
    soft_expiry_seconds: Annotated[int, Field(ge=60)] = 3600
    """After this long without contact a replica goes on serving and says so."""
    hard_expiry_seconds: Annotated[int, Field(ge=60)] = 7 * 86_400
    serving: Manifest
    candidate: Candidate | None = None
    tenants: tuple[ServingTenant, ...]
    revoked_subjects: tuple[str, ...] = ()
    """`tenant/sub` of tokens that are refused although they verify."""
    shrink_confirmed: bool = False
    """Set when the disappearance of tenants was seen in two lists; without it a large shrink is refused (F-04)."""

    RULES = (
        Rule(
            "",
            "candidate and serving must be different releases",
            lambda s: s.candidate is None or s.candidate.manifest.release != s.serving.release,
        ),
    )


class Envelope(ApiModel):
    """A snapshot as it travels, in the stored object, the long poll, the ConfigMap and the file on disk alike."""

    generation: Annotated[int, Field(ge=1)]
    payload: str
    """Base64 of the gzipped canonical JSON."""
    signature: str
    """Base64 Ed25519 signature over the gzipped bytes."""
    key_id: str
    digest: str
    """`sha256:` digest of the gzipped bytes."""


def pack(snapshot: Snapshot) -> bytes:
    """The exact bytes that are signed: gzipped canonical JSON, the same for the same snapshot (mtime 0)."""
    return gzip.compress(canonical_json(snapshot.to_wire()), mtime=0)


def unpack(packed: bytes) -> Snapshot:
    """The snapshot in `packed`, whose signature the caller has verified.

    Raises ValueError (pydantic's included) when it is too large, not gzip, not JSON, or has unknown or wrong fields.
    """
    if len(packed) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"payload has {len(packed)} bytes, the limit is {MAX_PAYLOAD_BYTES}")
    try:
        with gzip.GzipFile(fileobj=BytesIO(packed)) as stream:
            expanded = stream.read(MAX_EXPANDED_BYTES + 1)
    except (OSError, EOFError) as broken:
        raise ValueError(f"payload is not whole gzip: {broken}") from broken
    if len(expanded) > MAX_EXPANDED_BYTES:
        raise ValueError(f"payload expands beyond {MAX_EXPANDED_BYTES} bytes")
    return Snapshot.from_wire(json.loads(expanded), stored=True)
