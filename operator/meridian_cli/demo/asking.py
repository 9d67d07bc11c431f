"""One question of the demo, streamed to the screen as `meridian ask` does, and kept for checking."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import httpx

from meridian_cli.address import dataplane_url
from meridian_cli.ask import Failed, Screen, ask, show_event
from meridian_cli.event_stream import BadStream, Event
from meridian_cli.identity import DEFAULT_ISSUER, Identity, mint_token


@dataclass
class Told:
    """What one answer held."""

    text: str = ""
    citations: list[dict[str, Any]] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)
    done: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def cited(self) -> str:
        """Documents cited, as `POL-EU-009 v4`."""
        return ", ".join(dict.fromkeys(f"{c.get('docId')} v{c.get('docVersion')}" for c in self.citations)) or "none"

    @property
    def abstained(self) -> bool:
        return bool(self.done.get("abstained"))


def put(identity: Identity, question: str, *, quiet: bool = False) -> Told:
    """Asks, shows (unless quiet) and returns what came. An error is a value: the demo judges it."""
    told = Told()
    screen = Screen(sys.stdout, sys.stdout.isatty())
    try:
        token = mint_token(DEFAULT_ISSUER, identity)
        with httpx.Client(timeout=30, trust_env=False) as client:
            for event in ask(client, dataplane_url(), token, question, None):
                _keep(told, event)
                if not quiet:
                    show_event(screen, event)
    except (Failed, BadStream, httpx.HTTPError) as error:
        told.error = f"{type(error).__name__}: {error}"
    if not told.done and not told.error:
        told.error = "the stream ended without an end"
    return told


def _keep(told: Told, event: Event) -> None:
    data = dict(event.data)
    if event.name == "meta":
        told.meta = data
    elif event.name == "token":
        told.text += str(data.get("text", ""))
    elif event.name == "citations":
        told.citations = list(data.get("citations") or [])
    elif event.name == "done":
        told.done = data
    elif event.name == "error":
        told.error = f"{data.get('code')}: {data.get('message')}"


def document_status(identity: Identity, doc_id: str) -> int:
    """HTTP status of a document's page for this person."""
    token = mint_token(DEFAULT_ISSUER, identity)
    with httpx.Client(timeout=10, trust_env=False) as client:
        answer = client.get(f"{dataplane_url()}/v1/documents/{doc_id}", headers={"authorization": f"Bearer {token}"})
    return answer.status_code
