"""What holds for every look, and in every world that can be reached: properties, and a model check over a small world."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from release_world import (
    BEFORE,
    EMPTY,
    GOOD_REPORT,
    NAME,
    NOW,
    OTHER,
    SILENT,
    a_spec,
    counts,
    live,
    metrics,
    seen,
    status,
    tally,
)

from meridian_api.meta import CONDITIONS
from meridian_api.v1alpha1.release import ReleaseStatus
from meridian_operator.cluster import Unreadable
from meridian_operator.conditions import is_true
from meridian_operator.evidence.outcomes import Counts, Tally
from meridian_operator.plan import Plan
from meridian_operator.release.decide import decide
from meridian_operator.release.seen import Live, Problem, Seen, Sibling

PHASES = ["Pending", "Checks", "OfflineEval", "Canary", "Bake", "Promoted", "Queued", "Held", "Rejected", "RolledBack"]
SERVES = {"type": "Serving", "status": "True", "reason": "Serving", "lastTransitionTime": "2026-11-04T11:00:00Z"}
STEPS = ([50], [5, 25, 50], [10, 90])
GONE = Unreadable("PostgreSQL", "down")
FAST = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def arm(draw: Any) -> Counts:
    requests = draw(st.integers(0, 600))
    judged = draw(st.integers(0, requests))
    successes = draw(st.integers(0, judged))
    citations = draw(st.integers(0, 900))
    return Counts(
        requests, draw(st.integers(0, requests)), citations, draw(st.sampled_from([0, 0, 0, citations // 9])), judged, successes,
        requests, judged, successes, draw(st.floats(0, 3)),
    )  # fmt: skip


@st.composite
def looks(draw: Any, **fixed: Any) -> Seen:
    """Any look that observe could give, possible or absurd."""
    first = draw(st.booleans())
    steps = draw(st.sampled_from(STEPS))
    spec = a_spec(
        rollbackTo=None if first else BEFORE,
        intent=fixed.get("intent") or draw(st.sampled_from(["Promote", "Promote", "Pause", "Abort"])),
        attempt=draw(st.sampled_from([1, 1, 1, 2])),
        rollout={
            "canary": {"steps": [{"weight": w} for w in steps], "margin": 0.1, "baselineSuccess": 0.9},
            "onInconclusive": draw(st.sampled_from(["Hold", "Rollback", "Extend"])),
        },
    )
    pointer = draw(
        st.sampled_from(
            [
                None, GONE, live(BEFORE), live(OTHER), live(NAME), live(BEFORE, OTHER, 50),
                *(live(BEFORE, NAME, w, acknowledged=a) for w in steps for a in (True, False)),
            ]
        )
    )  # fmt: skip
    stored = status(
        draw(st.sampled_from(PHASES)), ago=draw(st.sampled_from([1, 30, 700])), attempt=draw(st.sampled_from([0, 1, 1, 1])),
        bakeObservedSeconds=draw(st.integers(0, 12)), bakeLastLook="2026-11-04T11:59:58Z",
        conditions=draw(st.sampled_from([[], [SERVES]])),
    )  # fmt: skip
    metric = draw(
        st.sampled_from([None, SILENT, EMPTY, metrics(), metrics(), metrics(error_ratio=0.3), metrics(requests=2.0)])
    )
    return seen(
        stored,
        spec=spec,
        live=pointer,
        siblings=draw(
            st.sampled_from(
                [
                    (),
                    (),
                    GONE,
                    (Sibling(OTHER, "Canary", "2026-11-04T10:00:00Z", paused=False),),
                    (Sibling(OTHER, "Promoted", "2026-11-04T11:30:00Z", paused=False, serves=True, generation=6),),
                    (Sibling(OTHER, "Promoted", "2026-11-04T11:30:00Z", paused=False, serves=True, generation=8),),
                ]
            )  # fmt: skip
        ),
        problems=draw(st.sampled_from([(), (), (), GONE, (Problem("ConfigMapNotFound", "gone", heals=True),)])),
        cold=draw(st.sampled_from([(), (), ("support-llm/v13",)])),
        cold_target=draw(st.sampled_from([(), (), ("support-llm/v12",)])),
        job=draw(st.sampled_from(["absent", "running", "succeeded", "failed"])),
        report=draw(st.sampled_from([None, GOOD_REPORT, {}, {**GOOD_REPORT, "abstention": 0.1}, GONE])),
        tally=fixed["tally"] if "tally" in fixed else draw(st.none() | st.just(GONE) | st.builds(Tally, arm(), arm())),
        metrics=fixed.get("metrics", metric),
    )


def weight_after(look: Seen, plan: Plan) -> int:
    """Percent of this release once the plan is carried out."""
    if plan.switch is None:
        return look.weight
    if plan.switch.serving == look.name:
        return 100
    return plan.switch.weight_percent if plan.switch.candidate == look.name else 0


@FAST
@given(looks())
def test_every_look_gets_a_plan_and_the_same_one_each_time(look: Seen):
    """Total and pure; the status it writes is one that the schema takes, with every condition at the right generation (K-36)."""
    plan = decide(look, NOW)
    assert plan == decide(look, NOW)
    assert timedelta(0) < plan.look_again <= timedelta(seconds=30)
    if plan.status is not None:
        ReleaseStatus.from_wire(plan.status)
        said = {c["type"]: c for c in plan.status["conditions"]}
        wanted = {
            "Accepted",
            "Reconciling",
            "Stalled",
            "Ready",
            "Paused",
            "Serving",
            "RollbackReady",
            "RollbackTarget",
            "Promoted",
            "Degraded",
        }
        assert set(said) == wanted <= set(CONDITIONS)
        assert {c["observedGeneration"] for c in said.values()} == {1}
        assert not (said["Ready"]["status"] == "True" and said["Reconciling"]["status"] == "True")


@FAST
@given(looks(metrics=metrics(error_ratio=0.3)))
def test_a_breach_never_leads_to_more_weight(look: Seen):
    """R-15, R-17."""
    plan = decide(look, NOW)
    if look.weight > 0:
        assert weight_after(look, plan) <= look.weight


@FAST
@given(looks(metrics=SILENT) | looks(metrics=None) | looks(tally=GONE) | looks(metrics=EMPTY, tally=None))
def test_silence_never_promotes_and_never_adds_weight_to_a_candidate(look: Seen):
    """R-01, R-02, R-04: only the first traffic itself comes without live evidence; what comes after needs it."""
    plan = decide(look, NOW)
    if look.weight > 0:
        assert weight_after(look, plan) <= look.weight
    went_back_to = look.is_serving and look.status.phase in ("RolledBack", "Rejected")  # it has its traffic already
    if look.status.phase != "Promoted" and plan.status is not None and not went_back_to:
        assert plan.status["phase"] != "Promoted"


@FAST
@given(looks())
def test_weight_grows_by_one_step_at_most(look: Seen):
    """All traffic comes after the last step, or to a first release."""
    assert not isinstance(look.spec, str)
    ladder = [0, *(s.weight for s in look.spec.rollout.canary.steps), 100]
    before, after = look.weight, weight_after(look, decide(look, NOW))
    if look.live is None and is_true(look.object["status"], "Serving"):
        assert after in (0, 100)  # what served is stored again
    elif look.spec.rollback_to is None and before == 0:
        assert after in (0, 100)
    elif after > before:
        assert ladder.index(after) == ladder.index(before) + 1


@FAST
@given(looks(intent="Abort"))
def test_an_abort_always_ends_a_candidates_traffic(look: Seen):
    """R-42: with the pointer readable, nothing delays it, and it takes one step."""
    if not isinstance(look.live, Unreadable) and not isinstance(look.siblings, Unreadable) and look.is_candidate:
        plan = decide(look, NOW)
        assert plan.switch is not None and plan.switch.candidate is None and plan.switch.serving == BEFORE


@FAST
@given(looks())
def test_a_switch_names_what_was_seen_and_is_never_to_itself(look: Seen):
    """R-21: compare-and-swap on the version that was seen."""
    switch = decide(look, NOW).switch
    if switch is not None:
        assert isinstance(look.live, Live | None)
        assert switch.expected_resource_version == (look.live.resource_version if look.live else None)
        assert switch.serving != switch.candidate
        assert (switch.candidate is None) == (switch.salt == "")


@FAST
@given(looks())
def test_only_a_release_that_served_is_stored_again_and_no_older_one(look: Seen):
    """K-18, R-22: nothing stored is not nothing served; the content is checked again at the write."""
    plan = decide(look, NOW)
    if plan.because == "store_again_what_served":
        assert look.live is None and plan.switch is not None and not isinstance(look.siblings, Unreadable)
        assert (plan.switch.serving, plan.switch.content) == (NAME, look.content)
        assert is_true(look.object["status"], "Serving")
        assert all(other.generation <= 7 for other in look.siblings if other.serves)


# ------------------------------------------------------------------------------------------------ model check


@dataclass(frozen=True)
class World:
    """A small world: pointer, acknowledgement, what evidence says, whether an attempt to write the status was lost."""

    serving: str
    candidate: str | None
    weight: int
    acknowledged: bool
    evidence: str
    intent: str
    stored: tuple[Any, ...]
    """The status that matters: phase, step, observed bake seconds, whether a look was taken, rollback acknowledged."""
    wire: Any = None


SPEC = {
    "rollout": {
        "canary": {"steps": [{"weight": 20}, {"weight": 50}], "margin": 0.1, "baselineSuccess": 0.9},
        "bakeSeconds": 8,
    }
}
EVIDENCE: dict[str, dict[str, Any]] = {
    "good": {"metrics": metrics()},
    "bad": {"metrics": metrics(error_ratio=0.4)},
    "silent": {"metrics": SILENT},
}


def look_at(world: World) -> Seen:
    share = max(world.weight, 1) / max(100 - world.weight, 1)
    control = counts(700, requests=int(700 / share), step_requests=int(700 / share), step_judged=700)
    both = tally(counts(700, requests=700, step_requests=700), control)
    wire = dict(world.wire or {})
    if wire.get("bakeLastLook"):
        wire["bakeLastLook"] = "2026-11-04T11:59:55Z"
    return seen(
        wire,
        spec=a_spec(intent=world.intent, **SPEC),
        live=live(world.serving, world.candidate, world.weight, acknowledged=world.acknowledged),
        report=GOOD_REPORT,
        tally=both if world.evidence != "silent" else GONE,
        **EVIDENCE[world.evidence],
    )


def key_of(wire: dict[str, Any] | None) -> tuple[Any, ...]:
    wire = wire or {}
    taken = any(e["name"] == "task-success" and "intervalLow" in e for e in wire.get("evidence", []))
    return (
        wire.get("phase", "Pending"), wire.get("attempt", 0), wire.get("step", 0), min(wire.get("bakeObservedSeconds", 0), 8),
        "bakeLastLook" in wire, taken, wire.get("traffic", {}).get("acknowledged", False), is_true(wire, "Accepted"),
    )  # fmt: skip


def after(world: World, plan: Plan, *, status_lost: bool) -> World:
    wire = world.wire if status_lost or plan.status is None else plan.status
    moved = {}
    if plan.switch is not None:
        moved = {
            "serving": plan.switch.serving, "candidate": plan.switch.candidate, "acknowledged": False,
            "weight": plan.switch.weight_percent if plan.switch.candidate else 0,
        }  # fmt: skip
    return replace(world, wire=wire, stored=key_of(wire), **moved)


def neighbours(world: World) -> list[World]:
    """The operator's pass, done or cut off after the switch; replicas apply; evidence and intent change."""
    plan = decide(look_at(world), NOW)
    return [
        after(world, plan, status_lost=False),
        after(world, plan, status_lost=True),
        replace(world, acknowledged=True),
        *(replace(world, evidence=e) for e in EVIDENCE),
        *(replace(world, intent=i) for i in ("Promote", "Pause", "Abort")),
    ]


@cache
def reachable() -> tuple[World, ...]:
    start = World(BEFORE, None, 0, acknowledged=True, evidence="good", intent="Promote", stored=key_of(None))
    seen_keys, queue, found = set(), deque([start]), []
    while queue:
        world = queue.popleft()
        if identity(world) in seen_keys:
            continue
        seen_keys.add(identity(world))
        found.append(world)
        queue.extend(neighbours(world))
    return tuple(found)


def identity(world: World) -> World:
    return replace(world, wire=None)


RESTED: dict[World, World] = {}


def run(world: World) -> World:
    """Passes of the operator, each acknowledged, until nothing changes; remembered, since most paths meet."""
    path = []
    while identity(world) not in RESTED and len(path) < 15:
        path.append(identity(world))
        after_pass = replace(after(world, decide(look_at(world), NOW), status_lost=False), acknowledged=True)
        if identity(after_pass) == identity(world) and after_pass.wire == world.wire:
            break
        world = after_pass
    end = RESTED.get(identity(world), world)
    RESTED.update(dict.fromkeys(path, end))
    return end


def test_from_every_reachable_state_a_rollback_is_reached_and_good_evidence_never_gets_stuck():
    """R-38, R-42: breadth-first over pointer, acknowledgement, evidence, intent, lost status writes."""
    worlds = reachable()
    assert len(worlds) > 100
    assert {"Canary", "Bake", "Promoted", "RolledBack"} <= {w.stored[0] for w in worlds}
    for world in worlds:
        assert world.weight in (0, 20, 50) and world.serving in (BEFORE, NAME)
        aborted = run(replace(world, intent="Abort"))
        assert (aborted.serving, aborted.candidate) == (BEFORE, None), identity(world)
        assert aborted.wire["phase"] in ("RolledBack", "Rejected"), identity(world)
        if world.candidate == NAME:
            harmed = run(replace(world, evidence="bad", acknowledged=False))
            assert (harmed.serving, harmed.candidate, harmed.wire["phase"]) == (BEFORE, None, "RolledBack"), identity(
                world
            )
        fine = run(replace(world, evidence="good", intent="Promote"))
        assert fine.wire["phase"] in ("Promoted", "RolledBack", "Rejected"), identity(world)


def test_every_run_comes_to_rest_and_then_writes_nothing():
    """K-27: the fixpoint, from every reachable state under every constant evidence."""
    ends = {
        identity(e): e
        for w in reachable()
        for v in ("good", "bad")
        if (e := run(replace(w, evidence=v, intent="Promote")))
    }
    for rested in ends.values():
        plan = decide(look_at(rested), NOW + timedelta(minutes=5))
        assert plan.switch is None and plan.status == rested.wire, identity(rested)
