"""Names of the Kubernetes objects that Meridian derives from its own objects' names."""

from __future__ import annotations

import hashlib
import re

# KServe appends `-predictor`, a Deployment appends a pod hash: 50 leaves room below the DNS label's 63.
MAX_LENGTH = 50
_HASH_DIGITS = 8


def derived_name(*parts: str) -> str:
    """A DNS label from `parts`: a readable slug and 8 hex digits of a hash over the exact parts.

    A release's name may have dots and begin with a digit; Services, Indexed Jobs and KServe refuse those. The hash keeps
    `a.b` and `a-b` apart, and the same parts always give the same name, so that creating twice is found by the API server.
    """
    exact = "\0".join(parts).encode()
    suffix = hashlib.sha256(exact).hexdigest()[:_HASH_DIGITS]
    slug = re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")
    if not slug or not slug[0].isalpha():
        slug = f"m-{slug}".rstrip("-")
    return f"{slug[: MAX_LENGTH - _HASH_DIGITS - 1].rstrip('-')}-{suffix}"
