"""Everything a request runs on, put together once. The server and the evaluation Job build the same plane."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

from meridian_api.serving import Snapshot
from meridian_dataplane.adapters import embedding
from meridian_dataplane.adapters.http_model import HttpModel, model_client
from meridian_dataplane.adapters.jwks import JwksKeys
from meridian_dataplane.adapters.orders import HttpTools, tools_client
from meridian_dataplane.adapters.postgres import Pool, PostgresRole
from meridian_dataplane.adapters.postgres_documents import PostgresDocuments
from meridian_dataplane.adapters.postgres_index import PostgresIndex
from meridian_dataplane.adapters.postgres_records import PostgresRecords
from meridian_dataplane.adapters.replicas import Replicas
from meridian_dataplane.background import Work, kept_alive
from meridian_dataplane.breaker import Health
from meridian_dataplane.clock import SystemClock
from meridian_dataplane.configuration.live import Live, Source
from meridian_dataplane.configuration.poll import poll, watch_mount
from meridian_dataplane.ports import (
    Clock,
    Documents,
    Index,
    Keys,
    Model,
    Records,
    RoleCheck,
    StoreUnavailable,
    Tools,
    UnsafeRole,
)
from meridian_dataplane.refusals import unavailable
from meridian_dataplane.settings import Settings
from meridian_dataplane.spool import WRITERS, Spool, WatchedSpool
from meridian_dataplane.stages.admit import Admission
from meridian_dataplane.stages.retrieve import RetryBudget
from meridian_dataplane.telemetry import Metrics, log, log_failure

_CHECK_CONNECTIONS = 3
"""Citation checks and documents: short reads that must not stand in line behind searches."""
_OPENING_S = 3.0
"""How long the start waits for connections and a first search; a store that is away is no reason not to start."""
_WRITE_CONNECTIONS = WRITERS + 2
"""One for each writer of the spool, so that none waits for another, and two for feedback."""
_SPOOL_DRAIN_S = 5.0


@dataclass
class Plane:
    """Ports and the little state of one process. `live` holds what it serves by."""

    clock: Clock
    live: Live
    keys: Keys
    index: Index
    documents: Documents
    records: Records
    model: Model
    tools: Tools
    role: RoleCheck
    metrics: Metrics
    admission: Admission
    health: Health
    spool: Spool
    retries: RetryBudget = field(default_factory=RetryBudget)
    retrieval_gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(4))
    """Searches at once; they are the store's heaviest statements."""
    role_checked: bool = False
    """Latched: a store that goes away later does not make every replica unready at once (IV-29)."""
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at SIGTERM: not ready any more, still serving."""
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the end of the grace: streams that still run get their explicit end."""
    failed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when this process must not serve, whatever the probes say."""

    def snapshot(self) -> Snapshot:
        """What serves now. Raises Refusal before anything was accepted."""
        if self.live.snapshot is None:
            raise unavailable("no_configuration", "This replica has no configuration yet.")
        return self.live.snapshot

    def watched(self, whole: Callable[[], None]) -> Plane:
        """The same plane for one request; it calls `whole` in the moment in which the answer is accounted as whole."""
        return replace(self, spool=WatchedSpool(self.spool, whole))

    @property
    def ready(self) -> bool:
        """A verified snapshot, a harmless database role, keys to verify tokens with, and not leaving."""
        keys_ready = getattr(self.keys, "ready", True)
        return bool(self.live.snapshot is not None and self.role_checked and keys_ready and not self.leaving.is_set())


def assemble_plane(
    *,
    clock: Clock,
    live: Live,
    keys: Keys,
    index: Index,
    documents: Documents,
    records: Records,
    model: Model,
    tools: Tools,
    role: RoleCheck,
    metrics: Metrics,
) -> Plane:
    """A plane over any implementation of its ports; tests pass doubles."""
    return Plane(
        clock=clock,
        live=live,
        keys=keys,
        index=index,
        documents=documents,
        records=records,
        model=model,
        tools=tools,
        role=role,
        metrics=metrics,
        admission=Admission(clock, metrics),
        health=Health(clock),
        spool=Spool(records, metrics),
    )


@asynccontextmanager
async def build_plane(settings: Settings, *, poll_configuration: bool = True) -> AsyncIterator[Plane]:
    """The real plane with its background work, until the context ends; then rows still pending are written.

    With `poll_configuration` false it serves by what is stored or mounted now, which is what the evaluation Job wants.
    """
    clock, metrics = SystemClock(), Metrics()
    source = Source(
        service=settings.service,
        region=settings.region,
        state_dir=settings.state_dir,
        mount=settings.config_mount,
        keys_dir=settings.public_keys_dir,
        url=settings.config_url,
        token_file=settings.config_token_file,
    )
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(model_client())
        tools = await stack.enter_async_context(tools_client())
        searches = Pool(settings.database_dsn, permits=settings.retrieval_permits, name="searches")
        checks = Pool(settings.database_dsn, permits=_CHECK_CONNECTIONS, name="checks")
        writes = Pool(settings.database_dsn, permits=_WRITE_CONNECTIONS, name="records")
        for connections in (searches, checks, writes):
            stack.push_async_callback(connections.close)
        await asyncio.gather(*(one.open(_OPENING_S) for one in (searches, checks, writes)))
        live = Live(source, clock, metrics)
        keys = JwksKeys(settings.issuers, tools, settings.state_dir, metrics)
        plane = assemble_plane(
            clock=clock,
            live=live,
            keys=keys,
            index=PostgresIndex(searches),
            documents=PostgresDocuments(checks),
            records=PostgresRecords(writes),
            model=HttpModel(models, Replicas(clock), clock),
            tools=HttpTools(tools, settings.endpoints, settings.orders_token_file),
            role=PostgresRole(checks),
            metrics=metrics,
        )
        plane.retrieval_gate = asyncio.Semaphore(settings.retrieval_permits)
        await keys.load()
        await live.start()
        # Loading the embedding model takes longer than a retrieval may; no request shall pay for it.
        await embedding.embed_question("warm up")
        await _searched_once(plane, settings.retrieval_permits)
        work: list[Work] = [
            plane.spool.run,
            keys.run,
            lambda: check_role(plane),
        ]
        if poll_configuration:
            if settings.config_url is not None:
                work.append(lambda: poll(live, source, settings.replica, tools))
            work.append(lambda: watch_mount(live, is_contact=settings.config_url is None))
        tasks = [asyncio.create_task(kept_alive(one)) for one in work]
        try:
            yield plane
        finally:
            await plane.spool.drained(_SPOOL_DRAIN_S)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _searched_once(plane: Plane, permits: int) -> None:
    """A search on every connection: a backend's first one reads the catalogue of each partition, which no request shall pay for."""
    snapshot = plane.live.snapshot
    if snapshot is None or not snapshot.tenants:
        return
    index = snapshot.serving.index

    async def search() -> None:
        await plane.index.retrieve(
            tenant=snapshot.tenants[0].tenant_id,
            groups=(),
            epoch=index.epoch,
            embedding=index.embedding.ident,
            question="warm up",
            candidates=1,
            limit=1,
            rerank=False,
            timeout_s=_OPENING_S,
        )

    # Failures are for the requests to say: the store may be away, the epoch may come later.
    await asyncio.gather(*(search() for _ in range(permits)), return_exceptions=True)


async def check_role(plane: Plane) -> None:
    """Asks until the store answers. An unsafe role ends the process: row-level security would not hold (T-26)."""
    while True:
        try:
            await plane.role.check()
        except StoreUnavailable as away:
            log_failure("role_not_checked", away)
            await asyncio.sleep(1.0)
        except UnsafeRole as unsafe:
            log("role_unsafe", reason=type(unsafe).__name__)
            plane.failed.set()
            return
        else:
            plane.role_checked = True
            return
