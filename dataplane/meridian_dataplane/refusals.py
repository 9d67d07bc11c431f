"""Refusals: the reasons for which a request gets no answer, and their one form on the wire."""

from __future__ import annotations

import json
from typing import Any


class Refusal(Exception):
    """A request that is not answered. Every text in it is ours: nothing from outside is echoed."""

    def __init__(self, status: int, code: str, detail: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(code)
        self.status, self.code, self.detail = status, code, detail
        self.retry_after_s = retry_after_s


TITLES = {
    400: "The request cannot be read in one way only",
    401: "The token is missing or not valid",
    403: "This caller is not served here",
    404: "Not found",
    405: "Method not allowed",
    408: "The request did not arrive in time",
    413: "The request is too large",
    415: "Only application/json without encoding is read",
    422: "The request has wrong or unknown fields",
    429: "Too many requests at the moment",
    431: "A header is too large",
    500: "Internal error",
    503: "Not able to answer at the moment",
}


def unauthenticated(code: str) -> Refusal:
    """401. The detail is always the same: why a token failed is for our metrics, not for its bearer."""
    return Refusal(401, code, "Send one valid bearer token of a registered issuer.")


def not_found() -> Refusal:
    """The same bytes for what does not exist and for what may not be seen."""
    return Refusal(404, "not_found", "There is no such thing, or it is not visible to you.")


def no_eligible_target() -> Refusal:
    return Refusal(
        503,
        "no_eligible_target",
        "No model or index in a region that your tenant allows is available.",
        retry_after_s=5,
    )


def busy(code: str, detail: str, retry_after_s: int) -> Refusal:
    return Refusal(429, code, detail, retry_after_s=retry_after_s)


def unavailable(code: str, detail: str, retry_after_s: int = 2) -> Refusal:
    return Refusal(503, code, detail, retry_after_s=retry_after_s)


def problem(refusal: Refusal, request_id: str) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Status, headers and body of `refusal` as application/problem+json (RFC 9457)."""
    body: dict[str, Any] = {
        "type": f"urn:meridian:problem:{refusal.code}",
        "title": TITLES.get(refusal.status, "Refused"),
        "status": refusal.status,
        "detail": refusal.detail,
        "code": refusal.code,
        "requestId": request_id,
    }
    raw = json.dumps(body, separators=(",", ":")).encode()
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(raw)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-request-id", request_id.encode()),
    ]
    if refusal.retry_after_s is not None:
        headers.append((b"retry-after", str(refusal.retry_after_s).encode()))
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return refusal.status, headers, raw
