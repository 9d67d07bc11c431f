"""Story: the operator and the API server are gone for five minutes, and nobody who asks notices."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import candidates
import httpx
import pytest
from background_traffic import RATE, BackgroundTraffic
from live_cluster import LiveCluster
from serving_watch import look, ready_replicas

from meridian_cluster import control_plane

pytestmark = pytest.mark.e2e
OUTAGE_S = float(os.environ.get("MERIDIAN_OUTAGE_SECONDS", "300"))


@pytest.fixture
def brought_back(cluster: LiveCluster) -> Iterator[None]:
    """Whatever happens in the story, the control plane runs afterwards as before."""
    replicas = cluster.get("deployment", "meridian-operator")["spec"]["replicas"]
    yield
    control_plane.start_apiserver()
    cluster.until("the API server", lambda: _answers(cluster), seconds=60)
    cluster.scale("meridian-operator", replicas)


def test_answers_go_on_without_control_plane_and_releases_work_afterwards(
    cluster: LiveCluster, url: str, submitted: list[str], brought_back: None
) -> None:
    """S-30, S-31: 0 answers lost or degraded while operator and API server are both kept stopped."""
    before = look(cluster, candidates.SERVICE)
    running = cluster.get("deployment", "meridian-operator")["spec"]["replicas"]

    with BackgroundTraffic(url, rps=5, limit_s=OUTAGE_S + 240) as users:
        time.sleep(3)
        cluster.scale("meridian-operator", 0)
        cluster.until("the operator to be gone", lambda: not cluster.all("pod", _labels(cluster)), seconds=60)
        control_plane.stop_apiserver()
        stopped = time.time()
        assert not _answers(cluster), "the API server still answers"

        time.sleep(OUTAGE_S)
        assert not _answers(cluster), "the API server came back by itself"
        ended = time.time()
        control_plane.start_apiserver()
        cluster.until("the API server", lambda: _answers(cluster), seconds=60)
        cluster.scale("meridian-operator", running)
        cluster.until(
            "the operator to be ready",
            lambda: len(ready_replicas(cluster, "meridian-operator")) == running,
            seconds=120,
        )
        time.sleep(5)

    records = [r for r in users.report.records if stopped <= users.at(r) <= ended]
    hurt = [r for r in users.report.records if r.outcome != "answered"]
    n = len(records)
    print(
        f"\ndown for {ended - stopped:.0f} s: {n} asked, {len(hurt)} lost or degraded;"
        f" with 95 % confidence below {3 / n:.2%} (3/n)"
    )
    assert n >= OUTAGE_S * 5 * 0.95, "the traffic itself stood still"
    assert not hurt, hurt[:5]
    assert {r.release for r in records} == {before.serving}

    again = candidates.candidate(cluster, "after-outage", version=candidates.GOOD_VERSION)
    name = again["metadata"]["name"]
    submitted.append(name)
    with BackgroundTraffic(url, rps=min(RATE, 8)):
        cluster.apply(again)
        candidates.wait_for_phase(cluster, name, "Promoted", seconds=420)
    after = look(cluster, candidates.SERVICE)
    assert after.generation > before.generation, "generations only grow"
    assert after.serving == name


def _labels(cluster: LiveCluster) -> str:
    labels = cluster.get("deployment", "meridian-operator")["spec"]["selector"]["matchLabels"]
    return ",".join(f"{k}={v}" for k, v in labels.items())


def _answers(cluster: LiveCluster) -> bool:
    try:
        return bool(cluster.all("serving"))
    except httpx.HTTPError:
        return False
