"""Model engines that speak OpenAI's chat completions as an event stream (vLLM). One client for all targets.

Every wait is bounded by the request's one absolute deadline. The upstream connection closes as soon as the iterator does.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from meridian_dataplane.adapters.engine_client import EngineBroken, EngineClient, EngineConnectFailed, Exchange
from meridian_dataplane.adapters.replicas import Replicas
from meridian_dataplane.adapters.sse import EventStream, EventTooLarge
from meridian_dataplane.calls import ModelCall, Piece, Usage
from meridian_dataplane.ports import Clock, ModelFailed

IDLE_S = 5.0
"""Between two reads of a stream that has begun (H-06)."""
CONNECT_S = 1.5
AFTER_FINISH_S = 0.5
"""For usage and the terminator once the model has finished; both are optional (H-09)."""
_REFUSALS = frozenset({400, 413, 422})
"""Statuses that judge the request, not the engine (G-16)."""
_COMPLETE = frozenset({"stop", "length"})


def model_client() -> EngineClient:
    return EngineClient()


class HttpModel:
    """The Model port over HTTP."""

    def __init__(self, client: EngineClient, replicas: Replicas, clock: Clock) -> None:
        self._client, self._replicas, self._clock = client, replicas, clock

    async def stream(self, call: ModelCall) -> AsyncGenerator[Piece, None]:
        """See ports.Model."""
        first_until = min(self._clock.monotonic() + call.first_token_timeout_s, call.deadline_at)
        exchange, place = await self._answering(call, first_until)
        try:
            async for piece in self._pieces(exchange, call, first_until):
                yield piece
        finally:
            self._replicas.in_flight[place.address] -= 1
            self._client.give_back(exchange, place.host, place.port, tls=place.tls)

    async def _answering(self, call: ModelCall, until: float) -> tuple[Exchange, _Place]:
        """A replica whose headers are here. Another one is tried only where nothing can have been sent."""
        tried: set[str] = set()
        while True:
            try:
                async with asyncio.timeout(self._left(until)):
                    address = await self._replicas.pick(call.target.base_url, tried)
            except OSError as none:
                raise self._late(call) or ModelFailed("unreachable", type(none).__name__) from None
            tried.add(address)
            place = _place(call.target.base_url, address)
            try:
                left = min(CONNECT_S, self._left(until))
                exchange = await self._client.take(place.host, place.port, tls=place.tls, timeout_s=left)
            except EngineConnectFailed:
                if late := self._late(call):
                    raise late from None  # the request had no time left: that is no fault of the replica
                self._replicas.refused(address)
                continue
            self._replicas.in_flight[address] += 1
            try:
                await self._sent(exchange, call, until)
            except BaseException:
                self._replicas.in_flight[address] -= 1
                exchange.close()
                raise
            return exchange, place

    async def _sent(self, exchange: Exchange, call: ModelCall, until: float) -> None:
        try:
            async with asyncio.timeout(self._left(until)):
                status = await exchange.post(*_request(call))
        except TimeoutError:
            raise self._late(call) or ModelFailed("timeout_first_token") from None
        except EngineBroken as broken:
            raise ModelFailed("unreachable", type(broken).__name__) from None
        if status != 200:
            raise ModelFailed("refused" if status in _REFUSALS else "status", str(status))

    async def _pieces(self, exchange: Exchange, call: ModelCall, first_until: float) -> AsyncGenerator[Piece, None]:
        state = _Answer()
        end: float | None = None
        while True:
            limit = self._limit(state, call, first_until) if end is None else end
            try:
                async with asyncio.timeout(self._left(limit)):
                    chunk = await exchange.read()
            except TimeoutError:
                if state.finish is not None:
                    break
                code = "timeout_idle" if state.begun else "timeout_first_token"
                raise self._late(call) or ModelFailed(code) from None
            if chunk is None:
                break
            # What arrived together is said together; nothing waits for more.
            if text := "".join(state.read(chunk)):
                yield Piece(text)
            if state.finish is not None and end is None:
                end = (
                    min(self._clock.monotonic(), call.deadline_at) + AFTER_FINISH_S
                )  # once: comments must not prolong it
            if state.terminated:
                exchange.whole = True
                break
        if state.finish is None:
            raise ModelFailed("truncated", "no finish reason")
        yield Piece("", state.finish, state.usage())

    def _limit(self, state: _Answer, call: ModelCall, first_until: float) -> float:
        return min(self._clock.monotonic() + IDLE_S, call.deadline_at) if state.begun else first_until

    def _left(self, until: float) -> float:
        return max(0.0, until - self._clock.monotonic())

    def _late(self, call: ModelCall) -> ModelFailed | None:
        return ModelFailed("deadline") if self._clock.monotonic() >= call.deadline_at else None


class _Answer:
    """What the frames of one stream have said so far."""

    def __init__(self) -> None:
        self._frames = EventStream()
        self._usage: dict[str, int] = {}
        self._half = ""
        self.begun = False
        self.finish: str | None = None
        self.terminated = False

    def read(self, chunk: bytes) -> list[str]:
        """Texts in `chunk`. Frames without content (roles, keep-alives) are held back: they are no beginning (H-08)."""
        texts: list[str] = []
        try:
            events = self._frames.feed(chunk)
        except EventTooLarge:
            raise ModelFailed("protocol", "event too large") from None
        for data in events:
            if data.strip() == b"[DONE]":
                self.terminated = True
                break
            text = self._whole(self._frame(data))
            if text:
                self.begun = True
                texts.append(text)
        return texts

    def _whole(self, text: str) -> str:
        """`text` in whole characters: half of a pair waits for the next frame, a half that stays alone is replaced (H-11)."""
        text = self._half + text
        self._half = text[-1] if "\ud800" <= text[-1:] <= "\udbff" else ""
        if self._half:
            text = text[:-1]
        return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    def usage(self) -> Usage | None:
        """Merged per field, the last value that was not null wins (H-15, H-16)."""
        if "prompt_tokens" not in self._usage and "completion_tokens" not in self._usage:
            return None
        get = self._usage.get
        return Usage(get("prompt_tokens", 0), get("completion_tokens", 0), get("cached_tokens", 0))

    def _frame(self, data: bytes) -> str:
        try:
            frame = json.loads(data)
        except (ValueError, RecursionError):
            raise ModelFailed("protocol", "frame is not JSON") from None
        if not isinstance(frame, dict):
            raise ModelFailed("protocol", "frame is not an object")
        if frame.get("error"):
            raise ModelFailed("status", "error frame")
        self._note_usage(frame.get("usage"))
        choices = frame.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return ""
        reason = choice.get("finish_reason")
        if reason is not None:
            if reason not in _COMPLETE:
                raise ModelFailed("protocol", "finish reason")
            self.finish = reason
        delta = choice.get("delta")
        text = delta.get("content") if isinstance(delta, dict) else None
        return text if isinstance(text, str) else ""

    def _note_usage(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            return
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        for name, value in {**usage, "cached_tokens": cached}.items():
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40:
                self._usage[name] = value


@dataclass(frozen=True)
class _Place:
    address: str
    host: str
    port: int
    tls: bool


def _place(base_url: str, address: str) -> _Place:
    parts = urlsplit(f"//{address}")
    return _Place(address, parts.hostname or "", parts.port or 80, base_url.startswith("https:"))


def _request(call: ModelCall) -> tuple[str, dict[str, str], bytes]:
    """Path, headers and body. The host is the target's name, whatever address the connection goes to."""
    parts = urlsplit(call.target.base_url)
    body = {
        "model": call.target.model,
        "messages": [
            {"role": "system", "content": call.system},
            {"role": "user", "content": call.user},
        ],
        "max_tokens": call.max_output_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_salt": call.cache_salt,
    }
    headers = {
        "host": parts.netloc,
        "accept": "text/event-stream",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "x-request-id": call.request_id,
        "traceparent": call.traceparent,
    }
    path = f"{parts.path.rstrip('/')}/v1/chat/completions"
    return path, headers, json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
