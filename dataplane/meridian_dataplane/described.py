"""The public application as FastAPI knows it: paths, shapes, refusals. Its handlers come from outside.

FastAPI's own reading of bodies is not used: it would parse one before our limits see it. A handler takes the request as it is and
answers with a response; what it reads and sends is declared here for the schema alone. No route of the schema is public (H-33).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from meridian_dataplane.refusals import TITLES
from meridian_dataplane.requests import Feedback, Question

Endpoint = Callable[[Request], Awaitable[Response]]

_PROBLEM: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code", "requestId"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "requestId": {"type": "string"},
    },
}
_EVENTS = (
    "Events `meta`, `token`, `citations`, then exactly one of `done` and `error`; the data of each is one line of JSON."
)
_DOCUMENT: dict[str, Any] = {
    "type": "object",
    "required": ["docId", "docVersion", "title", "sourceUri", "text", "current"],
    "properties": {
        "docId": {"type": "string"},
        "docVersion": {"type": "integer"},
        "title": {"type": "string"},
        "sourceUri": {"type": "string"},
        "text": {"type": "string"},
        "current": {"type": "boolean"},
    },
}
_VERSION = {
    "name": "version",
    "in": "query",
    "required": False,
    "schema": {"type": "integer", "minimum": 0},
    "description": "The current one without it.",
}
_DOC_ID = {"name": "doc_id", "in": "path", "required": True, "schema": {"type": "string", "maxLength": 120}}
_OF_EVERY_ROUTE, _OF_BODIES = (400, 401, 403, 431, 500, 503), (408, 413, 415, 422)


def described(answers: Endpoint, feedback: Endpoint, documents: Endpoint) -> FastAPI:
    """The application with these handlers."""
    app = FastAPI(
        title="Meridian data plane",
        version="1",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        # Metrics and logs are ours, and hold what telemetry.py allows; no variable of the environment may add to them (T-53).
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.router.redirect_slashes = False

    def add(path: str, method: str, handler: Endpoint, name: str, operation: dict[str, Any], *refusals: int) -> None:
        app.add_api_route(
            path, handler, methods=[method], name=name, operation_id=name, summary=handler.__doc__ or name,
            response_model=None, response_class=Response, status_code=int(next(iter(operation["responses"]))),
            responses={status: _refusal(status) for status in (*_OF_EVERY_ROUTE, *refusals)}, openapi_extra=operation,
        )  # fmt: skip

    add(
        "/v1/answers",
        "POST",
        answers,
        "answer",
        _operation(Question, 200, "text/event-stream", _EVENTS),
        *_OF_BODIES,
        429,
    )
    add("/v1/feedback", "POST", feedback, "feedback", _operation(Feedback, 202, None, "Taken."), *_OF_BODIES, 404, 429)
    page = _operation(None, 200, "application/json", "The document as this caller may see it.", _DOCUMENT)
    add("/v1/documents/{doc_id}", "GET", documents, "document", {**page, "parameters": [_DOC_ID, _VERSION]}, 404, 429)
    return app


def schema() -> dict[str, Any]:
    """The OpenAPI document, made without a plane."""

    async def nobody(request: Request) -> Response:
        raise NotImplementedError

    document = described(nobody, nobody, nobody).openapi()
    document.setdefault("components", {})["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
    }
    return document


def _operation(
    body: type[BaseModel] | None, status: int, media: str | None, text: str, shape: dict[str, Any] | None = None
) -> dict[str, Any]:
    content = {media: {"schema": shape or {"type": "string"}}} if media else {}
    operation: dict[str, Any] = {
        "security": [{"bearer": []}],
        "responses": {str(status): {"description": text, "content": content}},
    }
    if body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": body.model_json_schema()}},
        }
    return operation


def _refusal(status: int) -> dict[str, Any]:
    return {"description": TITLES[status], "content": {"application/problem+json": {"schema": _PROBLEM}}}
