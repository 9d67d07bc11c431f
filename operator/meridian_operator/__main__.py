"""Wiring: settings, clients, the HTTP server on every replica, and the work on the one that leads."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from datetime import UTC, datetime

from meridian_operator import handlers, kube, probes
from meridian_operator.cluster import ClusterError, Manifest
from meridian_operator.converge import World
from meridian_operator.kinds import KINDS
from meridian_operator.leading import Leading
from meridian_operator.lease import Lease, Terms
from meridian_operator.logs import capture_libraries, log
from meridian_operator.serving.distribute import distributor, notify
from meridian_operator.settings import BadSettings, Settings, from_environment
from meridian_operator.store.postgres import Postgres
from meridian_operator.waking import OWNED


async def run(settings: Settings) -> int:
    """Until a signal (0) or until leadership, the watcher or the list is lost (1: the kubelet starts a fresh process)."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    cluster = await kube.connect(settings.kubeconfig)
    store = Postgres(settings.owner_dsn, settings.evidence_dsn)
    await store.open()
    terms = Terms(
        settings.namespace, settings.lease_name, settings.replica, settings.lease_seconds, settings.renew_seconds
    )
    lease = Lease(cluster, terms, time.monotonic)
    world = World(cluster, store, settings, lambda: datetime.now(UTC), lease.fence)
    leading = Leading(world, KINDS, time.monotonic, store.migrate)
    distribution = distributor(world, cluster)
    connected = asyncio.Event()
    app = probes.application(lambda: _age(leading), connected.is_set, settings.resync_seconds, distribution.routes())
    runner = await probes.serve(app, settings.port)
    log("started", port=settings.port, replica=settings.replica)
    stop_watching = threading.Event()
    tasks = [
        asyncio.create_task(stop.wait(), name="signal"),
        asyncio.create_task(distribution.run(), name="distribution"),
        asyncio.create_task(_watch(settings, cluster, leading, connected, stop_watching), name="watch"),
        asyncio.create_task(_lead(leading, lease, connected), name="lead"),
    ]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            error = None if task.cancelled() else task.exception()
            log("ending", kind=task.get_name(), error=type(error).__name__ if error else None, detail=str(error or ""))
    finally:
        stop_watching.set()
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks[3:], return_exceptions=True)  # the leader's: it gives the Lease up
        await runner.cleanup()
        await store.close()
        await cluster.close()
    return 0 if stop.is_set() else 1


async def _lead(leading: Leading, lease: Lease, connected: asyncio.Event) -> None:
    await connected.wait()
    await leading.lead(lease)


async def _watch(
    settings: Settings, cluster: kube.Kube, leading: Leading, connected: asyncio.Event, stop: threading.Event
) -> None:
    """Wait for the API server and our CRDs, then watch what it serves; returns when kopf gave up."""
    kinds = await _served(cluster)
    connected.set()
    loop = asyncio.get_running_loop()

    def wake(changed: Manifest) -> None:
        loop.call_soon_threadsafe(leading.wake, changed)
        if changed["kind"] == "ServingConfig":
            loop.call_soon_threadsafe(notify, changed["metadata"]["name"])

    registry = handlers.registry(kinds, settings.namespace, settings.kubeconfig, wake)
    ended = asyncio.Event()
    failure: list[BaseException] = []

    def run_kopf() -> None:
        try:
            asyncio.run(handlers.watch(registry, settings.namespace, stop))
        except BaseException as error:  # noqa: BLE001 - reported below; the thread has nobody else to tell
            failure.append(error)
        finally:
            if not loop.is_closed():
                loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=run_kopf, name="kopf", daemon=True).start()  # daemon: never in the way of an exit
    await ended.wait()
    raise RuntimeError(f"the watcher ended: {failure[0] if failure else 'without an error'}")


async def _served(cluster: kube.Kube) -> list[str]:
    """Kinds to watch. KServe's may be absent; ours must be there, and are waited for."""
    while True:
        try:
            if missing := [kind for kind in KINDS if not await cluster.serves(kind)]:
                log("crds-missing", detail=", ".join(missing))
            else:
                return [kind for kind in (*KINDS, *OWNED) if await cluster.serves(kind)]
        except ClusterError as error:
            log("api-server-silent", error=type(error).__name__, detail=str(error))
        await asyncio.sleep(2.0)


def _age(leading: Leading) -> float | None:
    return None if leading.last_resync is None else time.monotonic() - leading.last_resync


def main() -> int:
    """The process's exit code."""
    capture_libraries()
    try:
        settings = from_environment(os.environ)
    except BadSettings as wrong:
        log("bad-settings", detail=str(wrong))
        return 2
    return asyncio.run(run(settings))


if __name__ == "__main__":
    sys.exit(main())
