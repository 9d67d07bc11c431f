"""Story: a bad release passes its golden set, hurts real users' answers, and is taken away from them."""

from __future__ import annotations

import math
import re
import time
from datetime import datetime

import candidates
import pytest
from background_traffic import RATE, BackgroundTraffic
from live_cluster import LiveCluster, is_true
from serving_watch import ServingWatch, ready_replicas

from meridian_cli.traffic_report import Record

pytestmark = pytest.mark.e2e
WEIGHT = 20
SECONDS_TO_ZERO = 5.0


def test_a_bad_release_is_rolled_back_and_never_gets_more_than_its_weight(
    cluster: LiveCluster, url: str, submitted: list[str]
) -> None:
    """S-37, S-38, R-15: never more than its weight; from the deciding look to weight 0 in every replica under 5 s."""
    before = candidates.serving_release(cluster)["metadata"]["name"]
    bad = candidates.candidate(cluster, "bad", version=candidates.BAD_VERSION, steps=(WEIGHT,))
    name = bad["metadata"]["name"]
    submitted.append(name)

    with BackgroundTraffic(url, rps=RATE) as users, ServingWatch(cluster, candidates.SERVICE) as watch:
        cluster.apply(bad)
        candidates.wait_for_phase(cluster, name, "Canary", seconds=240)
        candidates.wait_for_phase(cluster, name, "RolledBack", seconds=300)
        replicas = ready_replicas(cluster)
        watch.acknowledged_within(watch.withdrawn(name).generation, replicas, seconds=30)
        time.sleep(3)  # what is still asked after the rollback

    release = cluster.get("release", name)
    print(f"\nwhy: {release['status']['message']}")
    _assert_never_above_its_weight(name, watch, users.report.records)
    _assert_gone_in_time(release, watch, replicas, users)

    assert re.search(r"\d", release["status"]["message"]), "the reason names numbers"
    assert not is_true(release, "Promoted") and not is_true(release, "Serving")
    assert candidates.serving_release(cluster)["metadata"]["name"] == before
    watch.assert_generation_only_grows()
    _assert_others_unaffected(before, users.report.records)


def _assert_never_above_its_weight(name: str, watch: ServingWatch, records: tuple[Record, ...]) -> None:
    assert watch.weights_of(name) <= {0, WEIGHT}
    in_canary = {g for g, weight in watch.generations_of(name).items() if weight}
    asked = [r for r in records if r.generation in in_canary]
    got = sum(r.release == name for r in asked)
    n, share = len(asked), WEIGHT / 100
    bound = n * share + 4 * math.sqrt(n * share * (1 - share))  # one-sided, about 3 in 100 000
    print(f"candidate's share: {got} of {n} = {got / max(n, 1):.1%} at weight {WEIGHT} % (bound {bound:.0f})")
    assert n > 50 and 0 < got <= bound
    elsewhere = [r for r in records if r.release == name and r.generation not in in_canary]
    assert not elsewhere, f"the candidate answered outside of its canary: {elsewhere[:3]}"


def _assert_gone_in_time(release, watch: ServingWatch, replicas: set[str], users: BackgroundTraffic) -> None:
    """`at` of the deciding evidence has whole seconds, cut: the time found is never too short."""
    name = release["metadata"]["name"]
    failed = [e for e in release["status"]["evidence"] if e["verdict"] == "Fail"]
    assert failed, f"no failed evidence: {release['status']}"
    decided = min(datetime.fromisoformat(e["at"]).timestamp() for e in failed)
    withdrawn = watch.withdrawn(name)
    gone = watch.acknowledged(withdrawn.generation, replicas)
    taken = gone.at - decided
    print(f"decided by {failed[0]['name']}: {failed[0]['message']}")
    print(
        f"decided -> weight 0 stored {withdrawn.at - decided:.1f} s -> applied by {len(replicas)} replicas {taken:.1f} s"
    )
    assert taken < SECONDS_TO_ZERO
    late = [r for r in users.report.records if r.release == name and users.at(r) > gone.at + 0.3]
    assert not late, f"{len(late)} answers of a withdrawn release"


def _assert_others_unaffected(before: str, records: tuple[Record, ...]) -> None:
    own = [r for r in records if r.arm == "serving"]
    assert all(r.release == before for r in own)
    hurt = [r for r in records if r.outcome != "answered" and r.arm != "candidate"]
    assert not hurt, f"{len(hurt)} of {len(own)} users of the serving release were hurt: {hurt[:3]}"
    judged = [r for r in own if r.right is not None]
    print(f"serving arm: {sum(bool(r.right) for r in judged)} right of {len(judged)}, 0 lost")
