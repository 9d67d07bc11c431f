"""Properties of a pool's decision over generated worlds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from operator_world import NOW, pool_wire
from serving_world import manifest

from meridian_api.v1alpha1.inferencepool import InferencePoolSpec
from meridian_operator.cluster import Unreadable, owner_reference
from meridian_operator.demand import ServingView
from meridian_operator.inferencepool.decide import decide
from meridian_operator.inferencepool.objects import workload_name
from meridian_operator.inferencepool.seen import Observed, Routing

POOL = manifest("InferencePool", "qwen", pool_wire(), uid="uid-pool", generation=4)
SPEC = InferencePoolSpec.from_wire(pool_wire())
VERSIONS = ("v1", "v2")


def workload(version: str) -> dict[str, Any]:
    child = manifest("Deployment", workload_name("qwen", version), {}, uid=f"uid-{version}")
    child["apiVersion"] = "apps/v1"
    child["metadata"]["ownerReferences"] = [owner_reference(POOL)]
    return child


VIEWS = st.builds(
    lambda generation, routed, age, applied, usable: ServingView(
        "support",
        generation,
        targets=frozenset(("qwen", v) for v in routed),
        issued_at=NOW - timedelta(seconds=age),
        applied=frozenset(name for name, has in applied.items() if has == generation),
        usable=usable,
    ),
    st.integers(1, 3),
    st.sets(st.sampled_from(VERSIONS)),
    st.integers(0, 120),
    st.dictionaries(st.sampled_from(["dp-0", "dp-1"]), st.integers(0, 3)),
    st.booleans(),
)
ROUTINGS = st.builds(
    Routing,
    st.dictionaries(st.sampled_from((*VERSIONS, "v9")), st.just(("r1",))),
    st.lists(VIEWS, max_size=2).map(tuple),
    st.frozensets(st.sampled_from(["dp-0", "dp-1"])),
)
WORLDS = st.builds(
    lambda routing, running, pods, foreign: Observed(
        object=POOL,
        spec=SPEC,
        routing=routing,
        workloads=tuple(workload(v) for v in running),
        pods={workload_name("qwen", v): counts for v, counts in pods.items()},
        foreign=frozenset(workload_name("qwen", v) for v in foreign - running),
    ),
    ROUTINGS | st.just(Unreadable("Release", "503")),
    st.sets(st.sampled_from(VERSIONS)),
    st.dictionaries(st.sampled_from(VERSIONS), st.tuples(st.just(3), st.integers(0, 3))),
    st.sets(st.sampled_from(VERSIONS)),
)


@settings(max_examples=300, deadline=None)
@given(seen=WORLDS)
def test_total_pure_and_never_away_from_what_is_routed_or_demanded(seen: Observed) -> None:
    plan = decide(seen, NOW)
    assert decide(seen, NOW) == plan
    owned = {w["metadata"]["uid"] for w in seen.workloads}
    assert {ref.uid for ref in plan.delete} <= owned, "only owned objects are deleted"
    applied = {m["metadata"]["name"] for m in plan.apply}
    assert not applied & {ref.name for ref in plan.delete}
    assert not applied & seen.foreign
    if isinstance(seen.routing, Unreadable):
        assert not plan.apply and not plan.delete
        return
    for ref in plan.delete:
        version = next(v for v in VERSIONS if workload_name("qwen", v) == ref.name)
        assert version not in seen.routing.demand
        for view in seen.routing.views:
            assert view.usable and ("qwen", version) not in view.targets
            assert not view.waits_for(seen.routing.ready) and seen.routing.ready
            assert NOW - view.issued_at >= timedelta(seconds=SPEC.drain_seconds)


@settings(max_examples=100, deadline=None)
@given(seen=WORLDS)
def test_every_condition_is_there_and_is_of_this_generation(seen: Observed) -> None:
    status = decide(seen, NOW).status
    assert status is not None
    assert {c["observedGeneration"] for c in status["conditions"]} == {4} == {status["observedGeneration"]}
    assert {"Accepted", "Reconciling", "Stalled", "Ready"} <= {c["type"] for c in status["conditions"]}


@settings(max_examples=100, deadline=None)
@given(seen=WORLDS)
def test_warm_is_never_claimed_without_enough_ready_pods(seen: Observed) -> None:
    status = decide(seen, NOW).status or {}
    for version in status.get("versions", ()):
        if version["warm"] and not isinstance(seen.routing, Unreadable):
            assert seen.pods[version["workload"]][1] >= SPEC.scaling.min_replicas
