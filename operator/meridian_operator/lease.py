"""Leadership by a Lease whose `leaseTransitions` is a fencing epoch: +1 at every acquisition, written into every ServingConfig.

The Lease alone protects nothing: a stopped process may wake up believing that it leads. It finds out here, by its own monotonic
clock, before each write; and what still gets out is refused by the API server, since a ServingConfig's lease epoch only grows.
An epoch therefore begins above every one that was ever written, whatever became of the Lease.
No clock of another host is compared: a Lease has expired when it stayed unchanged for its duration on the reader's own (K-08).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from meridian_operator import metrics
from meridian_operator.cluster import AlreadyExists, Cluster, ClusterError, Conflict, Manifest, NotFound
from meridian_operator.converge import Deposed
from meridian_operator.logs import log

_ABSENT = ""


@dataclass(frozen=True)
class Terms:
    """Seconds. A holder trusts its Lease for less than others wait, by one renewal."""

    namespace: str
    name: str
    holder: str
    duration: float = 12.0
    renew: float = 2.0

    @property
    def trusted(self) -> float:
        """How long after the start of its last successful renewal a holder may write."""
        return self.duration - self.renew


class Lease:
    """This process's claim. `fence()` is what writers call."""

    def __init__(self, cluster: Cluster, terms: Terms, monotonic: Callable[[], float]) -> None:
        self._cluster, self._terms, self._monotonic = cluster, terms, monotonic
        self._epoch = 0
        self._confirmed: float | None = None
        self._seen: tuple[str, float] | None = None
        """resourceVersion of another holder's Lease (`_ABSENT`: it was deleted), and when it was first seen."""

    def fence(self) -> int:
        """The epoch held. Raises Deposed when the last renewal is too long ago to be trusted (SIGSTOP, lost network)."""
        if self._confirmed is None or self._monotonic() - self._confirmed > self._terms.trusted:
            raise Deposed("the Lease is not held")
        return self._epoch

    async def acquire(self) -> int:
        """Wait until the Lease is ours; answers the epoch."""
        while True:
            try:
                if await self._try_to_take():
                    log("leading", holder=self._terms.holder, epoch=self._epoch)
                    metrics.leading.set(1)
                    metrics.lease_epoch.set(self._epoch)
                    return self._epoch
            except ClusterError as error:
                log("lease-unreadable", error=type(error).__name__, detail=str(error))
            await asyncio.sleep(self._terms.renew)

    async def keep(self) -> None:
        """Renew until it is lost; returns then. Losing is: somebody else's name on it, or no renewal in the trusted time."""
        while True:
            await asyncio.sleep(self._terms.renew)
            try:
                self.fence()  # a process that slept too long must not renew what it may have lost
                started = self._monotonic()
                live = await self._cluster.get("Lease", self._terms.namespace, self._terms.name)
                if not self._is_mine(live):
                    break
                await self._cluster.replace(self._written(live, self._epoch))
                self._confirmed = started
            except Deposed:
                break
            except (Conflict, NotFound):
                continue  # looked at again next time; the trusted time runs
            except ClusterError as error:
                log("lease-not-renewed", error=type(error).__name__, detail=str(error))
        self._confirmed = None
        metrics.leading.set(0)
        log("deposed", holder=self._terms.holder, epoch=self._epoch)

    async def release(self) -> None:
        """Give the Lease up at a clean exit, so that the next replica need not wait; failing to is harmless."""
        if self._confirmed is None:
            return
        self._confirmed = None
        try:
            live = await self._cluster.get("Lease", self._terms.namespace, self._terms.name)
            if self._is_mine(live):
                live["spec"]["holderIdentity"] = ""
                await self._cluster.replace(live)
        except ClusterError:
            pass

    async def _try_to_take(self) -> bool:
        started = self._monotonic()
        try:
            live = await self._cluster.get("Lease", self._terms.namespace, self._terms.name)
        except NotFound:
            live = None
        written = await self._written_epoch()
        if live is None:
            if written and not self._unchanged(_ABSENT, started):
                return (
                    False  # deleted: its holder may trust it yet, and write under an epoch that was never written here
                )
            fresh: Manifest = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"namespace": self._terms.namespace, "name": self._terms.name},
            }
            try:
                await self._cluster.create(self._written(fresh, written + 1))
            except AlreadyExists:
                return False
            self._epoch, self._confirmed = written + 1, started
            return True
        if live["spec"].get("holderIdentity") and not self._unchanged(live["metadata"]["resourceVersion"], started):
            return False
        epoch = max(written, int(live["spec"].get("leaseTransitions") or 0)) + 1
        try:
            await self._cluster.replace(self._written(live, epoch))
        except (Conflict, NotFound):
            return False
        self._epoch, self._confirmed = epoch, started
        return True

    async def _written_epoch(self) -> int:
        """The highest lease epoch in any ServingConfig. A Lease that was deleted or restored from an older backup would begin
        below it, and the API server would then refuse every switch, rollbacks too. Raises ClusterError.
        """
        configs = await self._cluster.list("ServingConfig", self._terms.namespace)
        return max((int((c.get("spec") or {}).get("leaseEpoch") or 0) for c in configs), default=0)

    def _unchanged(self, version: str, now: float) -> bool:
        """Whether the Lease has been at `version` for its duration, by this process's clock."""
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, now)
        return now - self._seen[1] >= self._terms.duration

    def _is_mine(self, live: Manifest) -> bool:
        spec = live["spec"]
        return spec.get("holderIdentity") == self._terms.holder and spec.get("leaseTransitions") == self._epoch

    def _written(self, live: Manifest, epoch: int) -> Manifest:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # for people; nothing compares it
        spec = {
            **(live.get("spec") or {}),
            "holderIdentity": self._terms.holder,
            "leaseDurationSeconds": max(1, round(self._terms.duration)),
            "leaseTransitions": epoch,
            "renewTime": now,
        }
        if epoch != self._epoch:
            spec["acquireTime"] = now
        return {**live, "spec": spec}
