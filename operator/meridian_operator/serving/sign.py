"""Ed25519 over the exact packed bytes: what a replica verifies before it parses anything (F-06)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from meridian_api.digest import sha256_hex
from meridian_api.serving import Envelope, Snapshot, pack, unpack

KEY_FILE = "private.pem"
KEY_ID_FILE = "keyId"


class KeyUnusable(Exception):
    """The signing key is missing or is no Ed25519 key. The message never holds key material."""


@dataclass(frozen=True)
class SigningKey:
    """A private key and the name under which the data plane knows its public half. Its repr shows the name alone."""

    key_id: str
    private: Ed25519PrivateKey = field(repr=False)


def load_key(folder: Path) -> SigningKey:
    """The key in a mounted Secret. Read again at each use, so that a rotation needs no restart (F-10).

    Raises KeyUnusable.
    """
    try:
        key_id = (folder / KEY_ID_FILE).read_text().strip()
        private = load_pem_private_key((folder / KEY_FILE).read_bytes(), password=None)
    except OSError as missing:
        raise KeyUnusable(f"{folder}: {missing.strerror}") from None
    except (ValueError, TypeError):
        raise KeyUnusable(f"{folder / KEY_FILE} is not an unencrypted PEM private key") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise KeyUnusable(f"{folder / KEY_FILE} is not an Ed25519 key")
    if not key_id:
        raise KeyUnusable(f"{folder / KEY_ID_FILE} is empty")
    return SigningKey(key_id, private)


def sign(snapshot: Snapshot, key: SigningKey) -> Envelope:
    """The snapshot as it travels."""
    packed = pack(snapshot)
    return Envelope(
        generation=snapshot.generation,
        payload=base64.b64encode(packed).decode(),
        signature=base64.b64encode(key.private.sign(packed)).decode(),
        key_id=key.key_id,
        digest=sha256_hex(packed),
    )


def open_own(envelope: Envelope, key: SigningKey, trusted: Mapping[str, str] | None = None) -> Snapshot:
    """The snapshot in an envelope that this installation signed, now or with an earlier key of `trusted` (PEM by key id).

    Raises ValueError when it was altered or signed by a key that is not ours: nothing of it may be signed anew (F-06, F-10).
    """
    try:
        packed = base64.b64decode(envelope.payload, validate=True)
        signature = base64.b64decode(envelope.signature, validate=True)
    except binascii.Error as broken:
        raise ValueError(f"not base64: {broken}") from broken
    if sha256_hex(packed) != envelope.digest:
        raise ValueError("the payload's digest differs")
    try:
        _public(envelope.key_id, key, trusted or {}).verify(signature, packed)
    except InvalidSignature:
        raise ValueError("the signature does not verify") from None
    snapshot = unpack(packed)
    if snapshot.generation != envelope.generation:
        raise ValueError("the payload has another generation than its envelope")
    return snapshot


def _public(key_id: str, key: SigningKey, trusted: Mapping[str, str]) -> Ed25519PublicKey:
    if key_id == key.key_id:
        return key.private.public_key()
    try:
        public = load_pem_public_key(trusted[f"{key_id}.pem"].encode())
    except (KeyError, ValueError):
        raise ValueError(f"no public key {key_id} is trusted here") from None
    if not isinstance(public, Ed25519PublicKey):
        raise ValueError(f"public key {key_id} is no Ed25519 key")
    return public
