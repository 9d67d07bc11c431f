"""serving.acknowledgements and serving.reports: which replicas follow a generation."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving_rig import Rig
from serving_world import NAMESPACE

from meridian_api.v1alpha1.servingconfig import ReplicaReport, ServingConfigStatus
from meridian_operator.cluster import Conflict
from meridian_operator.serving.acknowledgements import Acknowledged, Waiting, acknowledged, clean_report, merge
from meridian_operator.serving.commit import commit
from meridian_operator.serving.replicas import pods
from meridian_operator.serving.reports import Reports


def status(**generations: int) -> ServingConfigStatus:
    return merge(
        ServingConfigStatus(), [ReplicaReport(replica=name, generation=number) for name, number in generations.items()]
    )


def test_every_ready_replica_must_have_applied_it() -> None:
    assert acknowledged(status(a=5, b=5), {"a", "b"}, 5) == Acknowledged(2)
    assert acknowledged(status(a=5, b=4), {"a", "b"}, 5) == Waiting(("b",))
    assert acknowledged(status(a=5), {"a", "silent"}, 5) == Waiting(("silent",))


def test_replicas_that_are_not_ready_do_not_count() -> None:
    assert acknowledged(status(a=5, gone=1), {"a"}, 5) == Acknowledged(1)


def test_without_any_ready_replica_nothing_is_known() -> None:
    assert isinstance(acknowledged(status(a=5), set(), 5), Waiting)


def test_a_refusal_names_its_reason() -> None:
    report = clean_report("a", 4, 5, "bad \x00signature\n")
    assert report is not None
    answer = acknowledged(merge(ServingConfigStatus(), [report]), {"a"}, 5)
    assert isinstance(answer, Waiting)
    assert answer.sentence(5) == "generation 5 is not applied by a (refused: bad signature)"


@pytest.mark.parametrize("name", ["", "../x", "A", "a" * 200, "a b"])
def test_a_report_of_no_pod_is_dropped(name: str) -> None:
    assert clean_report(name, 1, 0, "") is None


def test_texts_are_cut_and_cleaned() -> None:
    """K-28."""
    report = clean_report("a", 1, 2, "é\x1b[31m" + "x" * 5000)
    assert report is not None
    assert len(report.reason) <= 256
    assert report.reason.isascii()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50)), max_size=30))
def test_the_highest_accepted_generation_never_falls(reports: list[tuple[str, int]]) -> None:
    """IV-07."""
    now = ServingConfigStatus()
    for name, generation in reports:
        after = merge(now, [ReplicaReport(replica=name, generation=generation)])
        assert after.highest_accepted >= now.highest_accepted
        assert after.highest_accepted >= generation
        now = after


def test_terminating_pods_are_not_ready_and_a_missing_flag_means_ready() -> None:
    def endpoint(name: str, **conditions: bool) -> dict[str, object]:
        return {"targetRef": {"kind": "Pod", "name": name}, "conditions": conditions}

    slices = [{"endpoints": [endpoint("a", ready=True), endpoint("b", ready=False), endpoint("c")]}, {}]
    assert pods(slices, ready_only=True) == {"a", "c"}
    assert pods(slices, ready_only=False) == {"a", "b", "c"}


async def test_only_changes_are_written_and_a_conflict_is_tried_again(tmp_path: Path) -> None:
    """K-13, K-27."""
    rig = Rig(tmp_path)
    await commit(rig.switch("support-1"), rig.world, NAMESPACE)
    reports = Reports(rig.cluster, NAMESPACE, "meridian-dataplane")
    failures = iter([Conflict("raced"), Conflict("raced")])
    rig.cluster.fail = lambda verb, kind, name: next(failures, None) if verb == "replace_status" else None
    report = ReplicaReport(replica="dp-1", generation=1)
    reports.take("support", report)
    await reports.flush()
    assert rig.stored["status"] == {
        "replicas": [{"replica": "dp-1", "generation": 1, "refusedGeneration": 0, "reason": ""}],
        "acknowledged": 1,
        "highestAccepted": 1,
        "conditions": [],
    }
    rig.cluster.writes.clear()
    reports.take("support", report)
    await reports.flush()
    assert rig.cluster.writes == []


async def test_a_replica_gone_for_long_is_forgotten(tmp_path: Path) -> None:
    """K-30."""
    rig = Rig(tmp_path)
    await commit(rig.switch("support-1"), rig.world, NAMESPACE)
    at = [0.0]
    reports = Reports(rig.cluster, NAMESPACE, "meridian-dataplane", lambda: at[0])
    reports.take("support", ReplicaReport(replica="dp-1", generation=7))
    await reports.flush()
    for at[0] in (61.0, 119.0):
        await reports.flush()
        assert [r["replica"] for r in rig.stored["status"]["replicas"]] == ["dp-1"]
    at[0] = 181.0
    await reports.flush()
    assert rig.stored["status"]["replicas"] == []
    assert rig.stored["status"]["highestAccepted"] == 7


async def test_reports_lost_with_an_older_etcd_come_back(tmp_path: Path) -> None:
    """F-07: the next generation has to be above what replicas accepted, so that must be known again."""
    rig = Rig(tmp_path)
    await commit(rig.switch("support-1"), rig.world, NAMESPACE)
    at = [0.0]
    reports = Reports(rig.cluster, NAMESPACE, "meridian-dataplane", lambda: at[0])
    reports.take("support", ReplicaReport(replica="dp-1", generation=41))
    await reports.flush()
    rig.cluster.put({**rig.stored, "status": {}})
    at[0] = 61.0
    await reports.flush()
    assert rig.stored["status"]["highestAccepted"] == 41


async def test_a_report_of_an_impossible_generation_leaves_room_for_rollbacks(tmp_path: Path) -> None:
    """IV-03, IV-07: one broken replica must not lift the next generation to where no poll can ask for it any more."""
    rig = Rig(tmp_path)
    await commit(rig.switch("support-1"), rig.world, NAMESPACE)
    at = [0.0]
    reports = Reports(rig.cluster, NAMESPACE, "meridian-dataplane", lambda: at[0])
    reports.take("support", ReplicaReport(replica="dp-1", generation=2**62))
    reports.take("support", ReplicaReport(replica="dp-2", generation=41))
    await reports.flush()
    at[0] = 61.0
    await reports.flush()
    assert rig.stored["status"]["highestAccepted"] == 41
    assert [r["replica"] for r in rig.stored["status"]["replicas"]] == ["dp-2"]
