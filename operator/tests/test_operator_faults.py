"""Each write of a scenario, lost or done without an answer, with a restart on what is left: the same end (K-17)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from operator_world import EPOCH, NAMESPACE, Place, key
from serving_world import release_wire

from meridian_api.digest import configmap_digest
from meridian_operator.cluster import ClusterError, Key, Unreachable
from meridian_operator.converge import Kind, StoreError, converge
from meridian_operator.indexepoch import decide as epoch_decide
from meridian_operator.indexepoch import observe as epoch_observe
from meridian_operator.inferencepool import decide as pool_decide
from meridian_operator.inferencepool import observe as pool_observe
from meridian_operator.memory_cluster import MemoryCluster
from meridian_operator.tenantpolicy import decide as tenant_decide
from meridian_operator.tenantpolicy import observe as tenant_observe

KINDS: dict[str, Kind[Any]] = {
    "TenantPolicy": Kind("TenantPolicy", tenant_observe.observe, tenant_decide.decide),
    "IndexEpoch": Kind("IndexEpoch", epoch_observe.observe, epoch_decide.decide),
    "InferencePool": Kind("InferencePool", pool_observe.observe, pool_decide.decide),
}
KEYS = (key("TenantPolicy", "acme"), key("IndexEpoch", "epoch-1"), key("InferencePool", "qwen"))
DOCS = {"documents.jsonl": "{}\n"}


class Flaky(MemoryCluster):
    """Write number `at` fails: before it has an effect, or after."""

    def __init__(self, at: int, *, done: bool) -> None:
        super().__init__()
        self.at, self.done, self.count = at, done, 0

    async def _write(self, call: Callable[[], Any]) -> Any:
        self.count += 1
        if self.count != self.at:
            return await call()
        if self.done:
            await call()
        raise Unreachable("the reply was lost")

    async def apply(self, manifest: Any) -> Any:
        return await self._write(lambda: MemoryCluster.apply(self, manifest))

    async def create(self, manifest: Any) -> Any:
        return await self._write(lambda: MemoryCluster.create(self, manifest))

    async def replace_status(self, manifest: Any) -> Any:
        return await self._write(lambda: MemoryCluster.replace_status(self, manifest))

    async def delete(self, ref: Any) -> None:
        await self._write(lambda: MemoryCluster.delete(self, ref))


def installation(cluster: MemoryCluster) -> Place:
    place = Place()
    place.cluster = cluster
    place.tenant("acme")
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "docs", "namespace": NAMESPACE}, "data": DOCS}
    cluster.put(body)
    source = {"name": "docs", "tenant": "acme", "configMap": {"name": "docs", "digest": configmap_digest(DOCS)}}
    place.put("IndexEpoch", "epoch-1", {**EPOCH, "sources": [source]})
    place.pool()
    place.put("Release", "r1", release_wire(), status={"phase": "Canary"})
    return place


async def settle(place: Place, keys: tuple[Key, ...] = KEYS, rounds: int = 6) -> None:
    for _ in range(rounds):
        for at in keys:
            try:
                await converge(at, KINDS[at.kind], place.world)
            except (ClusterError, StoreError):
                continue  # the queue tries again


def end(place: Place) -> dict[Any, Any]:
    """What is left, without what only says when and in which order."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if k not in ("uid", "resourceVersion", "creationTimestamp")}
        if isinstance(value, list):
            return [plain(v) for v in value]
        return "" if isinstance(value, str) and "uid-" in value else value

    kinds = ("TenantPolicy", "IndexEpoch", "InferencePool", "Deployment", "Service", "Job")
    return {i: plain(o) for i, o in place.cluster.objects.items() if i[0] in kinds}


async def without_fault() -> tuple[dict[Any, Any], int]:
    cluster = Flaky(0, done=False)
    place = installation(cluster)
    await settle(place)
    return end(place), cluster.count


WRITES = asyncio.run(without_fault())[1]


@pytest.mark.parametrize("done", [False, True], ids=["not-sent", "reply-lost"])
@pytest.mark.parametrize("at", range(1, WRITES + 1))
async def test_a_lost_write_changes_nothing_in_the_end(at: int, done: bool) -> None:
    expected, _ = await without_fault()
    place = installation(Flaky(at, done=done))
    await settle(place)
    assert end(place) == expected


async def test_the_order_of_passes_does_not_matter() -> None:
    """Levels, not edges: the end depends on spec and world (K-19)."""
    expected, _ = await without_fault()
    place = installation(MemoryCluster())
    await settle(place, KEYS[::-1], rounds=8)
    assert end(place) == expected


async def test_a_settled_installation_sends_no_write() -> None:
    """K-27."""
    cluster = Flaky(0, done=False)
    place = installation(cluster)
    await settle(place)
    before = list(cluster.writes)
    place.pass_time(3600)
    await settle(place)
    assert cluster.writes == before
