"""Story: the operator dies in the middle of a canary, and the canary ends as if it had not."""

from __future__ import annotations

import candidates
import node_containers
import pytest
from background_traffic import RATE, BackgroundTraffic
from live_cluster import LiveCluster, condition, is_true
from serving_watch import ServingWatch, ready_replicas

pytestmark = pytest.mark.e2e
OPERATOR = "meridian-operator"


def test_a_killed_operator_ends_the_canary_with_the_same_result(
    cluster: LiveCluster, url: str, submitted: list[str]
) -> None:
    """K-15, K-17: killed while the candidate has traffic; one evaluation, one promotion, no step repeated."""
    release = candidates.candidate(cluster, "survivor", version=candidates.GOOD_VERSION)
    name = release["metadata"]["name"]
    submitted.append(name)

    with BackgroundTraffic(url, rps=RATE) as users, ServingWatch(cluster, candidates.SERVICE) as watch:
        cluster.apply(release)
        candidates.wait_for_phase(cluster, name, "Canary", seconds=240)
        killed = [(pod["metadata"]["name"], node_containers.kill(pod)) for pod in cluster.pods_of(OPERATOR)]
        candidates.wait_for_phase(cluster, name, "Promoted", seconds=420)

    print(f"\nkilled in the canary: {killed}")
    found = cluster.get("release", name)
    assert is_true(found, "Promoted"), found["status"]
    phases = [entry["phase"] for entry in found["status"]["history"]]
    assert phases == ["Checks", "OfflineEval", "Canary", "Bake", "Promoted"], phases
    assert watch.weights_of(name) == {50}
    watch.assert_generation_only_grows()
    jobs = [
        j["metadata"]["name"] for j in cluster.all("job") if j["metadata"]["name"] == found["status"]["evaluationJob"]
    ]
    assert len(jobs) <= 1
    assert users.report.lost == users.report.errors == 0, users.report.codes()


def test_an_abort_in_the_middle_of_a_canary_takes_the_traffic_back(
    cluster: LiveCluster, url: str, submitted: list[str]
) -> None:
    """S-38: a person's word is enough; nothing else has to be read for it."""
    before = candidates.serving_release(cluster)["metadata"]["name"]
    release = candidates.candidate(cluster, "aborted", version=candidates.GOOD_VERSION, rollout={"bakeSeconds": 60})
    name = release["metadata"]["name"]
    submitted.append(name)

    with BackgroundTraffic(url, rps=5) as users, ServingWatch(cluster, candidates.SERVICE) as watch:
        cluster.apply(release)
        candidates.wait_for_phase(cluster, name, "Canary", seconds=240)
        patched = cluster.kubectl("patch", "release", name, "--type=merge", "-p", '{"spec":{"intent":"Abort"}}')
        assert patched.returncode == 0, patched.stderr
        candidates.wait_for_phase(cluster, name, "RolledBack", seconds=30)
        cluster.until("the traffic to be back", lambda: watch.looks and not watch.looks[-1].candidate, seconds=10)
        watch.acknowledged_within(watch.withdrawn(name).generation, ready_replicas(cluster), seconds=10)

    assert condition(cluster.get("release", name), "Degraded").get("reason") == "Aborted"
    assert candidates.serving_release(cluster)["metadata"]["name"] == before
    assert users.report.lost == users.report.errors == 0, users.report.codes()
