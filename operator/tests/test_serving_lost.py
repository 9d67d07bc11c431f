"""The ServingConfig is deleted, by hand or by a restore: who stores it again, and whether replicas follow (K-18, F-04, F-07)."""

from __future__ import annotations

from pathlib import Path

import pytest
from serving_rig import Rig
from serving_world import NAMESPACE
from test_release_flow import BETTER, FIRST, NS, Installation, promoted
from test_release_flow import place as place  # noqa: PLC0414 - the fixture
from test_release_namesakes import OTHER_CONTENT, condition, in_canary, make_again, two

from meridian_api.v1alpha1.servingconfig import ReplicaReport, ServingConfigStatus
from meridian_operator.serving import shrinkage
from meridian_operator.serving.acknowledgements import Acknowledged, Waiting, acknowledged, clean_report
from meridian_operator.serving.commit import commit


def lose(place: Installation) -> None:
    place.cluster.remove("ServingConfig", NS, "support")


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    shrinkage.LOOKS.since.clear()
    return Rig(tmp_path)


async def test_a_replica_that_holds_the_same_generation_of_another_history_gets_a_newer_one(rig: Rig) -> None:
    """F-07, R-30: numbers begin again at 1 when nothing is stored; bytes tell two histories apart."""
    await commit(rig.switch("support-1"), rig.world, NAMESPACE)
    rig.status(replicas=[{"replica": "dp-1", "generation": 1, "digest": "sha256:" + "0" * 64}], highestAccepted=1)
    await rig.look(2)
    assert rig.snapshot.generation == 2
    rig.status(
        replicas=[{"replica": "dp-1", "generation": 2, "digest": rig.stored["spec"]["digest"]}], highestAccepted=2
    )
    rig.cluster.writes.clear()
    await rig.look(5)
    assert rig.cluster.writes == []


@pytest.mark.parametrize(
    ("generation", "digest", "applied"),
    [
        (4, "sha256:" + "a" * 64, True),
        (4, None, True),
        (4, "sha256:" + "b" * 64, False),
        (5, None, False),
        (3, None, False),
    ],
    ids=["this", "older data plane", "other bytes", "ahead", "behind"],
)
def test_only_this_generation_with_these_bytes_is_applied(generation: int, digest: str | None, applied: bool) -> None:
    """R-30: a replica that is ahead of what is stored follows something else."""
    status = ServingConfigStatus(replicas=(ReplicaReport(replica="a", generation=generation, digest=digest),))
    told = acknowledged(status, {"a"}, 4, "sha256:" + "a" * 64)
    assert isinstance(told, Acknowledged if applied else Waiting)


@pytest.mark.parametrize("digest", ["", "nonsense", "sha256:" + "A" * 64, "sha256:" + "a" * 80])
def test_a_digest_that_is_none_is_not_stored(digest: str) -> None:
    report = clean_report("dp-1", 1, 0, "", digest)
    assert report is not None and report.digest is None


async def test_tenants_that_only_replicas_still_know_are_given_up_after_two_lists(rig: Rig, monkeypatch) -> None:
    """F-04: what replicas hold is not stored any more, so that only their refusal tells of it."""
    rig.tenants("acme", "globex")
    await commit(rig.switch("support-1"), rig.world, NAMESPACE)
    refused = {"replica": "dp-1", "generation": 0, "refusedGeneration": 1, "reason": "shrunken"}
    rig.status(replicas=[refused])
    at = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: at[0])
    await rig.look()
    assert rig.snapshot.generation == 1
    at[0] += shrinkage.APART_SECONDS + 1
    await rig.look()
    assert rig.snapshot.generation == 2 and rig.snapshot.shrink_confirmed


def test_releases_that_wait_wait_on_while_it_is_stored_again(place: Installation):
    """R-27: a moment without it rejects nobody."""
    promoted(place)
    place.rates = {FIRST: 92, BETTER: 95}
    place.submit(BETTER)
    place.passes(BETTER, times=2)
    lose(place)
    place.passes(BETTER, times=1)
    assert place.release(BETTER)["phase"] == "Queued" and "stores it again" in place.release(BETTER)["message"]
    place.passes(FIRST, BETTER, times=30)
    assert place.release(BETTER)["phase"] == "Promoted"


def test_a_canary_ends_and_says_why(place: Installation):
    """R-52: nobody else has its traffic."""
    in_canary(place)
    lose(place)
    place.passes(BETTER, FIRST, times=4)
    assert (place.config["serving"], place.config["candidate"]) == (FIRST, "")
    assert place.release(BETTER)["phase"] == "RolledBack" and "was deleted" in place.release(BETTER)["message"]


def test_an_aborted_release_is_stored_again_to_go_back_from(place: Installation):
    """R-49, K-18: only a first release ends with its ServingConfig."""
    two(place)
    place.submit(BETTER, intent="Abort")
    lose(place)
    place.passes(BETTER, FIRST, times=5)
    assert place.config["serving"] == FIRST and place.release(BETTER)["phase"] == "RolledBack"


def test_a_service_whose_way_back_is_gone_can_be_ended(place: Installation):
    """K-21, R-27: `intent: Abort`, then the ServingConfig, as the policy's message says."""
    two(place)
    place.cluster.remove("Release", NS, FIRST)
    place.submit(BETTER, intent="Abort")
    place.passes(BETTER, times=2)
    assert place.config["serving"] == BETTER
    lose(place)
    place.passes(BETTER, times=4)
    assert ("ServingConfig", NS, "support") not in place.cluster.objects
    assert condition(place, BETTER, "Serving")[0] == "False"


def test_the_release_of_the_newest_generation_stores_it_again(place: Installation):
    """K-17: the one that went back lost its status write, and still says that it serves."""
    in_canary(place)
    for _ in range(40):
        place.passes(BETTER, FIRST, times=1)
        if place.release(BETTER)["phase"] == "Bake":
            break
    claim = dict(place.cluster.objects["Release", NS, BETTER]["status"])
    place.submit(BETTER, intent="Abort")
    place.passes(BETTER, FIRST, times=3)
    assert place.config["serving"] == FIRST
    place.status("Release", BETTER, claim)
    lose(place)
    place.passes(BETTER, times=1)
    assert ("ServingConfig", NS, "support") not in place.cluster.objects
    place.passes(FIRST, times=1)
    assert place.config["serving"] == FIRST


def test_another_content_of_the_name_that_served_is_not_stored(place: Installation):
    """R-22: it was never judged; replicas serve on what they have."""
    promoted(place)
    make_again(place, FIRST, **OTHER_CONTENT)
    place.passes(FIRST, times=3)
    lose(place)
    place.passes(FIRST, times=5)
    assert ("ServingConfig", NS, "support") not in place.cluster.objects
    assert condition(place, FIRST, "Serving")[0] == "False"


def test_a_copy_that_was_orphaned_is_kept_current(place: Installation):
    """K-23: `kubectl delete --cascade=orphan`."""
    promoted(place)
    key = ("ConfigMap", NS, "meridian-config-support")
    orphan = {**place.cluster.objects[key]}
    orphan["metadata"] = {k: v for k, v in orphan["metadata"].items() if k != "ownerReferences"}
    lose(place)
    place.cluster.put(orphan)
    place.passes(FIRST, times=3)
    assert place.config["serving"] == FIRST
    owners = place.cluster.objects[key]["metadata"]["ownerReferences"]
    assert [o["uid"] for o in owners] == [place.cluster.objects["ServingConfig", NS, "support"]["metadata"]["uid"]]
