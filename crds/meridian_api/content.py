"""What a release serves, as a digest: whatever object bears its name, and whatever version reads it."""

from __future__ import annotations

from meridian_api.digest import canonical_json, sha256_hex
from meridian_api.v1alpha1.release import ReleaseSpec

CONTENT = {"service", "app", "prompt", "models", "index", "tools", "settings"}


def content_digest(spec: ReleaseSpec) -> str:
    """Digest of what a release serves, whatever object bears its name: a name used again is a new thing.

    Fields at their defaults are left out, so that a field that a later version adds changes no digest (K-31).
    """
    declared = spec.model_dump(mode="json", by_alias=True, include=CONTENT, exclude_defaults=True)
    return sha256_hex(b"meridian.dev/release-content/v1\n" + canonical_json(declared))
