"""Digests that pin content: what a Release names is bytes, not a name that may change under it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping


def canonical_json(value: object) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def sha256_hex(data: bytes) -> str:
    """`sha256:` and 64 hex digits, the spelling that container registries use."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def configmap_digest(data: Mapping[str, str]) -> str:
    """The digest by which a Release pins an immutable ConfigMap: over its `data`, not its metadata."""
    return sha256_hex(canonical_json(dict(data)))
