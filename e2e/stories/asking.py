"""Asking the data plane as a user does, and keeping every byte that came back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from meridian_cli.event_stream import BadStream, Event, EventReader
from meridian_cli.identity import DEFAULT_ISSUER, Identity, mint_token

ACME_AGENT = Identity("acme-eu", "u_story_agent", ("support_agent", "billing_lead"), ("support_agent",))
ACME_CUSTOMER = Identity("acme-eu", "u_story", ("customers",), ("customer",))
GLOBEX_AGENT = Identity("globex", "u_story_agent", ("support_agent", "billing_lead"), ("support_agent",))
GLOBEX_CUSTOMER = Identity("globex", "u_story", ("customers",), ("customer",))

End = Literal["done", "error", "refused", "cut", "silent"]
"""`cut` is a transport error that the client sees; `silent` a clean end without a terminal event, which must never be."""


@dataclass
class Reply:
    """What came back for one request. Times in seconds of the monotonic clock."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes = b""
    events: list[Event] = field(default_factory=list)
    end: End = "silent"
    why: str = ""
    asked_at: float = 0.0
    first_token_at: float | None = None
    ended_at: float = 0.0

    @property
    def meta(self) -> Mapping[str, Any]:
        return self.named("meta")

    @property
    def text(self) -> str:
        return "".join(str(e.data.get("text", "")) for e in self.events if e.name == "token")

    @property
    def cited(self) -> tuple[str, ...]:
        return tuple(c["docId"] for c in self.named("citations").get("citations", ()))

    @property
    def done(self) -> Mapping[str, Any]:
        return self.named("done")

    @property
    def problem_code(self) -> str:
        """`code` of a refusal; empty when the body is no problem document."""
        try:
            return str(httpx.Response(200, content=self.raw).json().get("code", ""))
        except (ValueError, AttributeError):
            return ""

    def named(self, name: str) -> Mapping[str, Any]:
        return next((e.data for e in self.events if e.name == name), {})


def token(who: Identity, ttl_s: int = 3600) -> str:
    return mint_token(DEFAULT_ISSUER, who, ttl_s)


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


async def ask(client: httpx.AsyncClient, url: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> Reply:
    """One question, read to its end. Never raises for what the network or the server does."""
    reply, reader = Reply(asked_at=time.monotonic()), EventReader()
    try:
        async with client.stream("POST", f"{url}/v1/answers", json=body, headers=headers) as response:
            reply.status, reply.headers = response.status_code, response.headers
            async for received in response.aiter_bytes():
                reply.raw += received
                if response.status_code == 200:
                    _take(reply, reader.feed(received))
        if response.status_code != 200:
            reply.end = "refused"
    except httpx.HTTPError as error:
        reply.end, reply.why = "cut", f"{type(error).__name__} {error}"
    reply.ended_at = time.monotonic()
    return reply


def events_in(raw: bytes) -> list[Event]:
    """The events of a whole body; none when it is no event stream."""
    try:
        return EventReader().feed(raw)
    except BadStream:
        return []


def ask_once(url: str, headers: Mapping[str, str], body: Mapping[str, Any], timeout: float = 30) -> Reply:
    """`ask` for a story that has one question."""

    async def run() -> Reply:
        async with httpx.AsyncClient(timeout=timeout, trust_env=False) as client:
            return await ask(client, url, headers, body)

    return asyncio.run(run())


def _take(reply: Reply, events: list[Event]) -> None:
    for event in events:
        reply.events.append(event)
        if event.name == "token":
            reply.first_token_at = reply.first_token_at or time.monotonic()
        if event.name in ("done", "error"):
            reply.end = "done" if event.name == "done" else "error"
