"""Story: a better release gets half of the traffic, proves itself, and takes over."""

from __future__ import annotations

import candidates
import pytest
from background_traffic import RATE, BackgroundTraffic
from live_cluster import LiveCluster, is_true
from serving_watch import ServingWatch, ready_replicas

pytestmark = pytest.mark.e2e


def test_a_better_release_is_promoted_on_evidence(cluster: LiveCluster, url: str, submitted: list[str]) -> None:
    """S-37, S-38, S-20: non-inferior on judged requests of the same time; the pods that passed are the pods that serve."""
    before = candidates.serving_release(cluster)
    better = candidates.candidate(cluster, "better", version=candidates.GOOD_VERSION, steps=(50,))
    name = better["metadata"]["name"]
    submitted.append(name)

    with BackgroundTraffic(url, rps=RATE) as users, ServingWatch(cluster, candidates.SERVICE) as watch:
        cluster.apply(better)
        candidates.wait_for_phase(cluster, name, "Canary", seconds=240)
        pods_in_canary = _pods(cluster, name)
        candidates.wait_for_phase(cluster, name, "Bake", "Promoted", seconds=240)
        pods_at_promotion = _pods(cluster, name)
        candidates.wait_for_phase(cluster, name, "Promoted", seconds=120)

    release = cluster.get("release", name)
    verdict = candidates.evidence(release)["task-success"]
    counts = f"{verdict.get('candidateN')}/{verdict.get('controlN')} of planned {verdict.get('plannedN')}"
    print(f"\n{verdict['verdict']} at {counts}: {verdict['message']}")
    assert is_true(release, "Promoted") and is_true(release, "Serving")
    assert verdict["verdict"] == "Pass" and verdict["candidateN"] >= verdict["plannedN"]
    assert pods_in_canary == pods_at_promotion, "promotion moves the pointer and re-creates nothing"

    assert watch.weights_of(name) == {50}
    watch.assert_generation_only_grows()
    last = watch.looks[-1]
    assert (last.serving, last.candidate) == (name, "")
    watch.acknowledged(last.generation, ready_replicas(cluster))

    report = users.report
    assert report.lost == 0 and report.errors == 0, report.codes()
    assert {r.release for r in report.records} == {before["metadata"]["name"], name}
    assert is_true(cluster.get("release", name), "RollbackReady"), "the release before stays warm"


def _pods(cluster: LiveCluster, release: str) -> set[str]:
    primary = cluster.get("release", release)["spec"]["models"]["primary"]
    labelled = cluster.all("pod", f"meridian.dev/pool={primary['pool']}")
    status = cluster.get("pool", primary["pool"])["status"]["versions"]
    workload = next(v["workload"] for v in status if v["name"] == primary["version"])
    return {
        p["metadata"]["uid"] for p in labelled if p["metadata"]["labels"].get("meridian.dev/version-of") == workload
    }
