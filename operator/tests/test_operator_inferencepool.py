"""InferencePool: who is started, who is kept warm, and that nothing goes before the data plane has let go of it."""

from __future__ import annotations

from typing import Any

import pytest
from operator_world import NAMESPACE, Place, key, pool_wire

from meridian_operator.cluster import Unreachable
from meridian_operator.converge import Kind, converge
from meridian_operator.inferencepool.decide import decide
from meridian_operator.inferencepool.objects import workload_name
from meridian_operator.inferencepool.observe import observe

KIND = Kind("InferencePool", observe, decide)
V1, V2 = workload_name("qwen", "v1"), workload_name("qwen", "v2")


async def look(place: Place, times: int = 1) -> None:
    for _ in range(times):
        await converge(key("InferencePool", "qwen"), KIND, place.world)


def status(place: Place) -> dict[str, Any]:
    found: dict[str, Any] = place.live("InferencePool", "qwen")["status"]
    return found


async def test_nothing_runs_that_no_release_demands() -> None:
    place = Place()
    place.pool()
    place.release("queued", "v1", "Queued")
    await look(place)
    assert place.names("Deployment") == set()
    assert place.condition("InferencePool", "qwen", "Ready")["status"] == "True"


@pytest.mark.parametrize("phase", ["Checks", "OfflineEval", "SecurityProbes", "Shadow", "Canary", "Bake", "Held"])
async def test_a_candidate_in_any_phase_gets_its_version_and_a_headless_service(phase: str) -> None:
    place = Place()
    place.pool()
    place.release("r2", "v2", phase)
    await look(place)
    assert place.names("Deployment") == {V2}
    service = place.live("Service", V2)["spec"]
    assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"] is False
    assert service["selector"] == place.live("Deployment", V2)["spec"]["selector"]["matchLabels"]


async def test_the_rollback_target_of_what_serves_is_kept_warm() -> None:
    """S-34: a rollback is a pointer switch to something proved warm."""
    place = Place()
    place.pool()
    place.release("r1", "v1", "Promoted")
    place.release("r2", "v2", "Promoted", rollback_to="r1")
    place.serve("r2", "v2")
    await look(place)
    assert place.names("Deployment") == {V1, V2}
    assert [v["demandedBy"] for v in status(place)["versions"]] == [["r1"], ["r2"]]


async def test_warm_means_that_as_many_pods_as_asked_have_served_a_completion() -> None:
    """S-52."""
    place = Place()
    place.pool()
    place.release("r1", "v1", "Checks")
    await look(place)
    place.pods("v1", ready=1, total=2)
    await look(place)
    (version,) = status(place)["versions"]
    assert (version["replicas"], version["readyReplicas"], version["warm"]) == (2, 1, False)
    assert place.condition("InferencePool", "qwen", "Ready")["reason"] == "WarmingUp"
    place.pods("v1", ready=2)
    await look(place)
    assert status(place)["versions"][0]["warm"] is True
    assert status(place)["warmVersions"] == ["v1"]
    assert place.condition("InferencePool", "qwen", "Ready")["status"] == "True"


async def test_a_version_goes_only_after_traffic_acknowledgement_and_drain() -> None:
    place = Place()
    place.pool()
    place.release("r1", "v1", "Promoted")
    place.serve("r1", "v1", applied={"dp-0": 1})
    place.dataplane("dp-0", "dp-1")
    await look(place)
    assert place.names("Deployment") == {V1}
    place.release("r2", "v2", "Promoted")
    await look(place)
    place.serve("r2", "v2", generation=2, applied={"dp-0": 2, "dp-1": 1})
    await look(place)
    assert place.names("Deployment") == {V1, V2}, "dp-1 may still send requests to v1"
    place.serve("r2", "v2", generation=2, applied={"dp-0": 2, "dp-1": 2})
    await look(place)
    assert place.names("Deployment") == {V1, V2}, "answers that began before may still stream"
    place.pass_time(31)
    await look(place)
    assert place.names("Deployment") == {V2}
    assert place.names("Service") == {V2}


async def test_a_payload_that_cannot_be_opened_removes_nothing() -> None:
    place = Place()
    place.pool()
    place.release("r1", "v1", "Canary")
    await look(place)
    place.release("r1", "v1", "Rejected")
    place.put("ServingConfig", "support", {"payload": "broken", "generation": 1})
    place.dataplane("dp-0")
    await look(place, 2)
    assert place.names("Deployment") == {V1}


async def test_a_serving_config_that_was_deleted_takes_no_engine_from_the_data_plane() -> None:
    """F-11, R-37: replicas serve on from what they accepted, so what they route to keeps running; the order is traffic first."""
    place = Place()
    place.pool()
    place.release("r1", "v1", "Promoted")
    place.serve("r1", "v1", applied={"dp-0": 1})
    place.dataplane("dp-0")
    await look(place)
    place.cluster.remove("ServingConfig", NAMESPACE, "support")
    place.pass_time(3600)
    await look(place, 2)
    assert place.names("Deployment") == {V1}
    assert place.names("Service") == {V1}


async def test_a_pool_of_another_region_does_not_run_here_under_that_name() -> None:
    """T-40, IV-12: the same manifests applied in two clusters; a tenant bound to us-1 must not be served from eu-1."""
    place = Place()
    place.pool(region="us-1")
    place.release("r1", "v1", "Checks")
    await look(place)
    assert place.names("Deployment") == set()
    accepted = place.condition("InferencePool", "qwen", "Accepted")
    assert accepted["status"] == "False" and "this installation is in eu-1" in accepted["message"]


async def test_an_unreadable_list_of_releases_starts_and_stops_nothing() -> None:
    """Inconclusive is not a decision."""
    place = Place()
    place.pool()
    place.release("r1", "v1", "Canary")
    await look(place)
    place.cluster.fail = lambda verb, kind, name: Unreachable("503") if kind == "Release" else None
    before = list(place.cluster.writes)
    await look(place)
    assert [w for w in place.cluster.writes[len(before) :] if w[0] != "replace_status"] == []
    assert place.condition("InferencePool", "qwen", "Ready")["status"] == "False"
    assert place.condition("InferencePool", "qwen", "Ready")["reason"] == "DemandUnknown"


async def test_a_missing_crd_of_ours_is_not_an_empty_list() -> None:
    """K-05: while a CRD is installed again nothing is removed for want of releases."""
    place = Place()
    place.pool()
    place.release("r1", "v1", "Canary")
    await look(place)
    for kind in ("Release", "ServingConfig"):
        place.cluster._absent = (kind,)
        await look(place)
        assert place.names("Deployment") == {V1}
        assert place.condition("InferencePool", "qwen", "Ready")["reason"] == "DemandUnknown"


async def test_a_pool_of_kserve_without_kserve_says_so_and_recovers() -> None:
    place = Place(absent=("InferenceService",))
    place.pool(provider="KServe")
    place.release("r1", "v1", "Checks")
    await look(place)
    accepted = place.condition("InferencePool", "qwen", "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "KServeMissing")
    place.cluster._absent = ()
    await look(place)
    assert place.names("InferenceService") == {V1}
    assert place.condition("InferencePool", "qwen", "Accepted")["status"] == "True"


async def test_the_operator_owns_the_replica_count_of_kserves_deployment() -> None:
    """With autoscalerClass external KServe starts one replica, whatever minReplicas says."""
    place = Place()
    place.pool(provider="KServe")
    place.release("r1", "v1", "Checks")
    await look(place)
    made = place.live("InferenceService", V1)
    owner = {"apiVersion": made["apiVersion"], "kind": "InferenceService", "name": V1, "uid": made["metadata"]["uid"]}
    place.cluster.put(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {
                "name": f"{V1}-predictor",
                "namespace": NAMESPACE,
                "ownerReferences": [{**owner, "controller": True}],
            },
            "spec": {"replicas": 1, "template": {}},
        }
    )
    await look(place)
    assert place.live("Deployment", f"{V1}-predictor")["spec"] == {"replicas": 2, "template": {}}


async def test_hosted_is_named_as_not_supported_yet() -> None:
    place = Place()
    wire = pool_wire(provider="Hosted", hosted={"endpoint": "openai", "model": "m"})
    del wire["engine"]
    place.put("InferencePool", "qwen", wire)
    await look(place)
    assert place.condition("InferencePool", "qwen", "Accepted")["reason"] == "NotSupportedYet"


async def test_an_unknown_version_is_named_with_the_release_that_wants_it() -> None:
    place = Place()
    place.pool()
    place.release("r9", "v9", "Checks")
    await look(place)
    ready = place.condition("InferencePool", "qwen", "Ready")
    assert ready["reason"] == "VersionUnknown" and "r9" in ready["message"] and "v9" in ready["message"]


async def test_an_object_of_somebody_else_is_left_alone_and_named() -> None:
    """K-10, T-51."""
    place = Place()
    place.pool()
    place.release("r1", "v1", "Checks")
    foreign = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": V1, "namespace": NAMESPACE}}
    place.cluster.put({**foreign, "spec": {"replicas": 7}})
    await look(place)
    assert place.live("Deployment", V1)["spec"] == {"replicas": 7}
    assert place.condition("InferencePool", "qwen", "Stalled")["reason"] == "ForeignOwner"


async def test_an_invalid_spec_gives_a_condition_and_stops_nothing() -> None:
    """K-35."""
    place = Place()
    place.pool()
    place.release("r1", "v1", "Canary")
    await look(place)
    place.put("InferencePool", "qwen", {**pool_wire(), "drainSeconds": 1})
    await look(place)
    assert place.names("Deployment") == {V1}
    accepted = place.condition("InferencePool", "qwen", "Accepted")
    assert accepted["status"] == "False" and "drainSeconds" in accepted["message"]


async def test_after_convergence_nothing_is_written() -> None:
    """K-27."""
    place = Place()
    place.pool()
    place.release("r1", "v1", "Canary")
    place.pods("v1", ready=2)
    await look(place, 2)
    writes = len(place.cluster.writes)
    for _ in range(10):
        place.pass_time(30)
        await look(place)
    assert len(place.cluster.writes) == writes


async def test_a_deployment_deleted_by_hand_is_back_and_an_edit_is_corrected() -> None:
    """K-18, K-20."""
    place = Place()
    place.pool()
    place.release("r1", "v1", "Canary")
    await look(place)
    place.cluster.remove("Deployment", NAMESPACE, V1)
    await look(place)
    live = place.live("Deployment", V1)
    live["spec"]["replicas"] = 0
    await look(place)
    assert place.live("Deployment", V1)["spec"]["replicas"] == 2
