"""IndexEpoch: what it needs, the one Job, and that only the store says that it is built."""

from __future__ import annotations

from typing import Any

import pytest
from operator_world import EPOCH, NAMESPACE, NOW, Place, key
from serving_world import tenant_wire

from meridian_api.digest import configmap_digest
from meridian_operator.converge import Kind, converge
from meridian_operator.indexepoch.decide import decide
from meridian_operator.indexepoch.objects import job_name
from meridian_operator.indexepoch.observe import BUILD, PROGRESS, observe

KIND = Kind("IndexEpoch", observe, decide)
DOCS = {"documents.jsonl": "{}\n"}
JOB = job_name("epoch-1")


def spec(**changes: Any) -> dict[str, Any]:
    source = {"name": "docs", "tenant": "acme", "configMap": {"name": "docs", "digest": configmap_digest(DOCS)}}
    return {**EPOCH, "sources": [source], **changes}


@pytest.fixture
def place() -> Place:
    place = Place()
    place.tenant("acme")
    place.cluster.put(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "docs", "namespace": NAMESPACE}, "data": DOCS}
    )
    place.put("IndexEpoch", "epoch-1", spec())
    return place


def row(state: str = "built", recall: float | None = None, error: str = "") -> dict[str, Any]:
    return {
        "state": state,
        "chunks": 9,
        "documents": 4,
        "documents_total": 4,
        "corpus_fingerprint": "sha256:abc",
        "golden_digest": "",
        "recall_at_6": recall,
        "error": error,
        "built_at": NOW,
    }


async def look(place: Place, times: int = 3) -> dict[str, Any]:
    for _ in range(times):
        await converge(key("IndexEpoch", "epoch-1"), KIND, place.world)
    found: dict[str, Any] = place.live("IndexEpoch", "epoch-1")["status"]
    return found


def condition(place: Place, type_: str) -> dict[str, Any]:
    return place.condition("IndexEpoch", "epoch-1", type_)


async def test_partitions_come_first_and_then_one_job(place: Place) -> None:
    """S-13, K-15: looked at again and again, there is one Job."""
    status = await look(place, 5)
    assert place.store.tenants == {"acme": {"epoch-1"}}
    assert place.names("Job") == {JOB}
    assert status["phase"] == "Building" and status["job"] == JOB
    assert [w for w in place.cluster.writes if w[1] == "Job"] == [("apply", "Job", JOB)]


@pytest.mark.parametrize(
    ("region", "allowed", "why"),
    [
        ("us-1", ["eu-1", "us-1"], "this installation is in eu-1"),
        ("eu-1", ["us-1"], "tenant acme may use only us-1"),
    ],
)
async def test_no_document_is_brought_to_where_it_may_not_be(
    place: Place, region: str, allowed: list[str], why: str
) -> None:
    """T-41, IV-12: an epoch of another region, or one whose region a tenant does not allow, is refused before a Job exists."""
    place.put("TenantPolicy", "acme", tenant_wire("acme", tuple(allowed)))
    place.put("IndexEpoch", "epoch-1", spec(region=region))
    await look(place)
    accepted = condition(place, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "RegionNotAllowed") and why in accepted["message"]
    assert place.names("Job") == set()
    place.put("TenantPolicy", "acme", tenant_wire("acme", ("eu-1",)))
    place.put("IndexEpoch", "epoch-1", spec())
    assert (await look(place, 4))["phase"] == "Building"


async def test_a_tenant_without_policy_is_named_and_the_build_goes_on_when_it_appears(place: Place) -> None:
    place.cluster.remove("TenantPolicy", NAMESPACE, "acme")
    await look(place)
    accepted = condition(place, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "TenantUnknown") and "acme" in accepted["message"]
    assert place.names("Job") == set()
    place.tenant("acme")
    await look(place)
    assert place.names("Job") == {JOB}


async def test_a_source_that_is_missing_or_another_is_named_with_both_digests(place: Place) -> None:
    place.put("IndexEpoch", "epoch-1", spec(goldenSet={"name": "golden", "digest": "sha256:" + "0" * 64}))
    await look(place)
    assert "golden" in condition(place, "Accepted")["message"]
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "golden", "namespace": NAMESPACE}}
    place.cluster.put({**body, "data": {"golden.jsonl": "{}"}})
    await look(place)
    message = condition(place, "Accepted")["message"]
    assert "0" * 64 in message and configmap_digest({"golden.jsonl": "{}"}) in message
    assert place.names("Job") == set()


async def test_only_the_store_makes_an_epoch_built(place: Place) -> None:
    """A Job that ended without the store's word is not a result."""
    await look(place)
    job = place.live("Job", JOB)
    place.cluster.put({**job, "status": {"conditions": [{"type": "Complete", "status": "True"}]}})
    assert (await look(place))["phase"] == "Building"
    place.store.answers[BUILD] = lambda _: [row()]
    status = await look(place)
    assert status["phase"] == "Built" and status["documents"] == 4 and status["chunks"] == 9
    assert condition(place, "Built")["status"] == condition(place, "Ready")["status"] == "True"


async def test_a_built_epoch_stays_built_whatever_becomes_of_its_job_and_sources(place: Place) -> None:
    place.store.answers[BUILD] = lambda _: [row()]
    await look(place)
    place.cluster.remove("ConfigMap", NAMESPACE, "docs")
    assert (await look(place))["phase"] == "Built"
    assert place.names("Job") == set()
    place.store.down = True
    assert (await look(place))["phase"] == "Built"
    assert condition(place, "Built")["status"] == "True"


@pytest.mark.parametrize("recall", [None, 0.5, float("nan")])
async def test_recall_below_the_floor_or_not_measured_is_never_built(place: Place, recall: float | None) -> None:
    """S-40, R-16: NaN is not a pass."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "golden", "namespace": NAMESPACE}}
    place.cluster.put({**body, "data": DOCS})
    floor = spec(minRecallAt6=0.8, goldenSet={"name": "golden", "digest": configmap_digest(DOCS)})
    place.put("IndexEpoch", "epoch-1", floor)
    place.store.answers[BUILD] = lambda _: [row(recall=recall)]
    status = await look(place)
    assert status["phase"] == "Failed"
    assert condition(place, "Built")["reason"] == "RecallBelowFloor"
    place.store.answers[BUILD] = lambda _: [row(recall=0.9)]
    assert (await look(place))["phase"] == "Built"


async def test_progress_is_told_from_the_store(place: Place) -> None:
    await look(place)
    place.store.answers[PROGRESS] = lambda _: [{"documents": 3, "documents_total": 10, "chunks": 7}]
    status = await look(place)
    assert (status["documents"], status["documentsTotal"], status["chunks"]) == (3, 10, 7)
    assert "3 of 10" in status["message"]


async def test_a_failed_job_says_why_and_how_to_go_on(place: Place) -> None:
    await look(place)
    failed = {
        "conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "gave up"}]
    }
    place.cluster.put({**place.live("Job", JOB), "status": failed})
    status = await look(place)
    assert status["phase"] == "Failed" and "gave up" in status["message"] and JOB in status["message"]
    place.cluster.remove("Job", NAMESPACE, JOB)
    assert (await look(place))["phase"] == "Building"


async def test_a_job_of_somebody_else_is_left_alone(place: Place) -> None:
    """K-10."""
    place.cluster.put(
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": JOB, "namespace": NAMESPACE}, "spec": {"x": 1}}
    )
    await look(place)
    assert place.live("Job", JOB)["spec"] == {"x": 1}
    assert condition(place, "Stalled")["reason"] == "ForeignOwner"


async def test_releases_that_need_it_are_listed_for_the_admission_policy(place: Place) -> None:
    place.release("r1", "v1", "Canary")
    place.release("r2", "v1", "Queued")
    assert (await look(place))["neededBy"] == ["r1"]


async def test_a_silent_store_starts_nothing(place: Place) -> None:
    place.store.down = True
    await look(place)
    assert place.names("Job") == set()
    assert condition(place, "Built")["status"] == "Unknown"
