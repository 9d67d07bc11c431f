"""Is this snapshot one that may replace what serves? Over exact bytes, in order, pure; the first failing check names itself."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from meridian_api.digest import sha256_hex
from meridian_api.serving import MAX_PAYLOAD_BYTES, Envelope, Manifest, Snapshot, unpack
from meridian_api.tool_schema import schema_fault
from meridian_dataplane.telemetry import log_failure

MAX_ENVELOPE_BYTES = 2 * MAX_PAYLOAD_BYTES
SHRINK_RATIO, SHRINK_COUNT = 0.20, 3


@dataclass(frozen=True)
class Receiver:
    """Who receives: snapshots for another service or region are not ours."""

    service: str
    region: str
    keys: Mapping[str, Ed25519PublicKey]
    """Trusted keys by id. During a rotation there are two (F-10)."""


@dataclass(frozen=True)
class Accepted:
    snapshot: Snapshot
    raw: bytes
    """The envelope as received, which is what is kept on disk."""


@dataclass(frozen=True)
class Refused:
    """`reason` is of a closed set, safe for a status field and a metric label."""

    reason: str
    generation: int = 0
    """As the envelope claims; 0 when it cannot be read."""


class _Fault(Exception):
    pass


def verify(raw: bytes, receiver: Receiver, *, current: Snapshot | None, least_generation: int) -> Accepted | Refused:
    """Accepted when `raw` is an envelope that may serve here; `least_generation` is the lowest that may.

    Never raises: whatever is wrong with the bytes becomes a Refused (IV-08).
    """
    generation = 0
    try:
        envelope = _envelope(raw)
        generation = envelope.generation
        packed = _signed_bytes(envelope, receiver)
        snapshot = _snapshot(packed)
        _is_for_us(snapshot, envelope, receiver, least_generation)
        _is_whole(snapshot)
        if current is not None:
            _has_not_shrunk(snapshot, current)
    except _Fault as fault:
        return Refused(str(fault), generation)
    except Exception:  # noqa: BLE001
        # The last guard: no bytes from outside may end the process that serves.
        return Refused("unreadable", generation)
    return Accepted(snapshot, raw)


def _envelope(raw: bytes) -> Envelope:
    if len(raw) > MAX_ENVELOPE_BYTES:
        raise _Fault("too_large")
    try:
        return Envelope.from_wire(json.loads(raw))
    except (ValueError, RecursionError):
        raise _Fault("envelope") from None


def _signed_bytes(envelope: Envelope, receiver: Receiver) -> bytes:
    """The payload, whose signature and digest hold. Nothing in it has been opened before (F-06)."""
    try:
        packed = base64.b64decode(envelope.payload, validate=True)
        signature = base64.b64decode(envelope.signature, validate=True)
    except (binascii.Error, ValueError):
        raise _Fault("encoding") from None
    if len(packed) > MAX_PAYLOAD_BYTES:
        raise _Fault("too_large")
    key = receiver.keys.get(envelope.key_id)
    if key is None:
        raise _Fault("unknown_key")
    try:
        key.verify(signature, packed)
    except InvalidSignature:
        raise _Fault("signature") from None
    if sha256_hex(packed) != envelope.digest:
        raise _Fault("digest")
    return packed


def _snapshot(packed: bytes) -> Snapshot:
    try:
        return unpack(packed)
    except (ValueError, RecursionError, zlib.error):
        raise _Fault("schema") from None


def _is_for_us(snapshot: Snapshot, envelope: Envelope, receiver: Receiver, least_generation: int) -> None:
    if snapshot.generation != envelope.generation:
        raise _Fault("generation_mismatch")
    if snapshot.service != receiver.service:
        raise _Fault("other_service")
    if snapshot.region != receiver.region:
        raise _Fault("other_region")
    if snapshot.generation < least_generation:
        raise _Fault("old_generation")


def _is_whole(snapshot: Snapshot) -> None:
    """Blank policy is no policy (F-01, F-03)."""
    if not snapshot.tenants:
        raise _Fault("blank")
    names = [tenant.tenant_id for tenant in snapshot.tenants]
    claims = [(t.identity.issuer, t.identity.tenant_claim, t.identity.tenant_value) for t in snapshot.tenants]
    if len(set(names)) != len(names) or len(set(claims)) != len(claims):
        raise _Fault("ambiguous_tenant")
    for tenant in snapshot.tenants:
        if not tenant.roles or not all(_filled(region) for region in tenant.allowed_regions):
            raise _Fault("blank")
        if "global" in tenant.allowed_regions:
            raise _Fault("region")
        if tenant.not_after is not None:
            _instant(tenant.not_after)
    for manifest in _manifests(snapshot):
        _manifest_is_whole(manifest)


def _manifest_is_whole(manifest: Manifest) -> None:
    targets = [target for target in (manifest.primary, manifest.fallback) if target is not None]
    texts = [manifest.release, manifest.system_prompt, manifest.index.epoch, manifest.index.region]
    texts += [text for t in targets for text in (t.pool, t.version, t.region, t.model)]
    if not all(_filled(text) for text in texts):
        raise _Fault("blank")
    if not all(target.base_url.startswith(("http://", "https://")) for target in targets):
        raise _Fault("target")
    if any(schema_fault(tool.parameters) is not None for tool in manifest.tools):
        raise _Fault("tool_schema")


def _has_not_shrunk(snapshot: Snapshot, current: Snapshot) -> None:
    """A large disappearance needs the operator's word that it was seen in two lists (F-04)."""
    if snapshot.shrink_confirmed:
        return
    had, has = ({t.tenant_id for t in s.tenants} for s in (current, snapshot))
    gone = len(had - has)
    if gone > SHRINK_COUNT and gone > SHRINK_RATIO * len(had):
        raise _Fault("shrunken")


def _manifests(snapshot: Snapshot) -> Iterator[Manifest]:
    yield snapshot.serving
    if snapshot.candidate is not None:
        yield snapshot.candidate.manifest


def _filled(text: str) -> bool:
    return bool(text.strip())


def _instant(text: str) -> None:
    try:
        if datetime.fromisoformat(text).tzinfo is None:
            raise _Fault("time")
    except ValueError:
        raise _Fault("time") from None


def read_keys(folder: Path) -> dict[str, Ed25519PublicKey]:
    """The Ed25519 keys in `folder` (`<keyId>.pem`). A file that holds none is passed over. Blocking."""
    keys: dict[str, Ed25519PublicKey] = {}
    try:
        files = sorted(folder.glob("*.pem"))
    except OSError:
        return keys
    for file in files:
        try:
            key = load_pem_public_key(file.read_bytes())
        except (OSError, ValueError, UnsupportedAlgorithm) as odd:
            # One odd file must not take the good keys, and every later snapshot, with it.
            log_failure("key_unreadable", odd, key_id=file.stem)
            continue
        if isinstance(key, Ed25519PublicKey):
            keys[file.stem] = key
    return keys
