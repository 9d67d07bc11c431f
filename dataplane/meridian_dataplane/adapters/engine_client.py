"""A small HTTP/1.1 client for model streams: a POST, then the body as it came, one piece for each read.

A general client costs more than the rest of an answer: its layers wake for every chunk of every token. Here llhttp (by way of
httptools) parses a read whole, and text that arrived together stays together. Connections are kept and used again when a response
has ended cleanly; nothing is sent twice.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from collections.abc import Callable, Mapping
from types import TracebackType

import httptools

MAX_HEAD_BYTES = 65_536
MAX_BUFFERED_BYTES = 262_144
"""Of a body that nobody reads yet; then the socket is left alone, and the engine has to wait (H-21)."""
KEPT_S = 3.0
"""Below the 5 s after which uvicorn, and so vLLM, closes an idle connection: a request that meets the close is lost."""
END_S = 0.5
"""For the end of a response whose last event has been read; it comes in a write of its own."""
MAX_KEPT = 256
"""Idle connections of one address."""


class EngineConnectFailed(Exception):
    """No connection: nothing was sent."""


class EngineBroken(Exception):
    """The response is not HTTP, or the connection ended before its headers."""


class Exchange(asyncio.Protocol):
    """One connection, and the one response that is being read from it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.expires: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.closed = False
        self._fresh()

    def _fresh(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._size = self._head = 0
        self.status = 0
        self._broken = self._keeps = False
        self.complete = False
        self.whole = False
        """Set by whoever has read all that matters: only the end of the body may still come."""
        self.on_complete: Callable[[], object] | None = None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if not self.status:
            self._head += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._broken = True
        if self._broken or (not self.status and self._head > MAX_HEAD_BYTES):
            self._broken = True
            self.close()
        if self._size > MAX_BUFFERED_BYTES and self.transport is not None:
            self.transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._wake()

    # What the parser calls.

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self.status = status if status >= 200 else 0
        self._keeps = self._parser.should_keep_alive()  # the parser knows no longer once the message has ended

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        self._size += len(body)

    def on_message_complete(self) -> None:
        if self.complete:
            self._broken = True  # a second response to one request
        self.complete = bool(self.status)
        if self.complete and self.on_complete is not None:
            self._loop.call_soon(self.on_complete)

    # What the adapter calls.

    async def post(self, path: str, headers: Mapping[str, str], body: bytes) -> int:
        """Sends the request; the status once the headers are here. Raises EngineBroken."""
        assert self.transport is not None
        if self.expires is not None:
            self.expires.cancel()
        self._fresh()
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(
            f"POST {path} HTTP/1.1\r\n{head}content-length: {len(body)}\r\n\r\n".encode("latin-1") + body
        )
        while not self.status:
            if self._broken or self.closed:
                raise EngineBroken("no response")
            await self._more()
        return self.status

    async def read(self) -> bytes | None:
        """All of the body that is here, as soon as there is any; None at its end, however it ends."""
        while not self._parts:
            if self._broken or self.complete or self.closed:
                return None
            await self._more()
        data = b"".join(self._parts) if len(self._parts) > 1 else self._parts[0]
        self._parts.clear()
        if self._size > MAX_BUFFERED_BYTES and self.transport is not None:
            self.transport.resume_reading()
        self._size = 0
        return data

    @property
    def reusable(self) -> bool:
        return self.complete and self._keeps and not self._broken and not self.closed

    def close(self) -> None:
        """At once, so that the engine stops working for nobody (H-01)."""
        self.closed = True
        if self.expires is not None:
            self.expires.cancel()
        if self.transport is not None:
            self.transport.abort()

    async def _more(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EngineClient:
    """Connections to engines by address. Its number is not bounded here: admission is the bound (G-27)."""

    def __init__(self) -> None:
        self._kept: defaultdict[tuple[str, int, bool], list[Exchange]] = defaultdict(list)
        self._tls = ssl.create_default_context()

    async def __aenter__(self) -> EngineClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for kept in self._kept.values():
            for exchange in kept:
                exchange.close()
        self._kept.clear()

    async def take(self, host: str, port: int, *, tls: bool, timeout_s: float) -> Exchange:
        """A kept connection or a new one. Raises EngineConnectFailed."""
        kept = self._kept[host, port, tls]
        while kept:
            exchange = kept.pop()
            if not exchange.closed:
                return exchange
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, exchange = await loop.create_connection(Exchange, host, port, ssl=self._tls if tls else None)
        except OSError as failed:  # TimeoutError is one
            raise EngineConnectFailed(type(failed).__name__) from None
        return exchange

    def give_back(self, exchange: Exchange, host: str, port: int, *, tls: bool) -> None:
        """Keeps it for the next call once its response has ended cleanly, else closes it."""
        kept = self._kept[host, port, tls]
        if exchange.whole and not exchange.complete and not exchange.closed:
            exchange.expires = asyncio.get_running_loop().call_later(END_S, exchange.close)
            exchange.on_complete = lambda: self._keep(exchange, kept)
        else:
            self._keep(exchange, kept)

    def _keep(self, exchange: Exchange, kept: list[Exchange]) -> None:
        if exchange.expires is not None:
            exchange.expires.cancel()
        if not exchange.reusable or len(kept) >= MAX_KEPT:
            exchange.close()
            return
        kept.append(exchange)
        exchange.expires = asyncio.get_running_loop().call_later(KEPT_S, self._expire, exchange, kept)

    def _expire(self, exchange: Exchange, kept: list[Exchange]) -> None:
        if exchange in kept:
            kept.remove(exchange)
            exchange.close()
