"""The stored pointer, looked at ten times a second: what a rollout did to it, and when each replica had it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

import httpx
from live_cluster import LiveCluster, is_ready_pod

EVERY_S = 0.1


@dataclass(frozen=True)
class Look:
    """The ServingConfig at one instant (wall clock)."""

    at: float
    generation: int
    serving: str
    candidate: str
    weight: int
    applied: Mapping[str, int]
    """Generation by replica, as the replicas reported it."""


def look(cluster: LiveCluster, service: str) -> Look:
    found = cluster.get("serving", service)
    spec, status = found["spec"], found.get("status") or {}
    return Look(
        at=time.time(),
        generation=spec["generation"],
        serving=spec["serving"],
        candidate=spec.get("candidate", ""),
        weight=spec.get("candidateWeightPercent", 0),
        applied={r["replica"]: r.get("generation", 0) for r in status.get("replicas", ())},
    )


class ServingWatch:
    """`with ServingWatch(cluster, "support") as watch: ...`; afterwards `watch.looks` holds what was seen, in order."""

    def __init__(self, cluster: LiveCluster, service: str) -> None:
        self._cluster, self._service = cluster, service
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self.looks: list[Look] = []
        self.missed = 0

    def __enter__(self) -> ServingWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(20)

    def weights_of(self, release: str) -> set[int]:
        return {one.weight for one in self.looks if one.candidate == release}

    def generations_of(self, release: str) -> Mapping[int, int]:
        """Weight by generation in which `release` was the candidate."""
        return {one.generation: one.weight for one in self.looks if one.candidate == release}

    def withdrawn(self, release: str) -> Look:
        """The first look after `release` was a candidate in which it had no share any more."""
        was = False
        for one in self.looks:
            if one.candidate == release and one.weight:
                was = True
            elif was:
                return one
        raise AssertionError(f"{release} was never a candidate and then withdrawn: {_tail(self.looks)}")

    def acknowledged(self, generation: int, replicas: set[str]) -> Look:
        """The first look in which each of `replicas` has applied `generation` or a later one."""
        for one in self.looks:
            if replicas and all(one.applied.get(r, 0) >= generation for r in replicas):
                return one
        raise AssertionError(f"{replicas} have not all applied generation {generation}: {_tail(self.looks)}")

    def acknowledged_within(self, generation: int, replicas: set[str], seconds: float) -> Look:
        """The same, waiting for it."""
        self._cluster.until(
            f"every replica to apply generation {generation}",
            lambda: any(all(one.applied.get(r, 0) >= generation for r in replicas) for one in tuple(self.looks)),
            seconds=seconds,
            every=EVERY_S,
            about=(("serving", self._service),),
        )
        return self.acknowledged(generation, replicas)

    def assert_generation_only_grows(self) -> None:
        seen = [one.generation for one in self.looks]
        assert seen == sorted(seen), f"the generation fell: {seen}"

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            try:
                now = look(self._cluster, self._service)
            except (httpx.HTTPError, AssertionError):
                self.missed += 1
                continue
            if not self.looks or (now.generation, now.weight, now.applied) != _what(self.looks[-1]):
                self.looks.append(now)


def ready_replicas(cluster: LiveCluster, deployment: str = "meridian-dataplane") -> set[str]:
    return {p["metadata"]["name"] for p in cluster.pods_of(deployment) if is_ready_pod(p)}


def _what(one: Look) -> tuple[int, int, Mapping[str, int]]:
    return one.generation, one.weight, one.applied


def _tail(looks: list[Look]) -> str:
    return "\n".join(str(one) for one in looks[-8:]) or "nothing was seen"
