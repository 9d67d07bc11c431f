"""What may come in over HTTP, read with a bound on everything before anything is parsed."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect, Request

from meridian_dataplane.refusals import Refusal

MAX_BODY_BYTES = 65_536
MAX_AUTHORIZATION_BYTES = 8_192
BODY_S = 10.0
_MAX_DEPTH = 8
_JSON = re.compile(r"application/json[ \t]*(;[ \t]*charset=(utf-8|\"utf-8\"))?", re.IGNORECASE)
_PARAMETER = re.compile(r"[A-Za-z][A-Za-z_-]{0,31}")


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", populate_by_name=False)


class Question(_Body):
    """Body of POST /v1/answers. Nothing in it can choose a tenant, a release or a region (T-14)."""

    question: Annotated[str, Field(min_length=1, max_length=4000, pattern=r"\S")]
    conversation_id: Annotated[
        str | None, Field(alias="conversationId", min_length=1, max_length=128, pattern=r"^[-._:A-Za-z0-9]+$")
    ] = None
    locale: Annotated[str | None, Field(max_length=35, pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$")] = None


class Feedback(_Body):
    """Body of POST /v1/feedback."""

    request_id: Annotated[str, Field(alias="requestId", pattern=r"^[0-9a-f]{32}$")]
    outcome: Literal["resolved", "unresolved", "escalated", "reopened", "thumbs_up", "thumbs_down"]


def authorization(request: Request) -> str:
    """The one Authorization header, '' without one. A token in the URL would be in somebody's log (T-11)."""
    values = request.headers.getlist("authorization")
    if len(values) > 1:
        raise Refusal(400, "two_authorizations", "Send one Authorization header.")
    if values and len(values[0]) > MAX_AUTHORIZATION_BYTES:
        raise Refusal(431, "authorization_too_large", f"At most {MAX_AUTHORIZATION_BYTES} bytes.")
    if any("token" in name.lower() or name.lower() == "authorization" for name in request.query_params):
        raise Refusal(400, "token_in_url", "A token belongs into the Authorization header.")
    return values[0] if values else ""


def known_parameters(request: Request, known: tuple[str, ...]) -> None:
    """Refuses any other: a token goes by many names, and what is not read must not look as if it were (T-11)."""
    for name in request.query_params:
        if name not in known:
            # A value without a name is read as one; nothing that looks like a value is echoed.
            shown = name if _PARAMETER.fullmatch(name) else "a parameter"
            raise Refusal(400, "query", f"Unknown in the query: {shown}.")


async def read_body(request: Request, shape: type[BaseModel]) -> BaseModel:
    """The checked body. Raises Refusal (400, 408, 413, 415, 422) naming fields, never repeating values."""
    kinds, encodings = (request.headers.getlist(name) for name in ("content-type", "content-encoding"))
    if len(kinds) != 1 or not _JSON.fullmatch(kinds[0]) or [e.lower() for e in encodings] not in ([], ["identity"]):
        raise Refusal(415, "media_type", "Send application/json, in UTF-8 and without content encoding, said once.")
    raw = await _bounded(request)
    try:
        text = raw.decode("utf-8")
        if _depth(text) > _MAX_DEPTH:
            raise Refusal(400, "too_deep", f"JSON may be nested {_MAX_DEPTH} deep.")
        pairs = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise Refusal(400, "not_json", "The body is not one JSON object with each name once.") from None
    try:
        return shape.model_validate(pairs)
    except ValidationError as wrong:
        where = sorted({_path(error["loc"]) for error in wrong.errors()})[:5]
        raise Refusal(422, "fields", f"Wrong, missing or unknown: {', '.join(where)}.") from None


async def _bounded(request: Request) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared[:12]) > MAX_BODY_BYTES:
        raise _too_large()
    raw = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                raw += part
                if len(raw) > MAX_BODY_BYTES:
                    raise _too_large()
    except TimeoutError:
        raise Refusal(408, "body_timeout", "The body did not arrive in time.") from None
    except ClientDisconnect:
        raise Refusal(400, "disconnected", "The client left.") from None
    return bytes(raw)


def _too_large() -> Refusal:
    return Refusal(413, "too_large", f"A body may have {MAX_BODY_BYTES} bytes.")


def _depth(text: str) -> int:
    """An upper bound of the nesting, linear in the size; brackets in strings do not count."""
    deepest = depth = 0
    quoted = escaped = False
    for sign in text:
        if quoted:
            if escaped:
                escaped = False
            elif sign == "\\":
                escaped = True
            elif sign == '"':
                quoted = False
        elif sign == '"':
            quoted = True
        elif sign in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif sign in "]}":
            depth -= 1
    return deepest


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Input that can be read in two ways is refused."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _path(location: tuple[int | str, ...]) -> str:
    name = str(location[0]) if location else "body"
    return name[:60] if name.isascii() and name.replace("_", "").isalnum() else "a field"
