"""Rows reach the real store after every way in which connections can wedge; none is lost, none waits long afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

import psycopg
import pytest
from dataplane_world import World, a_world, bearer, citing

from meridian_cluster.postgres_roles import Dsns
from meridian_dataplane.adapters.postgres import Pool
from meridian_dataplane.adapters.postgres_records import PostgresRecords
from meridian_dataplane.calls import RequestRecord
from meridian_dataplane.ports import StoreUnavailable
from meridian_dataplane.spool import WRITERS, Spool
from meridian_dataplane.telemetry import Metrics

pytestmark = pytest.mark.timeout(60)
RESUMES_S = 5.0
ROWS = 60


@pytest.fixture(scope="module", autouse=True)
def partitions(make_epoch: Callable[[str, str], None]) -> None:
    for tenant in ("a", "acme-eu"):
        make_epoch(tenant, "e1")


def a_record(request_id: str) -> RequestRecord:
    return RequestRecord(
        request_id=request_id, tenant_id="a", subject="u1", traceparent="00-1-1-01", conversation_hash=None, service="support",
        created_time=datetime.now(UTC), region="eu-1", generation=3, release="r1", arm="serving", canary_eligible=True,
        app_version="1", prompt="p1", model=None, model_region=None, epoch="e1", embedding="w@1", tools={}, tool_outcome=None,
        input_tokens=1, output_tokens=1, cached_input_tokens=0, usage_estimated=False, cost_usd=0.0, ttft_ms=1.0, total_ms=1.0,
        stage_ms={}, retrieved=(), cited=(), citations_valid=0, citations_invalid=0, uncited_claims=False, abstained=False,
        degraded="full", state="terminal", outcome="answered", error_code=None, stale_config=False,
    )  # fmt: skip


class Proxy:
    """Stands between the spool and the store, and can freeze: connections stay open, nothing passes."""

    def __init__(self, host: str, port: int) -> None:
        self._to, self._flows, self._tasks = (host, port), asyncio.Event(), set()
        self._flows.set()
        self.port = 0

    def freeze(self) -> None:
        self._flows.clear()

    def thaw(self) -> None:
        self._flows.set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())
        with suppress(OSError, asyncio.CancelledError):
            await self._flows.wait()
            there, back = await asyncio.open_connection(*self._to)
            await asyncio.gather(self._pass(reader, back), self._pass(there, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


def through(dsn: str, port: int) -> str:
    """`dsn` by way of the proxy at `port`."""
    return psycopg.conninfo.make_conninfo(dsn, host="127.0.0.1", hostaddr="127.0.0.1", port=port)


@asynccontextmanager
async def spooling(dsn: str) -> AsyncIterator[tuple[Spool, Metrics]]:
    pool, metrics = Pool(dsn, permits=WRITERS, name="records"), Metrics()
    await pool.open(3.0)
    spool = Spool(PostgresRecords(pool), metrics)
    running = asyncio.create_task(spool.run())
    try:
        yield spool, metrics
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await pool.close()


def lost(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("meridian_records_lost_total") or 0.0


def stored(store: Dsns, prefix: str) -> int:
    with psycopg.connect(store.evidence) as connection:
        found = connection.execute(
            "select count(*) from meridian.request_records where starts_with(request_id, %s)", [prefix]
        ).fetchone()
    return found[0] if found else 0


async def feed(spool: Spool, prefix: str, seconds: float) -> None:
    """ROWS records, spread over the fault."""
    for number in range(ROWS):
        spool.record(a_record(f"{prefix}-{number}"))
        await asyncio.sleep(seconds / ROWS)


async def all_written(spool: Spool, store: Dsns, metrics: Metrics, prefix: str) -> None:
    began = time.monotonic()
    assert await spool.drained(RESUMES_S), f"{spool.pending} rows still wait"
    assert time.monotonic() - began < RESUMES_S
    assert (await asyncio.to_thread(stored, store, prefix), lost(metrics)) == (ROWS, 0.0)


async def test_writing_goes_on_after_a_lock_that_was_held_for_long(store: Dsns) -> None:
    async with spooling(store.app) as (spool, metrics):
        blocker = await asyncio.to_thread(psycopg.connect, store.owner)
        with blocker:
            await asyncio.to_thread(blocker.execute, "lock table meridian.request_records in access exclusive mode")
            await feed(spool, "lock", 6.0)
            assert spool.pending == ROWS
        await all_written(spool, store, metrics, "lock")


async def test_writing_goes_on_after_backends_were_terminated(store: Dsns, postgres_server: Dsns) -> None:
    """Again and again while rows come, in the middle of statements and when idle."""
    end = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'meridian-records'"
    async with spooling(store.app) as (spool, metrics):
        feeding = asyncio.create_task(feed(spool, "terminated", 2.0))
        while not feeding.done():
            # The role's own backends: no superuser is needed to end them.
            with psycopg.connect(store.app, autocommit=True) as connection:
                connection.execute(end)
            await asyncio.sleep(0.05)
        await all_written(spool, store, metrics, "terminated")


async def test_writing_goes_on_after_the_network_froze(store: Dsns) -> None:
    """No reset, no end, no answer: only the client's own limit can help."""
    at = psycopg.conninfo.conninfo_to_dict(store.app)
    async with (
        Proxy(str(at["host"]), int(str(at["port"]))) as proxy,
        spooling(through(store.app, proxy.port)) as (spool, metrics),
    ):
        proxy.freeze()
        await feed(spool, "frozen", 8.0)
        assert spool.pending == ROWS
        proxy.thaw()
        await all_written(spool, store, metrics, "frozen")


async def test_no_turn_is_lost_when_bodies_are_cancelled_by_the_thousand(store: Dsns) -> None:
    """Cancelled while waiting, connecting, working, cancelling, committing: as many turns as before."""
    pool = Pool(store.app, permits=2, name="turns")

    async def body() -> None:
        with suppress(StoreUnavailable):
            async with pool.connection(0.5) as connection:
                await connection.execute("select pg_sleep(0.005)")

    for round_ in range(150):
        bodies = [asyncio.create_task(body()) for _ in range(6)]
        await asyncio.sleep(round_ % 30 / 1000)
        for one in bodies:
            one.cancel()
            one.cancel()
        await asyncio.gather(*bodies, return_exceptions=True)
    began = time.monotonic()
    async with pool.connection(2.0) as one, pool.connection(2.0) as two:
        assert one is not two
        await one.execute("select 1")
        await two.execute("select 1")
    assert time.monotonic() - began < 1
    await pool.close()


async def test_a_connection_that_never_answers_ends_with_its_body(store: Dsns) -> None:
    """Also when the body is cancelled, which makes psycopg wait for the server once more."""
    at = psycopg.conninfo.conninfo_to_dict(store.app)
    async with Proxy(str(at["host"]), int(str(at["port"]))) as proxy:
        pool = Pool(through(store.app, proxy.port), permits=1)
        await pool.open(3.0)
        proxy.freeze()
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            async with pool.connection(0.3) as connection:
                await connection.execute("select 1")
        assert time.monotonic() - began < 1
        proxy.thaw()
        async with pool.connection(2.0) as connection:
            await connection.execute("select 1")
        await pool.close()


@asynccontextmanager
async def a_replica(dsn: str) -> AsyncIterator[World]:
    """A plane of doubles whose records are real, its spool running."""
    pool = Pool(dsn, permits=WRITERS + 2, name="records")
    await pool.open(3.0)
    world = a_world(records=PostgresRecords(pool))
    running = asyncio.create_task(world.plane.spool.run())
    await asyncio.sleep(0)
    try:
        yield world
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await pool.close()


async def answered_by(world: World) -> tuple[str, float]:
    """(request id, seconds until the end of the stream)."""
    began = time.monotonic()
    async with world.client() as client:
        response = await client.post("/v1/answers", json={"question": "How long do refunds take?"}, headers=bearer())
    assert "event: done" in response.text
    return response.headers["x-request-id"], time.monotonic() - began


async def test_feedback_at_another_replica_right_after_done_is_taken(store: Dsns, monkeypatch) -> None:
    """S-37: the record is in the store before `done` is sent; no second look is needed."""
    monkeypatch.setattr("meridian_dataplane.routes._RECORD_LAG_S", 30.0)
    async with a_replica(store.app) as one, a_replica(store.app) as other, other.client() as client:
        for _ in range(20):
            request_id, _ = await answered_by(one)
            given = {"requestId": request_id, "outcome": "resolved"}
            assert (await client.post("/v1/feedback", json=given, headers=bearer())).status_code == 202


async def test_a_store_that_does_not_answer_holds_done_back_once_and_for_a_moment(store: Dsns) -> None:
    """F-22: the record waits in memory as ever."""
    async with a_replica(store.app) as world:
        await answered_by(world)
        blocker = await asyncio.to_thread(psycopg.connect, store.owner)
        with blocker:
            await asyncio.to_thread(blocker.execute, "lock table meridian.request_records in access exclusive mode")
            _, seconds = await answered_by(world)
            assert 0.1 < seconds < 0.6
            await asyncio.sleep(2.5)  # the write has failed by now
            _, seconds = await answered_by(world)
            assert seconds < 0.13
        assert await world.plane.spool.drained(RESUMES_S)


async def test_a_client_that_leaves_leaves_a_record(store: Dsns) -> None:
    """H-01."""
    async with a_replica(store.app) as world:
        world.model.script = lambda call: [*citing(call)[:2], 30.0]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await world.ask(request_id="c" * 32)
        assert await world.plane.spool.drained(RESUMES_S)
    with psycopg.connect(store.evidence) as connection:
        found = connection.execute(
            "select stream_state from meridian.request_records where request_id = %s", ["c" * 32]
        ).fetchall()
    assert found == [("cancelled",)]
