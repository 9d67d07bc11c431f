"""Carries the replicas' reports into ServingConfig.status: only changes are written, under resourceVersion."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from pydantic import ValidationError

from meridian_api.v1alpha1.servingconfig import ReplicaReport, ServingConfigStatus
from meridian_operator.cluster import Cluster, ClusterError, Conflict, NotFound
from meridian_operator.logs import log
from meridian_operator.serving.acknowledgements import merge
from meridian_operator.serving.replicas import known_replicas

_GATHER_SECONDS = 0.05
"""Reports of one moment go into one write."""
_LEAP = 1_000_000
"""A replica can be ahead of what is stored by what a restored backup lacks, never by this much. The next generation goes above
whatever is believed here, and a number near the end of its range would leave none for a rollback."""
_TRIES = 8
_FORGET_SECONDS = 120.0
"""A replica that is behind no Service and has not polled for so long is forgotten."""
_SWEEP_SECONDS = 60.0


class Reports:
    """Takes reports from the long poll; `run` is the one task that writes them. Every control-plane replica has one."""

    def __init__(
        self, cluster: Cluster, namespace: str, dataplane: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster, self._namespace, self._dataplane, self._clock = cluster, namespace, dataplane, clock
        self._newest: dict[str, dict[str, ReplicaReport]] = {}
        self._unwritten: dict[str, set[str]] = {}
        self._last_heard: dict[tuple[str, str], float] = {}
        self._swept = clock()
        self._wake = asyncio.Event()

    def take(self, service: str, report: ReplicaReport) -> bool:
        """Note a report; whether it says something new. Cheap: what the replica said before is not written again."""
        self._last_heard[service, report.replica] = self._clock()
        known = self._newest.setdefault(service, {})
        if known.get(report.replica) == report:
            return False
        known[report.replica] = report
        self._unwritten.setdefault(service, set()).add(report.replica)
        self._wake.set()
        return True

    def again(self, service: str, replica: str) -> None:
        """Write what this replica said last once more: the object that held it was deleted."""
        if replica in self._newest.get(service, {}):
            self._unwritten.setdefault(service, set()).add(replica)
            self._wake.set()

    async def run(self) -> None:
        """Write until cancelled. A failure keeps the reports for the next round."""
        while True:
            try:
                async with asyncio.timeout(_SWEEP_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(_GATHER_SECONDS)
            self._wake.clear()
            try:
                await self.flush()
            except ClusterError as error:
                log("reports-unwritten", error=type(error).__name__, detail=str(error))
                await asyncio.sleep(1)
                self._wake.set()

    async def flush(self) -> None:
        """Bring status up to what was reported; once a minute also forget who is gone. Raises ClusterError."""
        sweeping = self._clock() - self._swept >= _SWEEP_SECONDS
        for service in list(self._newest) if sweeping else list(self._unwritten):
            await self._write(service, sweeping)
        if sweeping:
            self._swept = self._clock()

    async def _write(self, service: str, sweeping: bool) -> None:
        names = self._unwritten.pop(service, set())
        reports = [self._newest[service][name] for name in sorted(names) if name in self._newest[service]]
        try:
            for attempt in range(_TRIES):
                try:
                    await self._write_once(service, reports, sweeping)
                    return
                except Conflict:
                    await asyncio.sleep(random.uniform(0.01, 0.05) * (attempt + 1))  # noqa: S311 - jitter
            raise Conflict(f"status of {service}: {_TRIES} conflicts in a row")
        except NotFound:  # no ServingConfig yet: each replica reports again with its next poll
            self._newest.pop(service, None)
        except ClusterError:
            self._unwritten.setdefault(service, set()).update(names)
            raise

    async def _write_once(self, service: str, reports: list[ReplicaReport], sweeping: bool) -> None:
        live = await self._cluster.get("ServingConfig", self._namespace, service)
        stored = live.get("status") or {}
        try:
            before = ServingConfigStatus.from_wire(stored, unknown="ignore")
        except ValidationError:
            before = ServingConfigStatus()
        most = int(live["spec"]["generation"]) + _LEAP
        reports = [r for r in reports if r.generation <= most]
        gone = await self._gone(service, before) if sweeping else frozenset()
        lost = self._lost(service, before, most) if sweeping else []
        after = merge(before, [*lost, *reports], gone)
        if after != before:
            status = {**stored, **after.to_wire()}
            await self._cluster.replace_status({**live, "status": status})

    def _lost(self, service: str, status: ServingConfigStatus, most: int) -> list[ReplicaReport]:
        """Reports that were written and are not there any more: etcd was restored, or somebody edited status.

        Only higher ones: a lower one here may be older than what another control-plane replica wrote since.
        """
        stored = {report.replica: report.generation for report in status.replicas}
        return [r for r in self._newest.get(service, {}).values() if most >= r.generation > stored.get(r.replica, 0)]

    async def _gone(self, service: str, status: ServingConfigStatus) -> frozenset[str]:
        """Replicas in status that are behind no Service and were silent here for long; a silence begins when first noticed."""
        present = await known_replicas(self._cluster, self._namespace, self._dataplane)
        now = self._clock()
        absent = {report.replica for report in status.replicas} - present
        gone = {name for name in absent if now - self._last_heard.setdefault((service, name), now) >= _FORGET_SECONDS}
        for name in gone:
            self._newest.get(service, {}).pop(name, None)
            self._last_heard.pop((service, name), None)
        return frozenset(gone)
