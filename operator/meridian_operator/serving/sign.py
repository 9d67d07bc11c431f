"""Ed25519 over the exact packed bytes: what a replica verifies before it parses anything (F-06)."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

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


def open_own(envelope: Envelope, key: SigningKey) -> Snapshot:
    """The snapshot in an envelope that this installation signed.

    Raises ValueError when it was altered, or signed by another key although it names ours. One that names an older key of
    ours is opened without its signature: only its pointer is read, and it is signed anew (F-10).
    """
    try:
        packed = base64.b64decode(envelope.payload, validate=True)
        signature = base64.b64decode(envelope.signature, validate=True)
    except binascii.Error as broken:
        raise ValueError(f"not base64: {broken}") from broken
    if sha256_hex(packed) != envelope.digest:
        raise ValueError("the payload's digest differs")
    if envelope.key_id == key.key_id:
        try:
            key.private.public_key().verify(signature, packed)
        except InvalidSignature:
            raise ValueError("the signature does not verify") from None
    snapshot = unpack(packed)
    if snapshot.generation != envelope.generation:
        raise ValueError("the payload has another generation than its envelope")
    return snapshot
