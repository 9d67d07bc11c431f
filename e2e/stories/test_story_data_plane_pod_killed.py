"""Story: a data-plane process dies at once, without a goodbye. Who was served by another notices nothing."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator

import asking
import httpx
import node_containers
import pytest
from asking import Reply
from live_cluster import LiveCluster, Object, is_ready_pod

from meridian_cluster import control_plane

pytestmark = pytest.mark.e2e
DEPLOYMENT = "meridian-dataplane"
OPEN_STREAMS = 8
QUESTION = "Until when may I withdraw from an order that was placed online?"


@pytest.fixture
def brought_back(cluster: LiveCluster) -> Iterator[None]:
    replicas = cluster.get("deployment", "meridian-operator")["spec"]["replicas"]
    yield
    control_plane.start_apiserver()
    cluster.until("the API server", lambda: _api_answers(cluster), seconds=60)
    cluster.scale("meridian-operator", replicas)


def test_only_the_killed_pods_streams_end_and_each_says_so(cluster: LiveCluster, headers) -> None:
    """S-17: each stream of the killed pod ends with an error that its client sees; all others complete."""
    victim, other = _two_pods(cluster)
    who = headers(asking.ACME_CUSTOMER)

    replies_of_victim, replies_of_other, killed_at = asyncio.run(_ask_both_and_kill(victim, other, who))

    open_then = [r for r in replies_of_victim if r.asked_at < killed_at < r.ended_at]
    ends = {end: sum(r.end == end for r in open_then) for end in ("done", "error", "cut", "silent")}
    print(f"\nkilled pod: {len(open_then)} open: {ends}; other pod: {len(replies_of_other)} streams, all done")
    assert ends["cut"] + ends["error"] >= 1, "no stream was open at that moment"
    silent = [r for r in replies_of_victim if r.end == "silent"]
    assert not silent, f"truncated without a word: {silent[0].raw[-300:]!r}"
    hurt = [r for r in replies_of_other if r.end != "done"]
    assert not hurt, f"{len(hurt)} streams of the other pod ended: {hurt[0].end} {hurt[0].why}"

    _wait_restarted(cluster, victim, seconds=90)


def test_a_killed_process_comes_back_and_serves_while_the_control_plane_is_down(
    cluster: LiveCluster, headers, brought_back: None
) -> None:
    """S-30: the kubelet starts it again; it serves the last good configuration from its disk or its mounted copy."""
    victim, _ = _two_pods(cluster)
    who = headers(asking.ACME_CUSTOMER)
    address = f"http://{victim['status']['podIP']}"
    before = asking.ask_once(f"{address}:8080", who, _body())
    assert before.end == "done", before
    cluster.scale("meridian-operator", 0)
    cluster.until("the operator to be gone", lambda: not cluster.pods_of("meridian-operator"), seconds=60)
    control_plane.stop_apiserver()

    pid = node_containers.kill(victim)
    killed = time.monotonic()
    _until_ready(f"{address}:8081/readyz", seconds=90)
    ready_after = time.monotonic() - killed
    after = asking.ask_once(f"{address}:8080", who, _body())

    print(f"\nprocess {pid} killed, ready again after {ready_after:.1f} s, generation {after.meta.get('generation')}")
    assert (after.end, after.done.get("degraded")) == ("done", "full"), (after.status, after.raw[-300:])
    assert after.meta["generation"] == before.meta["generation"]
    assert after.meta["release"] == before.meta["release"]


async def _ask_both_and_kill(
    victim: Object, other: Object, who: dict[str, str]
) -> tuple[list[Reply], list[Reply], float]:
    over = asyncio.Event()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=20, limits=limits, trust_env=False) as client:
        of_victim: list[Reply] = []
        of_other: list[Reply] = []
        async with asyncio.TaskGroup() as tasks:
            for pod, replies in ((victim, of_victim), (other, of_other)):
                for _ in range(OPEN_STREAMS):
                    tasks.create_task(_ask_on(client, f"http://{pod['status']['podIP']}:8080", who, replies, over))
            pid = node_containers.main_process(
                victim
            )  # blocks: what is open meanwhile ends in this process's own buffers
            await asyncio.sleep(3)
            while not any(r.status == 200 for r in of_victim):
                await asyncio.sleep(0.05)
            node_containers.kill_process(pid)
            killed_at = time.monotonic()
            await asyncio.sleep(3)
            over.set()
    return of_victim, of_other, killed_at


async def _ask_on(
    client: httpx.AsyncClient, address: str, who: dict[str, str], replies: list[Reply], over: asyncio.Event
) -> None:
    """One user: the next question as soon as the last is answered."""
    while not over.is_set():
        reply = await asking.ask(client, address, who, _body())
        replies.append(reply)
        if reply.end != "done":
            await asyncio.sleep(0.2)


def _body() -> dict[str, str]:
    return {"question": QUESTION, "conversationId": f"story-{uuid.uuid4().hex}"}


def _two_pods(cluster: LiveCluster) -> tuple[Object, Object]:
    ready = [p for p in cluster.pods_of(DEPLOYMENT) if is_ready_pod(p)]
    assert len(ready) >= 2, f"two data-plane pods are needed, {len(ready)} are ready\n{cluster.explain()}"
    return ready[0], ready[1]


def _wait_restarted(cluster: LiveCluster, pod: Object, seconds: float) -> None:
    name, before = pod["metadata"]["name"], node_containers.restarts(pod)

    def back() -> bool:
        found = cluster.get("pod", name)
        return node_containers.restarts(found) > before and is_ready_pod(found)

    cluster.until(f"{name} to be restarted and ready", back, seconds=seconds)


def _until_ready(url: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    why = "no answer"
    while time.monotonic() < deadline:
        try:
            answered = httpx.get(url, timeout=2, trust_env=False)
            if answered.status_code == 200:
                return
            why = f"{answered.status_code} {answered.text[:200]}"
        except httpx.HTTPError as error:
            why = f"{type(error).__name__} {error}"
        time.sleep(0.1)
    raise AssertionError(f"waited {seconds:.0f} s for {url}: {why}")


def _api_answers(cluster: LiveCluster) -> bool:
    try:
        return bool(cluster.all("pod"))
    except httpx.HTTPError:
        return False
