"""The open-loop load generator behind `meridian traffic` and the stories.

Open loop: requests start when they are due, however slow the answers are, as people do. Each one is
judged by the facts that its question demands, and the verdict goes back as feedback.
"""

import asyncio
import json
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from meridian_cli.event_stream import BadStream, EventReader
from meridian_cli.identity import DEFAULT_ISSUER, Identity, NoToken, mint_token_async
from meridian_cli.traffic_report import Outcome, Question, Record, TrafficReport, is_right

REQUEST_TIMEOUT_S = 10.0
TOKEN_LIFE_S = 1800.0
MAX_OPEN = 1000
Tokens = Callable[[Identity], Awaitable[str]]
Progress = Callable[[float, Sequence[Record], int], None]


@dataclass(frozen=True)
class TrafficSettings:
    """`conversations`: None gives each request a conversation of its own, n spreads them over n."""

    url: str
    rps: float = 20.0
    seconds: float = 60.0
    conversations: int | None = None
    feedback: bool = True
    seed: int = 0
    issuer: str = DEFAULT_ISSUER


@dataclass
class _Run:
    """What the requests of one run share."""

    settings: TrafficSettings
    client: httpx.AsyncClient
    tokens: Tokens
    started: float
    records: list[Record] = field(default_factory=list)
    unsent: int = 0
    feedback_failed: int = 0


@dataclass
class _Reading:
    """What has been read of one answer so far."""

    meta: Mapping[str, Any] = field(default_factory=dict)
    text: list[str] = field(default_factory=list)
    first_token_at: float | None = None
    end: tuple[str, Mapping[str, Any]] | None = None


async def run_traffic(
    settings: TrafficSettings,
    questions: Sequence[Question],
    *,
    stop: asyncio.Event | None = None,
    tokens: Tokens | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
    progress: Progress | None = None,
) -> TrafficReport:
    """Runs until `seconds` are over or `stop` is set, then reads what is open to its end.

    Raises NoToken when the issuer gives none for an identity of the questions, before any traffic;
    ValueError without questions.
    """
    if not questions:
        raise ValueError("no questions to ask")
    stop = stop or asyncio.Event()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)  # spread over the pods
    async with httpx.AsyncClient(
        transport=transport, timeout=REQUEST_TIMEOUT_S, limits=limits, trust_env=False
    ) as client:
        tokens = tokens or issued_tokens(client, settings.issuer)
        for identity in {_identity(q) for q in questions}:
            await tokens(identity)
        run = _Run(settings, client, tokens, time.monotonic())
        shown = asyncio.create_task(_report_progress(run, progress)) if progress else None
        await _send_all(run, questions, stop)
        if shown:
            shown.cancel()
    return TrafficReport(tuple(run.records), run.unsent, run.feedback_failed)


def issued_tokens(client: httpx.AsyncClient, issuer: str) -> Tokens:
    """Tokens from the development issuer, one an identity, renewed half-way through their life.

    While the issuer is away an older token is used on.
    """
    held: dict[Identity, tuple[float, str]] = {}

    async def token(identity: Identity) -> str:
        kept = held.get(identity)
        if kept and time.monotonic() - kept[0] < TOKEN_LIFE_S:
            return kept[1]
        try:
            minted = await mint_token_async(client, issuer, identity)
        except NoToken:
            if kept is None:
                raise
            return kept[1]
        held[identity] = (time.monotonic(), minted)
        return minted

    return token


async def _send_all(run: _Run, questions: Sequence[Question], stop: asyncio.Event) -> None:
    chance, settings = random.Random(run.settings.seed), run.settings
    order: list[Question] = []
    open_requests: set[asyncio.Task[None]] = set()
    for number in range(round(settings.rps * settings.seconds)):
        if await _stopped_before(stop, run.started + number / settings.rps):
            break
        if not order:
            order = chance.sample(list(questions), len(questions))
        if len(open_requests) >= MAX_OPEN:
            run.unsent += 1
            continue
        task = asyncio.create_task(_request(run, order.pop(), _conversation(settings, number)))
        open_requests.add(task)
        task.add_done_callback(open_requests.discard)
    await asyncio.gather(*open_requests)


async def _stopped_before(stop: asyncio.Event, due: float) -> bool:
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), max(due - time.monotonic(), 0))
    return stop.is_set()


async def _request(run: _Run, question: Question, conversation: str) -> None:
    """One question to its end. Whatever happens becomes a record."""
    sent, reading, code = time.monotonic(), _Reading(), None
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            code = await _read_answer(run, question, conversation, reading)
    except (TimeoutError, httpx.TimeoutException):
        code = "timeout"
    except (httpx.HTTPError, BadStream, NoToken) as error:
        code = type(error).__name__
    record = _record(run, question, reading, sent, code)
    run.records.append(record)
    if run.settings.feedback and record.right is not None:
        await _send_feedback(run, question, record)


async def _read_answer(run: _Run, question: Question, conversation: str, reading: _Reading) -> str | None:
    """Reads the stream into `reading`; gives the code of a refusal before the stream."""
    headers = {"authorization": f"Bearer {await run.tokens(_identity(question))}"}
    body = {"question": question.question, "conversationId": conversation}
    url = f"{run.settings.url}/v1/answers"
    async with run.client.stream("POST", url, json=body, headers=headers) as response:
        if response.status_code != 200:
            return _refusal_code(response.status_code, await response.aread())
        reader = EventReader()
        async for received in response.aiter_bytes():
            for event in reader.feed(received):
                if event.name == "meta":
                    reading.meta = event.data
                elif event.name == "token":
                    reading.first_token_at = reading.first_token_at or time.monotonic()
                    reading.text.append(str(event.data.get("text", "")))
                elif event.name in ("done", "error"):
                    reading.end = (event.name, event.data)
                    return None
    return "no_terminal_event"


def _record(run: _Run, question: Question, reading: _Reading, sent: float, code: str | None) -> Record:
    meta, now = reading.meta, time.monotonic()
    name, end = reading.end or ("", {})
    degraded = str(end.get("degraded", "full")) if name == "done" else None
    right: bool | None = None
    outcome: Outcome
    if name == "done":
        right = is_right(question, "".join(reading.text), bool(end.get("abstained")))
        outcome = "answered" if degraded == "full" else "degraded"
        code = None if degraded == "full" else f"degraded {degraded}"
    elif name == "error":
        outcome, code = "error", str(end.get("code"))
    else:
        outcome = "lost" if meta or code == "no_terminal_event" else "error"
    first = reading.first_token_at
    return Record(
        at_s=sent - run.started,
        question=question.question,
        tenant=question.tenant,
        outcome=outcome,
        request_id=meta.get("requestId"),
        release=meta.get("release"),
        arm=meta.get("arm"),
        generation=meta.get("generation"),
        degraded=degraded,
        right=right,
        code=code,
        ttft_ms=None if first is None else (first - sent) * 1000,
        total_ms=(now - sent) * 1000 if name == "done" else None,
    )


async def _send_feedback(run: _Run, question: Question, record: Record) -> None:
    body = {
        "requestId": record.request_id,
        "outcome": "resolved" if record.right else "unresolved",
    }
    try:
        token = await run.tokens(_identity(question))
        headers = {"authorization": f"Bearer {token}"}
        url = f"{run.settings.url}/v1/feedback"
        answered = await run.client.post(url, json=body, headers=headers)
        failed = answered.status_code != 202
    except (httpx.HTTPError, NoToken):
        failed = True
    run.feedback_failed += failed


async def _report_progress(run: _Run, progress: Progress) -> None:
    while True:
        progress(time.monotonic() - run.started, run.records, run.unsent)
        await asyncio.sleep(0.5)


def _identity(question: Question) -> Identity:
    return Identity(question.tenant, "u_traffic", question.groups, question.roles)


def _conversation(settings: TrafficSettings, number: int) -> str:
    if settings.conversations:
        return f"traffic-{settings.seed}-{number % settings.conversations}"
    return f"traffic-{uuid.uuid4().hex}"


def _refusal_code(status: int, body: bytes) -> str:
    try:
        return f"{status} {json.loads(body)['code']}"
    except (ValueError, KeyError, TypeError):
        return str(status)
