"""The engine: a slot, then prefill, then one token at a time at the engine's pace, with the
version's faults."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from meridian_predictor.answer import answer
from meridian_predictor.faults import Fault, faults_met, spoil
from meridian_predictor.metrics import Metrics, engine_metrics
from meridian_predictor.prompt import content_text, read_prompt
from meridian_predictor.slots import Slots
from meridian_predictor.wire import ChatRequest, split_tokens

STALL_S = 600.0
FinishReason = Literal["stop", "length"]


class EngineFault(Exception):
    """The version's fault `error`: this request fails before its first byte."""


class CutStream(Exception):
    """The version's fault `truncate`: the stream ends here without a finish reason or
    terminator."""


@dataclass(frozen=True)
class EngineSettings:
    """Pace in milliseconds; `slow_factor` multiplies it for requests that meet the fault `slow`."""

    model_name: str
    version: str = "v1"
    slots: int = 24
    prefill_ms: float = 350.0
    inter_token_ms: float = 20.0
    stream_interval: int = 1
    """Tokens of one streamed chunk; the first token is a chunk of its own."""
    max_queue: int | None = None
    faults: tuple[Fault, ...] = ()
    slow_factor: float = 5.0


@dataclass
class Engine:
    """The one mutable thing of the process: its slots, its metrics, and whether it is on its way
    out."""

    settings: EngineSettings
    slots: Slots
    metrics: Metrics
    cached_tokens: int = 0
    draining: bool = False
    started: int = field(default_factory=lambda: int(time.time()))


@dataclass
class Generation:
    """A sequence in its slot. `reason` is set when the last token has been made."""

    tokens: list[str]
    prompt_tokens: int
    met: frozenset[str]
    arrived: float
    made: int = 0
    reason: FinishReason | None = None


def new_engine(settings: EngineSettings) -> Engine:
    return Engine(settings, Slots(settings.slots, settings.max_queue), engine_metrics(settings.model_name))


@asynccontextmanager
async def generation(engine: Engine, request: ChatRequest) -> AsyncIterator[Generation]:
    """Waits for a slot and holds it for the block; whatever ends the block, also a client that
    left, frees it and is counted.

    Raises QueueFull when no place is left, EngineFault when the version fails this request.
    """
    metrics, name, arrived = engine.metrics, engine.settings.model_name, time.monotonic()
    async with engine.slots.hold():
        metrics.queue_time.labels(name).observe(time.monotonic() - arrived)
        sequence = _begin(engine, request, arrived)
        held = sequence.prompt_tokens + len(sequence.tokens)
        engine.cached_tokens += held
        try:
            if "error" in sequence.met:
                raise EngineFault
            yield sequence
        finally:
            engine.cached_tokens -= held
            metrics.generation_tokens.labels(name).inc(sequence.made)
            metrics.success.labels(name, sequence.reason or "abort").inc()
            metrics.latency.labels(name).observe(time.monotonic() - arrived)


async def tokens(engine: Engine, sequence: Generation) -> AsyncGenerator[str, None]:
    """The tokens at the engine's pace: each is due at its own time from the start, so a late one
    does not delay the rest."""
    settings, metrics = engine.settings, engine.metrics
    factor = settings.slow_factor if "slow" in sequence.met else 1.0
    due = time.monotonic() + settings.prefill_ms / 1000 * factor
    last = 0.0
    for token in sequence.tokens:
        if sequence.made == (len(sequence.tokens) + 1) // 2:
            if "truncate" in sequence.met:
                raise CutStream
            if "stall" in sequence.met:
                await asyncio.sleep(STALL_S)
        await asyncio.sleep(max(due - time.monotonic(), 0))
        due += settings.inter_token_ms / 1000 * factor
        now = time.monotonic()
        if sequence.made == 0:
            metrics.prompt_tokens.labels(settings.model_name).inc(sequence.prompt_tokens)
            metrics.first_token.labels(settings.model_name).observe(now - sequence.arrived)
        else:
            metrics.per_token.labels(settings.model_name).observe(now - last)
        last = now
        sequence.made += 1
        yield token


async def chunks(engine: Engine, sequence: Generation) -> AsyncGenerator[str, None]:
    """The tokens as they are streamed: the first one at once, then `stream_interval` together, what
    is left at the end."""
    held: list[str] = []
    async with aclosing(tokens(engine, sequence)) as made:
        async for token in made:
            held.append(token)
            if sequence.made == 1 or len(held) >= engine.settings.stream_interval:
                yield "".join(held)
                held.clear()
    if held:
        yield "".join(held)


async def whole_text(engine: Engine, sequence: Generation) -> str:
    """Every token, joined, after the time they take."""
    async with aclosing(tokens(engine, sequence)) as made:
        return "".join([token async for token in made])


def finish(sequence: Generation, limit: int) -> FinishReason:
    """Marks the sequence as ended and says why it did."""
    sequence.reason = "length" if len(sequence.tokens) == limit and sequence.made == limit else "stop"
    return sequence.reason


def count_prompt_tokens(request: ChatRequest) -> int:
    """Tokens of every message, with four for each message's frame."""
    return sum(4 + len(split_tokens(content_text(m.get("content")))) for m in request.messages)


def _begin(engine: Engine, request: ChatRequest, arrived: float) -> Generation:
    prompt = read_prompt(request.messages)
    busy = engine.slots.running > engine.settings.slots / 4
    met = faults_met(engine.settings.faults, prompt.question, busy)
    text = spoil(prompt, answer(prompt), met)
    return Generation(split_tokens(text)[: request.max_tokens], count_prompt_tokens(request), met, arrived)
