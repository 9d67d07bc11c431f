"""Kopf as plumbing: login, discovery and watches. A handler passes an object on as a wake-up and does nothing else.

Why so little: cases K-01 to K-05. A watch here may die, lie or be silent; the list of `leading.resync` is what counts.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import kopf

from meridian_operator.cluster import RESOURCES, Manifest
from meridian_operator.kube import credentials

LOGIN_MINUTES = 10
"""Tokens rotate hourly; within this time a new one is in use."""


class EndlessBackoffs:
    """Jittered pauses in seconds, up to about 15, without end: a watcher never gives up (nolar/kopf#1276). Iterable again."""

    def __iter__(self) -> Iterator[float]:
        pause = 1.0
        while True:
            yield pause * random.uniform(0.7, 1.0)  # noqa: S311 - spreads load, guards nothing
            pause = min(pause * 1.6, 15.0)


def settings() -> kopf.OperatorSettings:
    """The table of cases/operator-and-kopf, value by value."""
    s = kopf.OperatorSettings()
    s.networking.error_backoffs = EndlessBackoffs()
    s.networking.request_timeout = 10
    s.networking.connect_timeout = 3
    s.networking.enforce_retry_after = True
    s.watching.server_timeout = 240
    s.watching.client_timeout = 270
    s.watching.connect_timeout = 5
    s.watching.inactivity_timeout = 70
    s.watching.chunk_size = None
    s.queueing.worker_limit = None
    s.queueing.error_delays = (1, 1, 2, 5, 10)
    s.execution.default_backoff = 2
    s.peering.standalone = True
    s.scanning.disabled = True
    s.posting.enabled = False
    s.persistence.finalizer = "meridian.dev/kopf"
    s.persistence.progress_storage = kopf.StatusProgressStorage(field="status.kopf.progress")
    s.persistence.diffbase_storage = kopf.StatusDiffBaseStorage(field="status.kopf.last")
    s.process.ultimate_exiting_timeout = 20
    return s


def registry(
    kinds: Iterable[str], namespace: str, kubeconfig: str, wake: Callable[[Manifest], None]
) -> kopf.OperatorRegistry:
    """Handlers for `kinds`, which discovery must know: kopf watches nothing that appears later."""
    handlers = kopf.OperatorRegistry()

    async def login(**_: Any) -> kopf.ConnectionInfo:
        found = await credentials(kubeconfig)
        return kopf.ConnectionInfo(
            server=found.server,
            ca_path=found.ca_path,
            ca_data=found.ca_data,
            token=found.token,
            certificate_path=found.certificate_path,
            private_key_path=found.private_key_path,
            default_namespace=namespace,
            expiration=datetime.now(UTC) + timedelta(minutes=LOGIN_MINUTES),
        )

    async def forward(body: Any, **_: Any) -> None:
        wake({"kind": body["kind"], "metadata": dict(body["metadata"])})

    kopf.on.login(registry=handlers, id="login")(login)
    for kind in kinds:
        resource = RESOURCES[kind]
        group, _, version = resource.api_version.rpartition("/")
        kopf.on.event(group, version, resource.plural, registry=handlers, id=f"wake-{resource.plural}")(forward)
    return handlers


async def watch(handlers: kopf.OperatorRegistry, namespace: str, stop: threading.Event) -> None:
    """Run until `stop`. Returning or raising before that means that kopf gave up: the process must exit then.

    For a thread and loop of its own: at its end kopf cancels every task of its loop, whoever's it is.
    """
    await kopf.operator(registry=handlers, settings=settings(), namespaces=[namespace], standalone=True, stop_flag=stop)
