"""A request that is cancelled never takes a connection with it: the pool is as large afterwards as before (T-31)."""

from __future__ import annotations

import asyncio

import pytest

from meridian_cluster.postgres_roles import Dsns
from meridian_dataplane.adapters.postgres import Pool, tenant_transaction

pytestmark = pytest.mark.timeout(60)
PERMITS = 2


def test_a_connection_whose_return_is_cancelled_is_not_lost(store: Dsns) -> None:
    """A library's pool returned one only once it had its lock, and a deadline that ended just then cost one for good."""

    async def run() -> None:
        connections = Pool(store.app, permits=PERMITS)
        await connections.open(3.0)
        try:
            for _ in range(PERMITS):
                await _cancel_while_returning(connections)
            await asyncio.gather(*(_use(connections) for _ in range(PERMITS)))
        finally:
            await connections.close()

    asyncio.run(run())


def test_cancelled_at_any_moment_no_connection_is_lost(store: Dsns) -> None:
    """As a burst of deadlines does it."""

    async def impatient(connections: Pool, patience: float) -> None:
        try:
            async with asyncio.timeout(patience):
                await _use(connections)
        except TimeoutError:
            pass

    async def run() -> None:
        connections = Pool(store.app, permits=PERMITS)
        await connections.open(3.0)
        try:
            for turn in range(20):
                await asyncio.gather(*(impatient(connections, 0.0005 * (turn + n)) for n in range(12)))
            await asyncio.gather(*(_use(connections, 5.0) for _ in range(PERMITS)))
        finally:
            await connections.close()

    asyncio.run(run())


async def _cancel_while_returning(connections: Pool) -> None:
    inside, leave = asyncio.Event(), asyncio.Event()

    async def user() -> None:
        async with tenant_transaction(connections, "a", 2.0):
            inside.set()
            await leave.wait()

    task = asyncio.create_task(user())
    await inside.wait()
    leave.set()
    await asyncio.sleep(0)  # it is on its way out now
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _use(connections: Pool, timeout_s: float = 2.0) -> None:
    async with tenant_transaction(connections, "a", timeout_s) as connection:
        await connection.execute("select pg_sleep(0.005)")
