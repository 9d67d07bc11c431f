"""Leadership: one at a time, an epoch that only grows, and nothing that rests on two hosts' clocks."""

from __future__ import annotations

import asyncio

import pytest

from meridian_operator.cluster import Unreachable
from meridian_operator.converge import Deposed
from meridian_operator.lease import Lease, Terms
from meridian_operator.memory_cluster import MemoryCluster

pytestmark = pytest.mark.looptime
NS = "meridian"


def terms(holder: str) -> Terms:
    return Terms(NS, "meridian-operator", holder, duration=8, renew=2)


def lease(cluster: MemoryCluster, holder: str, skew: float = 0) -> Lease:
    return Lease(cluster, terms(holder), lambda: asyncio.get_running_loop().time() + skew)


def stored(cluster: MemoryCluster) -> dict[str, object]:
    spec: dict[str, object] = cluster.objects["Lease", NS, "meridian-operator"]["spec"]
    return spec


async def test_the_epoch_grows_with_every_acquisition() -> None:
    cluster = MemoryCluster()
    first, second = lease(cluster, "a"), lease(cluster, "b")
    assert await first.acquire() == 1
    await first.release()
    assert await second.acquire() == 2
    await second.release()
    assert await lease(cluster, "a").acquire() == 3


async def test_a_held_lease_is_not_taken_while_it_is_renewed() -> None:
    cluster = MemoryCluster()
    first = lease(cluster, "a")
    await first.acquire()
    keeping = asyncio.create_task(first.keep())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(lease(cluster, "b").acquire(), timeout=100)
    assert first.fence() == 1
    keeping.cancel()


async def test_a_lease_that_nobody_renews_is_taken_after_its_duration_by_the_readers_clock() -> None:
    """K-08: the two clocks differ by 90 s, and renewTime by more: neither matters."""
    cluster = MemoryCluster()
    await lease(cluster, "a", skew=90).acquire()
    stored(cluster)["renewTime"] = "2039-01-01T00:00:00.000000Z"
    loop = asyncio.get_running_loop()
    began = loop.time()
    second = lease(cluster, "b", skew=-1000)
    assert await second.acquire() == 2
    assert 8 <= loop.time() - began <= 12


async def test_a_stopped_leader_may_write_nothing_when_it_wakes() -> None:
    """K-06: SIGSTOP for 90 s; by its own monotonic clock it knows before its first write."""
    cluster = MemoryCluster()
    first = lease(cluster, "a")
    await first.acquire()
    await asyncio.sleep(90)
    with pytest.raises(Deposed):
        first.fence()
    await asyncio.wait_for(first.keep(), timeout=10)  # returns: the process exits
    assert stored(cluster)["holderIdentity"] == "a", "it did not renew what it may have lost"


async def test_a_holder_stops_trusting_before_anybody_else_starts() -> None:
    """K-07: whatever the moment, never two fences are open."""
    cluster = MemoryCluster()
    first, second = lease(cluster, "a"), lease(cluster, "b")
    await first.acquire()
    taking = asyncio.create_task(second.acquire())
    while not taking.done():
        await asyncio.sleep(0.1)
    assert second.fence() == 2
    with pytest.raises(Deposed):
        first.fence()


async def test_a_leader_without_its_api_server_gives_up_in_time() -> None:
    cluster = MemoryCluster()
    first = lease(cluster, "a")
    await first.acquire()
    cluster.fail = lambda verb, kind, name: Unreachable("503")
    began = asyncio.get_running_loop().time()
    await first.keep()
    assert asyncio.get_running_loop().time() - began <= 10
    with pytest.raises(Deposed):
        first.fence()


async def test_one_failed_renewal_is_survived() -> None:
    cluster = MemoryCluster()
    first = lease(cluster, "a")
    await first.acquire()
    failing = iter([Unreachable("503")])
    cluster.fail = lambda verb, kind, name: next(failing, None) if verb == "replace" else None
    keeping = asyncio.create_task(first.keep())
    await asyncio.sleep(60)
    assert first.fence() == 1 and not keeping.done()
    keeping.cancel()


async def test_the_same_pod_name_after_a_crash_is_another_reign() -> None:
    """SIGKILL: the restarted process waits like any other, and its epoch is above its own old one."""
    cluster = MemoryCluster()
    await lease(cluster, "a").acquire()
    assert await lease(cluster, "a").acquire() == 2


async def test_two_that_race_for_a_free_lease_do_not_both_win() -> None:
    cluster = MemoryCluster()
    racers = [asyncio.create_task(lease(cluster, name).acquire()) for name in "abc"]
    done, pending = await asyncio.wait(racers, timeout=5)
    assert len(done) == 1
    for task in pending:
        task.cancel()


def serving_config(cluster: MemoryCluster, epoch: int) -> None:
    body = {
        "apiVersion": "meridian.dev/v1alpha1",
        "kind": "ServingConfig",
        "metadata": {"name": "support", "namespace": NS},
    }
    cluster.put({**body, "spec": {"generation": 1, "leaseEpoch": epoch}})


async def test_a_deleted_lease_begins_above_every_epoch_that_was_written() -> None:
    """K-06, IV-03: below it the API server refuses every switch of the new leader, and no rollback could happen any more."""
    cluster = MemoryCluster()
    serving_config(cluster, 7)
    assert await lease(cluster, "a").acquire() == 8


async def test_a_restored_older_lease_begins_above_every_epoch_that_was_written() -> None:
    """K-11, F-07."""
    cluster = MemoryCluster()
    first = lease(cluster, "a")
    await first.acquire()
    await first.release()
    serving_config(cluster, 7)
    assert await lease(cluster, "b").acquire() == 8


async def test_a_deleted_lease_is_not_taken_while_its_holder_may_trust_it() -> None:
    """K-07: `kubectl delete lease` must not make two leaders."""
    cluster = MemoryCluster()
    serving_config(cluster, 1)
    first = lease(cluster, "a")
    await first.acquire()
    keeping = asyncio.create_task(first.keep())
    cluster.remove("Lease", NS, "meridian-operator")
    taking = asyncio.create_task(lease(cluster, "b").acquire())
    while not taking.done():
        await asyncio.sleep(0.1)
    with pytest.raises(Deposed):
        first.fence()
    keeping.cancel()
