"""`meridian ask`: one question, its answer streamed to the terminal, its citations and its
price."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

import httpx

from meridian_cli.address import NoAddress, dataplane_url
from meridian_cli.event_stream import BadStream, Event, EventReader
from meridian_cli.identity import NoToken, mint_token
from meridian_cli.token import add_identity_arguments, identity_from

DIM, BOLD, YELLOW, RED, PLAIN = "\033[2m", "\033[1m", "\033[33m", "\033[31m", "\033[0m"
_TERMINAL = ("done", "error")
_KEPT_CONTROLS = "\n\t"


class Failed(Exception):
    """No answer came; the message is for the person who asked."""


@dataclass
class Screen:
    """Where an answer is shown. Colours only where a person reads (a tty)."""

    out: TextIO
    colours: bool
    meta: Mapping[str, Any] = field(default_factory=dict)

    def say(self, text: str, colour: str = "") -> None:
        """Text from outside cannot steer the terminal: control characters are dropped."""
        shown = "".join(c for c in text if c.isprintable() or c in _KEPT_CONTROLS)
        self.out.write(f"{colour}{shown}{PLAIN}" if colour and self.colours else shown)
        self.out.flush()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("question")
    add_identity_arguments(parser, tenant_required=False)
    parser.add_argument("--token", help="instead of one from the development issuer")
    parser.add_argument("--url", help="the data plane (default: $MERIDIAN_URL or the Service)")
    parser.add_argument("--conversation", help="continue this conversation")
    parser.add_argument("--timeout-seconds", type=float, default=30.0, help="silence that is borne")
    parser.add_argument("--json", action="store_true", help="print the events as JSON lines")


def run(args: argparse.Namespace, transport: httpx.BaseTransport | None = None) -> int:
    """0 for an answer, also a degraded or abstaining one; 1 for an error, with its reason."""
    try:
        if not args.token and not args.tenant:
            raise Failed("give --tenant (a token is then asked of the development issuer) or --token")
        issuer = args.issuer.rstrip("/")
        token = args.token or mint_token(issuer, identity_from(args), transport=transport)
        url = args.url.rstrip("/") if args.url else dataplane_url()
        screen = Screen(sys.stdout, sys.stdout.isatty())
        show = show_json if args.json else show_event
        with httpx.Client(transport=transport, timeout=args.timeout_seconds, trust_env=False) as client:
            ended = show_all(screen, ask(client, url, token, args.question, args.conversation), show)
        if not (args.token or args.group or args.role):
            hint("without --group or --role a user sees no document; the sample knows --group customers")
        return ended
    except (Failed, NoToken, NoAddress, BadStream) as error:
        complain(str(error))
    except httpx.HTTPError as error:
        complain(f"the data plane does not answer: {type(error).__name__} {error}")
    except KeyboardInterrupt:
        complain("stopped; the data plane notices and stops too")
    return 1


def ask(client: httpx.Client, url: str, token: str, question: str, conversation: str | None) -> Iterator[Event]:
    """The events of one answer. Raises Failed for a refusal before the stream."""
    body = {"question": question} | ({"conversationId": conversation} if conversation else {})
    headers = {"authorization": f"Bearer {token}", "accept": "text/event-stream"}
    with client.stream("POST", f"{url}/v1/answers", json=body, headers=headers) as response:
        if response.status_code != 200:
            response.read()
            raise Failed(describe_refusal(response))
        reader = EventReader()
        for received in response.iter_bytes():
            yield from reader.feed(received)


def show_all(screen: Screen, events: Iterator[Event], show) -> int:
    """Shows each event as it comes. A stream without a terminal event is an error, and said so."""
    for event in events:
        show(screen, event)
        if event.name in _TERMINAL:
            return 0 if event.name == "done" else 1
    raise Failed("the stream ended without an end: the answer above may be incomplete")


def show_json(screen: Screen, event: Event) -> None:
    line = json.dumps({"event": event.name, **event.data}, ensure_ascii=False)
    screen.out.write(line + "\n")
    screen.out.flush()


def show_event(screen: Screen, event: Event) -> None:
    data = event.data
    if event.name == "meta":
        screen.meta = data
    elif event.name == "token":
        screen.say(str(data.get("text", "")))
    elif event.name == "citations":
        show_citations(screen, data)
    elif event.name == "done":
        show_done(screen, data)
    elif event.name == "error":
        screen.say(f"\nerror {data.get('code')}: {data.get('message')}", RED)
        screen.say(f" (request {data.get('requestId')})\n", RED)


def show_citations(screen: Screen, data: Mapping[str, Any]) -> None:
    screen.say("\n")
    for cited in data.get("citations") or []:
        screen.say(f"\n[{cited.get('marker')}] ", BOLD)
        screen.say(f"{cited.get('title')}, version {cited.get('docVersion')}")
        if link := cited.get("url") or cited.get("sourceUri"):
            screen.say(f"\n    {link}", DIM)


def show_done(screen: Screen, data: Mapping[str, Any]) -> None:
    screen.say("\n")
    if data.get("abstained"):
        screen.say("\nabstained: the documents this user may see hold no answer\n", YELLOW)
    if (level := data.get("degraded", "full")) != "full":
        screen.say(f"\ndegraded: {level}\n", YELLOW)
    meta, used = screen.meta, data.get("usage") or {}
    parts = [
        f"release {meta.get('release')} ({meta.get('arm')})",
        f"generation {meta.get('generation')}",
        f"epoch {meta.get('epoch')}",
        f"tokens {used.get('inputTokens', 0)} in, {used.get('outputTokens', 0)} out",
        f"{float(data.get('costUsd') or 0):.6f} USD",
        f"first token {_ms(data.get('ttftMs'))}, total {_ms(data.get('totalMs'))}",
        f"request {data.get('requestId')}",
    ]
    screen.say("\n" + " | ".join(parts) + "\n", DIM)


def describe_refusal(response: httpx.Response) -> str:
    """A problem document in one line."""
    try:
        problem = response.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        return f"refused with {response.status_code}"
    detail = str(problem.get("detail") or problem.get("title") or "")
    retry = response.headers.get("retry-after")
    again = f"; try again in {retry} s" if retry else ""
    detail = detail.rstrip(".") if again else detail
    named = f"{response.status_code} {problem.get('code', '')}".strip()
    return f"refused with {named}: {detail}{again} (request {problem.get('requestId')})"


def complain(text: str) -> None:
    screen = Screen(sys.stderr, sys.stderr.isatty())
    screen.say(f"meridian ask: {text}\n", RED)


def hint(text: str) -> None:
    """Beside the answer, not in it: a script that reads the answer does not see it."""
    screen = Screen(sys.stderr, sys.stderr.isatty())
    screen.say(f"hint: {text}\n", DIM)


def _ms(value: object) -> str:
    return f"{value:.0f} ms" if isinstance(value, (int, float)) else "unknown"
