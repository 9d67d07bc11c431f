"""Demand, as properties: what serves and its way back are always needed; nothing else keeps a workload alive."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from operator_world import Place
from serving_world import manifest, release_wire

from meridian_operator.demand import (
    CANDIDATE_PHASES,
    ServingView,
    epoch_demand,
    live_releases,
    pool_demand,
    ready_replicas,
    view,
)

PHASES = (*sorted(CANDIDATE_PHASES), "Pending", "Promoted", "Queued", "Superseded", "Rejected", "RolledBack")
NAMES = ("a", "b", "c", "d")


def release(name: str, phase: str, target: str | None, version: str) -> dict[str, Any]:
    spec = release_wire(models={"primary": {"pool": "qwen", "version": version, "region": "eu-1"}})
    if target:
        spec["rollbackTo"] = target
    return {**manifest("Release", name, spec), "status": {"phase": phase}}


WORLDS = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.sampled_from(PHASES),
        st.none() | st.sampled_from(NAMES),
        st.sampled_from(["v1", "v2"]),
    ),
    unique_by=lambda r: r[0],
)


@settings(max_examples=60, deadline=None)
@given(rows=WORLDS, serving=st.sampled_from(NAMES))
def test_needed_is_what_serves_what_is_on_its_way_and_their_targets(
    rows: list[tuple[str, str, str | None, str]], serving: str
) -> None:
    releases = [release(*row) for row in rows]
    views = [ServingView("support", 1, frozenset({serving}), serving)]
    alive = live_releases(releases, views)
    direct = {name for name, phase, _, _ in rows if name == serving or phase in CANDIDATE_PHASES}
    targets = {target for name, _, target, _ in rows if name in direct and target}
    there = {row[0] for row in rows}
    assert set(alive) == (direct | targets) & there
    demand = pool_demand("qwen", alive)
    assert {name for names in demand.values() for name in names} == set(alive)
    assert pool_demand("another", alive) == {}
    assert set(epoch_demand("epoch-1", alive)) == set(alive)


def test_a_stored_configuration_is_opened() -> None:
    place = Place()
    place.serve("r1", "v2", generation=7, applied={"dp-0": 7, "dp-1": 6})
    opened = view(place.live("ServingConfig", "support"))
    assert opened.usable and opened.releases == {"r1"} and opened.targets == {("qwen", "v2")}
    assert opened.tenants == {"acme"} and opened.epochs == {"epoch-1"} and opened.region == "eu-1"
    assert opened.waits_for({"dp-0", "dp-1", "dp-2"}) == ("dp-1", "dp-2")


def test_what_cannot_be_opened_is_not_empty_but_unusable() -> None:
    for spec in ({}, {"payload": "%%%", "generation": 3}, {"payload": "YWJj", "generation": 3}):
        assert not view(manifest("ServingConfig", "support", spec)).usable


def test_ready_endpoints_are_pods_that_may_get_requests() -> None:
    slices = [
        {
            "endpoints": [
                {"conditions": {"ready": True}, "targetRef": {"name": "a"}},
                {"conditions": {"ready": False}, "targetRef": {"name": "b"}},
                {"targetRef": {"name": "c"}},
                {"conditions": {"ready": True}},
            ]
        },
        {"endpoints": None},
    ]
    assert ready_replicas(slices) == {"a", "c"}
