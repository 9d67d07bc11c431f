"""Connections to the store that cannot be lost: nothing is awaited between taking one and giving its turn back.

A library's pool gives back with awaits of its own; a cancellation or a stalled loop at that point leaves a slot taken for good.
Here a turn is a semaphore's, returned by plain calls, and a connection is either idle in a list or in the hands of one body. Each
use has an end on the client's side: then the socket is shut down, which wakes every wait on it, also the one in which psycopg
waits for the server to confirm a cancellation.
"""

from __future__ import annotations

import asyncio
import os
import random
import select
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from meridian_dataplane.ports import StoreUnavailable

Row = dict[str, Any]
Connection = psycopg.AsyncConnection[Row]

CONNECT_S = 5
GRACE_S = 0.25
"""After a body's time, for the server's own statement timeout to end it first: that keeps the connection."""
_ROLLBACK_S = 0.25
_LIFETIME_S = 1800.0
# JIT costs more than these statements take; stop-word notices are of no use to anyone.
_OPTIONS = "-c jit=off -c client_min_messages=error -c idle_in_transaction_session_timeout=30000"


class Pool:
    """At most `permits` bodies at once, each with a connection of its own; waiters in their order."""

    def __init__(self, dsn: str, *, permits: int, name: str = "store") -> None:
        self._dsn, self.permits, self._name = dsn, permits, name
        self._turns = asyncio.Semaphore(permits)
        self._idle: list[tuple[Connection, float]] = []
        self._coming: set[asyncio.Task[None]] = set()
        self._closed = False

    async def open(self, wait_s: float = 0.0) -> None:
        """Opens every connection beforehand, and waits `wait_s` seconds for them; a store that is away is no failure."""
        for _ in range(self.permits):
            self._begin_connecting()
        if wait_s:
            await asyncio.wait(self._coming, timeout=wait_s)

    async def close(self) -> None:
        """Closes what is idle now and what comes back or arrives later."""
        self._closed = True
        for task in self._coming:
            task.cancel()
        await asyncio.gather(*self._coming, return_exceptions=True)
        while self._idle:
            await self._idle.pop()[0].close()

    @asynccontextmanager
    async def connection(self, timeout_s: float) -> AsyncIterator[Connection]:
        """A connection for a body that ends within `timeout_s` seconds, the wait for it included. Raises StoreUnavailable.

        It is kept when the body left it idle; whatever else happened to it, it is thrown away, so that no late reply can reach the
        next user (T-31).
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        await self._turn(until)
        try:
            connection, born = await self._fit(until)
            limit = loop.call_at(until + GRACE_S, sever, connection)
            whole = False
            try:
                yield connection
                whole = True
            except psycopg.Error as failed:
                whole = await _rolled_back(connection)
                raise StoreUnavailable(f"{type(failed).__name__}: {failed}") from failed
            except Exception:
                whole = await _rolled_back(connection)
                raise
            finally:
                limit.cancel()
                self._give_back(connection, born, whole)
        finally:
            self._turns.release()

    async def _turn(self, until: float) -> None:
        try:
            async with asyncio.timeout_at(until):
                await self._turns.acquire()
        except TimeoutError as late:
            raise StoreUnavailable("no turn in time") from late

    async def _fit(self, until: float) -> tuple[Connection, float]:
        """An idle connection, or the next that arrives. Connecting outlives the body that asked: it serves the next one then."""
        loop = asyncio.get_running_loop()
        while True:
            while self._idle:
                connection, born = self._idle.pop()
                if loop.time() - born < _LIFETIME_S and _quiet(connection):
                    return connection, born
                connection.pgconn.finish()
            if len(self._coming) < self.permits:
                self._begin_connecting()
            left = until - loop.time()
            done, _ = await asyncio.wait(self._coming, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
            failures = [failure for task in done if not task.cancelled() and (failure := task.exception())]
            if not self._idle and (failures or left <= 0):
                cause = failures[0] if failures else TimeoutError()
                raise StoreUnavailable(f"not connected: {type(cause).__name__}: {cause}") from cause

    def _begin_connecting(self) -> None:
        if self._closed:
            raise StoreUnavailable("the pool is closed")
        task = asyncio.create_task(self._connect())
        self._coming.add(task)
        task.add_done_callback(self._arrived)

    def _arrived(self, task: asyncio.Task[None]) -> None:
        self._coming.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited for it has it; nobody may have

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_S):
            connection = await psycopg.AsyncConnection[Row].connect(
                self._dsn,
                autocommit=True,
                row_factory=dict_row,
                options=_OPTIONS,
                application_name=f"meridian-{self._name}",
            )
        # Born at different times, so that they do not all grow old in one moment.
        self._give_back(connection, loop.time() - random.uniform(0, _LIFETIME_S / 4), whole=True)  # noqa: S311

    def _give_back(self, connection: Connection, born: float, whole: bool) -> None:
        if whole and not self._closed and connection.info.transaction_status is TransactionStatus.IDLE:
            self._idle.append((connection, born))
        else:
            connection.pgconn.finish()


def sever(connection: Connection) -> None:
    """Shuts the socket down, which ends every wait on it at once.

    It is not closed here: a wait still watches its number, which the system would give to the next socket.
    """
    try:
        with socket.socket(fileno=os.dup(connection.pgconn.socket)) as same:
            same.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        pass  # it is closed already


async def _rolled_back(connection: Connection) -> bool:
    """Whether the connection is as new again, found out in a bounded time."""
    limit = asyncio.get_running_loop().call_later(_ROLLBACK_S, sever, connection)
    try:
        if connection.info.transaction_status is not TransactionStatus.IDLE:
            await connection.execute("rollback", prepare=False)
    except psycopg.Error:
        return False
    finally:
        limit.cancel()
    return True


def _quiet(connection: Connection) -> bool:
    """False when the server has said something on an idle connection: that is its end."""
    if connection.closed:
        return False
    watched = select.poll()
    watched.register(connection.pgconn.socket, select.POLLIN | select.POLLHUP | select.POLLERR)
    return not watched.poll(0)
