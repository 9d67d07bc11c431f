"""Request ids and W3C trace context. Pure but for the draw of ids."""

from __future__ import annotations

import re
import secrets

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def new_request_id() -> str:
    """Always ours: a client that could choose it could make two requests look like one."""
    return secrets.token_hex(16)


def continued(headers: list[str]) -> str:
    """A traceparent of our own span in the client's trace, if exactly one valid one came; otherwise in a new one (S-11)."""
    match = _TRACEPARENT.fullmatch(headers[0]) if len(headers) == 1 else None
    trace, flags = secrets.token_hex(16), "01"
    if match and int(match[1], 16) and int(match[2], 16):
        trace, flags = match[1], match[3]
    return f"00-{trace}-{secrets.token_hex(8)}-{flags}"
