"""What a Release does next: one example of every rule."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from release_world import (
    BEFORE,
    EMPTY,
    GOOD_REPORT,
    NAME,
    NOW,
    OTHER,
    QUIET,
    SILENT,
    a_spec,
    counts,
    in_bake,
    in_canary,
    live,
    metrics,
    seen,
    status,
    tally,
)

from meridian_operator.cluster import Unreadable
from meridian_operator.conditions import is_true
from meridian_operator.evidence.readings import Reading
from meridian_operator.plan import Plan
from meridian_operator.release.decide import decide
from meridian_operator.release.seen import Live, Problem, Seen, Sibling

FIRST = a_spec(rollbackTo=None)


def plan(look: Seen) -> Plan:
    return decide(look, NOW)


def said(look: Seen) -> dict[str, Any]:
    wire = plan(look).status
    assert wire is not None
    return wire


def condition(wire: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(c for c in wire["conditions"] if c["type"] == kind)


# ------------------------------------------------------------------------------------------------ before traffic


def test_a_new_release_begins_with_checks_and_a_frozen_n():
    """R-09, R-24: the planned n is fixed when the attempt begins."""
    wire = said(seen())
    assert (wire["phase"], wire["attempt"], wire["plannedN"]) == ("Checks", 1, 155)
    assert condition(wire, "Reconciling")["status"] == "True"
    assert condition(wire, "Ready")["status"] == "False"


def test_a_missing_reference_is_named_and_waited_for_and_heals():
    """R-29: a condition names what is missing; when it appears, the release goes on by itself."""
    missing = (Problem("ConfigMapNotFound", "ConfigMap prompt-1 does not exist", heals=True),)
    wire = said(seen(status("Checks"), problems=missing))
    accepted = condition(wire, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "ConfigMapNotFound")
    assert "prompt-1" in accepted["message"]
    assert plan(seen(status("Checks"), problems=missing)).switch is None
    assert said(seen(wire, problems=()))["phase"] == "OfflineEval"


def test_a_mismatch_that_cannot_heal_is_rejected_before_any_traffic():
    """R-09, R-35."""
    wire = said(
        seen(status("Checks"), problems=(Problem("EmbeddingMismatch", "epoch-1 was made with x", heals=False),))
    )
    assert wire["phase"] == "Rejected"
    assert condition(wire, "Stalled")["status"] == "True"
    assert condition(wire, "Accepted")["reason"] == "EmbeddingMismatch"


@pytest.mark.parametrize(
    ("spec", "now"),
    [(a_spec(), live(OTHER)), (FIRST, live(BEFORE)), (a_spec(), None)],
    ids=["another", "first", "none"],
)
def test_a_release_whose_base_does_not_serve_is_stale(spec: Any, now: Live | None):
    """R-20: an old history on a fresh cluster, and a first release that is none."""
    wire = said(seen(status("Checks"), spec=spec, live=now))
    assert (wire["phase"], condition(wire, "Accepted")["reason"]) == ("Rejected", "StaleBase")


def test_a_release_waits_for_the_base_that_is_still_on_its_way():
    coming = (Sibling(BEFORE, "OfflineEval", "2026-11-04T10:00:00Z", paused=False),)
    wire = said(seen(status("Checks"), live=None, siblings=coming))
    assert wire["phase"] == "Queued" and BEFORE in wire["message"]


@pytest.mark.parametrize("phase", ["Canary", "Bake"])
def test_a_service_has_one_slot_and_the_holder_is_named(phase: str):
    """R-21."""
    wire = said(seen(status("Checks"), siblings=(Sibling(OTHER, phase, "2026-11-04T10:00:00Z", paused=False),)))
    assert wire["phase"] == "Queued" and OTHER in wire["message"]
    by_traffic = said(seen(status("OfflineEval"), live=live(BEFORE, OTHER, 50)))
    assert by_traffic["phase"] == "Queued" and OTHER in by_traffic["message"]


def test_the_older_in_the_queue_goes_first():
    """R-28."""
    older = Sibling(OTHER, "Queued", "2026-11-04T10:00:00Z", paused=False)
    assert said(seen(status("Queued"), siblings=(older,)))["phase"] == "Queued"
    younger = Sibling(OTHER, "Queued", "2026-11-04T11:30:00Z", paused=False)
    assert said(seen(status("Queued"), siblings=(younger,)))["phase"] == "OfflineEval"


def test_the_evaluation_waits_until_the_models_are_warm_and_then_asks_for_one_job():
    """R-32, K-15: the same look asks for the same Job."""
    cold = seen(status("OfflineEval"), cold=("support-llm/v13",))
    assert plan(cold).evaluation is None and "support-llm/v13" in said(cold)["message"]
    first, second = plan(seen(status("OfflineEval"))), plan(seen(status("OfflineEval")))
    assert first.evaluation is not None and first.evaluation == second.evaluation
    other = plan(seen(status("OfflineEval", attempt=2), spec=a_spec(attempt=2))).evaluation
    assert other is not None and other.job != first.evaluation.job
    assert plan(seen(status("OfflineEval"), job="running")).evaluation is None


def test_a_floor_that_is_missed_rejects_with_one_sentence():
    """S-02."""
    wire = said(seen(status("OfflineEval"), report={**GOOD_REPORT, "recallAt6": 0.5}))
    assert wire["phase"] == "Rejected"
    assert wire["message"] == "Rejected: recall-at-6 0.500 on 90 golden cases, floor 0.800"
    assert condition(wire, "Accepted")["status"] == "True"


@pytest.mark.parametrize(
    "report", [{}, "<html>", [], {**GOOD_REPORT, "unscored": 30, "scored": 60}, {**GOOD_REPORT, "cases": 0}]
)
def test_a_report_that_is_no_evidence_holds(report: object):
    """R-03, R-02."""
    look = seen(status("OfflineEval"), report=report)
    assert said(look)["phase"] == "Held" and plan(look).switch is None


def test_a_job_that_leaves_no_report_holds_and_an_unreadable_store_waits():
    """R-01."""
    assert said(seen(status("OfflineEval"), job="failed"))["phase"] == "Held"
    assert said(seen(status("OfflineEval"), job="succeeded"))["phase"] == "Held"
    assert said(seen(status("OfflineEval"), report=Unreadable("pg", "down")))["phase"] == "OfflineEval"


def test_a_first_release_takes_over_without_a_canary():
    look = seen(status("OfflineEval"), spec=FIRST, live=None, report=GOOD_REPORT)
    made = plan(look)
    assert made.switch is not None and (made.switch.serving, made.switch.candidate) == (NAME, None)
    assert made.switch.expected_resource_version is None
    assert made.status is not None and made.status["phase"] == "Bake"


def test_a_later_release_starts_at_the_first_step_when_the_way_back_is_warm():
    """R-37, R-39: no canary without a warm rollback target."""
    made = plan(seen(status("OfflineEval"), report=GOOD_REPORT))
    assert made.switch is not None
    assert (made.switch.serving, made.switch.candidate, made.switch.weight_percent) == (BEFORE, NAME, 50)
    assert made.switch.salt == f"uid-{NAME}/1" and made.switch.expected_resource_version == "rv7"
    cold = plan(seen(status("OfflineEval"), report=GOOD_REPORT, cold_target=("support-llm/v12",)))
    assert cold.switch is None and not is_true(cold.status, "RollbackReady")


# ------------------------------------------------------------------------------------------------ canary


def test_enough_good_evidence_promotes_by_moving_the_pointer():
    """R-34."""
    made = plan(in_canary())
    assert made.switch is not None and (made.switch.serving, made.switch.candidate) == (NAME, None)
    assert made.status is not None and made.status["phase"] == "Bake"
    look = next(e for e in made.status["evidence"] if e["name"] == "task-success")
    assert look["verdict"] == "Pass" and look["plannedN"] == 155 and look["intervalLow"] > -0.1


def test_half_of_n_stays_where_it_is_and_says_how_far_it_is():
    """R-07, R-02."""
    made = plan(in_canary(tally=tally(counts(80), counts(80))))
    assert made.switch is None and made.status is not None
    assert "80 of 155" in made.status["message"] and made.status["phase"] == "Canary"


def test_a_bad_release_is_stopped_early_with_the_numbers_in_one_sentence():
    """R-42: one step to 100 % stable."""
    made = plan(in_canary(tally=tally(counts(60, 25), counts(60, 56))))
    assert made.switch is not None
    assert (made.switch.serving, made.switch.candidate, made.switch.weight_percent) == (BEFORE, None, 0)
    assert made.status is not None and made.status["phase"] == "RolledBack"
    assert made.status["message"].startswith("Rolled back: task success 41.7% (25/60) against 93.3% (56/60)")
    assert made.status["traffic"] == {**made.status["traffic"], "weightPercent": 0, "acknowledged": False}


@pytest.mark.parametrize(
    "harmed",
    [
        {"metrics": metrics(error_ratio=0.4)},
        {"metrics": metrics(ttft_p95_ms=2000.0)},
        {"metrics": metrics(answer_p95_ms=9000.0)},
        {"metrics": metrics(answer_p95_ms=Reading(None, "BeyondBuckets"))},
        {"tally": tally(counts(citations_invalid=1))},
        {"tally": tally(counts(judged_cost_usd=9.0))},
        {"metrics": SILENT, "tally": tally(counts(errors=80))},
    ],
    ids=["errors", "ttft", "answer", "beyond", "citations", "cost", "recorded"],
)
def test_one_breach_of_an_absolute_limit_rolls_back(harmed: dict[str, Any]):
    """R-15, R-17; R-01: recorded errors work without Prometheus."""
    made = plan(in_canary(**harmed))
    assert made.because == "roll_back_on_breach"
    assert made.switch is not None and made.switch.candidate is None


@pytest.mark.parametrize(
    "silence",
    [
        {"metrics": SILENT},
        {"metrics": EMPTY},
        {"metrics": None},
        {"tally": Unreadable("postgresql", "down")},
        {"tally": QUIET},
        {"metrics": metrics(requests=3.0)},
        {"metrics": metrics(ttft_p95_ms=Reading(None, "Stale", "the newest sample is 1200 s old"))},
        {"tally": tally(counts(step_requests=200), counts(step_requests=5000))},
    ],
    ids=["unreachable", "empty", "unread", "postgres", "no-traffic", "too-few", "stale", "ratio"],
)
def test_evidence_that_is_silent_or_broken_holds_the_weight(silence: dict[str, Any]):
    """R-01, R-02, R-06, R-12."""
    made = plan(in_canary(**silence))
    assert made.switch is None
    assert made.status is not None and made.status["phase"] == "Canary"


def test_a_weight_is_not_real_before_every_replica_has_applied_it():
    """R-30."""
    made = plan(in_canary(live=live(BEFORE, NAME, 50, acknowledged=False)))
    assert made.switch is None and made.status is not None
    assert not made.status["traffic"]["acknowledged"]


@pytest.mark.parametrize(
    ("policy", "phase", "switches"),
    [("Hold", "Held", False), ("Rollback", "RolledBack", True), ("Extend", "Canary", False)],
)
def test_an_inconclusive_look_does_what_the_release_declared(policy: str, phase: str, switches: bool):
    spec = a_spec(rollout={"onInconclusive": policy})
    made = plan(in_canary(spec=spec, tally=tally(counts(220, 190), counts(220, 203))))
    assert made.status is not None and made.status["phase"] == phase
    assert (made.switch is not None) == switches


def test_a_look_that_was_taken_is_not_taken_again():
    """R-08: more data later cannot turn it into a pass."""
    first = plan(in_canary(tally=tally(counts(155, 132), counts(155, 140)))).status
    assert first is not None and first["phase"] == "Held"
    again = plan(in_canary(stored=first, tally=tally(counts(900, 850), counts(900, 850))))
    assert again.switch is None and again.status is not None and again.status["phase"] == "Held"


@pytest.mark.parametrize(("policy", "phase"), [("Hold", "Held"), ("Extend", "Held"), ("Rollback", "RolledBack")])
def test_at_the_deadline_traffic_goes_back_and_time_promotes_nothing(policy: str, phase: str):
    """R-01, R-04."""
    spec = a_spec(rollout={"onInconclusive": policy})
    made = plan(in_canary(ago=601, spec=spec, metrics=SILENT, tally=tally(counts(80), counts(80))))
    assert made.switch is not None and (made.switch.serving, made.switch.candidate) == (BEFORE, None)
    assert made.status is not None and made.status["phase"] == phase


def test_the_step_grows_by_one_and_only_on_enough_requests():
    spec = a_spec(rollout={"canary": {"steps": [{"weight": 5}, {"weight": 25}, {"weight": 50}], "margin": 0.1}})
    at_5 = {"spec": spec, "live": live(BEFORE, NAME, 5)}
    share = {"control": counts(2000, step_requests=3800)}
    made = plan(in_canary(**at_5, tally=tally(counts(160), share["control"])))
    assert made.switch is not None and made.switch.weight_percent == 25
    few = plan(in_canary(**at_5, tally=tally(counts(10, requests=10, step_requests=10), share["control"])))
    assert few.switch is None


def test_content_that_vanishes_during_the_canary_holds_it_and_is_named():
    """R-40."""
    gone = (Problem("ConfigMapNotFound", "ConfigMap golden does not exist", heals=True),)
    made = plan(in_canary(problems=gone))
    assert made.switch is None and made.status is not None and "golden" in made.status["message"]


# ------------------------------------------------------------------------------------------------ people


@pytest.mark.parametrize("changes", [{"intent": "Pause"}, {"hold": {"by": "ada", "reason": "incident"}}])
def test_a_pause_or_hold_keeps_the_weight_but_not_the_guards(changes: dict[str, Any]):
    """R-17, R-25."""
    spec = a_spec(**changes)
    made = plan(in_canary(spec=spec))
    assert made.switch is None and is_true(made.status, "Paused")
    assert plan(in_canary(spec=spec, metrics=metrics(error_ratio=0.4))).switch is not None


@pytest.mark.parametrize("look", [in_canary, in_bake])
def test_an_abort_goes_back_in_one_step(look: Any):
    """R-42."""
    made = plan(look(spec=a_spec(intent="Abort")))
    assert made.switch is not None and (made.switch.serving, made.switch.candidate) == (BEFORE, None)
    assert made.status is not None and made.status["phase"] == "RolledBack"


def test_an_abort_before_traffic_and_after_promotion():
    early = plan(seen(status("OfflineEval"), spec=a_spec(intent="Abort")))
    assert early.switch is None and early.status is not None and early.status["phase"] == "RolledBack"
    late = plan(seen(status("Promoted"), spec=a_spec(intent="Abort"), live=live(NAME)))
    assert late.switch is not None and late.switch.serving == BEFORE


# ------------------------------------------------------------------------------------------------ rolled back


def test_rolled_back_is_settled_only_when_every_replica_said_so():
    """R-30, R-31."""
    stored = status(
        "RolledBack", message="Rolled back: bad", traffic={"weightPercent": 0, "generation": 7, "acknowledged": False}
    )
    waiting = said(seen(stored, live=live(acknowledged=False)))
    assert not waiting["traffic"]["acknowledged"] and condition(waiting, "Reconciling")["status"] == "True"
    done = said(seen(stored))
    assert done["traffic"]["acknowledged"] and condition(done, "Stalled")["status"] == "True"
    assert done["message"] == "Rolled back: bad" and is_true(done, "Degraded") and not is_true(done, "Serving")
    assert done["servingRelease"] == BEFORE


def test_what_is_rolled_back_never_keeps_traffic():
    """K-11: an older state of the API server shows it as candidate again."""
    made = plan(seen(status("RolledBack"), live=live(BEFORE, NAME, 50)))
    assert made.switch is not None and made.switch.candidate is None


def test_the_reason_survives_a_crash_between_switch_and_status():
    """K-15: the switch landed, the status did not; the same evidence gives the same sentence."""
    made = plan(in_canary(live=live(BEFORE), tally=tally(counts(60, 25), counts(60, 56))))
    assert made.switch is None and made.status is not None
    assert made.status["phase"] == "RolledBack" and "25/60" in made.status["message"]


def test_a_grown_attempt_starts_over_with_its_own_evidence_and_salt():
    """R-24."""
    old = {"name": "task-success", "verdict": "Fail", "reason": "Inferior", "intervalLow": -0.5}
    wire = said(seen(status("RolledBack", evidence=[old]), spec=a_spec(attempt=2)))
    assert (wire["phase"], wire["attempt"], wire["evidence"]) == ("Checks", 2, [])
    assert [h["phase"] for h in wire["history"]] == ["Checks", "RolledBack", "Checks"]
    made = plan(seen(status("OfflineEval", attempt=2), spec=a_spec(attempt=2), report=GOOD_REPORT))
    assert made.switch is not None and made.switch.salt.endswith("/2")


# ------------------------------------------------------------------------------------------------ bake


def test_bake_counts_observed_healthy_seconds_only():
    """R-47: a gap above 30 s, silence and unacknowledged traffic do not count."""
    assert said(in_bake(observed=4, last=5))["bakeObservedSeconds"] == 9
    assert said(in_bake(observed=4, last=2))["bakeObservedSeconds"] == 4
    assert said(in_bake(observed=4, last=2400))["bakeObservedSeconds"] == 4
    assert said(in_bake(observed=4, last=None))["bakeObservedSeconds"] == 4
    silent = said(in_bake(observed=4, metrics=SILENT))
    assert silent["bakeObservedSeconds"] == 4 and "bakeLastLook" not in silent
    assert said(in_bake(observed=9, live=live(NAME, acknowledged=False)))["phase"] == "Bake"


def test_enough_healthy_bake_promotes():
    wire = said(in_bake(observed=8))
    assert (
        wire["phase"] == "Promoted"
        and is_true(wire, "Promoted")
        and is_true(wire, "Ready")
        and is_true(wire, "Serving")
    )


def test_a_breach_in_bake_goes_back_to_the_release_before_in_one_step():
    """R-42."""
    made = plan(in_bake(metrics=metrics(error_ratio=0.2)))
    assert made.switch is not None and (made.switch.serving, made.switch.candidate) == (BEFORE, None)


def test_a_way_back_that_leads_nowhere_is_not_taken_blindly():
    """R-37."""
    made = plan(in_bake(metrics=metrics(error_ratio=0.2), target_reachable=False, cold_target=("support-llm/v12",)))
    assert made.switch is None and is_true(made.status, "Degraded")
    assert made.status is not None and "support-llm/v12" in made.status["message"]


def test_a_first_release_bakes_without_traffic_but_not_without_metrics():
    """R-02: quiet is a fact that PostgreSQL states; an outage is not quiet."""
    quiet = {"spec": FIRST, "observed": 8, "tally": QUIET}
    assert said(in_bake(**quiet, metrics=EMPTY))["phase"] == "Promoted"
    assert said(in_bake(**quiet, metrics=SILENT))["phase"] == "Bake"
    assert said(in_bake(spec=FIRST, observed=8, tally=Unreadable("pg", "down"), metrics=EMPTY))["phase"] == "Bake"
    assert said(in_bake(observed=8, tally=QUIET, metrics=EMPTY))["phase"] == "Bake"


def test_a_breach_of_a_first_release_is_said_since_there_is_no_way_back():
    made = plan(in_bake(spec=FIRST, metrics=metrics(error_ratio=0.5)))
    assert made.switch is None and is_true(made.status, "Degraded")


# ------------------------------------------------------------------------------------------------ rest


def test_promoted_rests_and_writes_nothing_new():
    """K-27."""
    promoted = plan(in_bake(observed=8)).status
    assert promoted is not None
    later = decide(seen(promoted, live=live(NAME)), NOW + timedelta(hours=1)).status
    assert later == decide(seen(later, live=live(NAME)), NOW + timedelta(hours=2)).status
    replaced = decide(seen(promoted, live=live(OTHER)), NOW).status
    assert replaced is not None and is_true(replaced, "Ready") and not is_true(replaced, "Serving")
    assert replaced["servingRelease"] == OTHER


def test_an_unreadable_world_changes_nothing():
    """R-01."""
    for broken in ({"live": Unreadable("ServingConfig", "503")}, {"siblings": Unreadable("Release", "503")}):
        made = plan(in_canary(**broken))
        assert made.switch is None and made.status is None


def test_a_candidate_that_was_deleted_loses_its_traffic():
    """R-17: any weight is guarded, so a weight without a guard ends."""
    made = plan(seen(status("Promoted"), live=live(NAME, OTHER, 50)))
    assert made.switch is not None and (made.switch.serving, made.switch.candidate) == (NAME, None)
    there = (Sibling(OTHER, "Canary", "2026-11-11T10:00:00Z", paused=False),)
    assert plan(seen(status("Promoted"), live=live(NAME, OTHER, 50), siblings=there)).switch is None


def test_a_candidate_that_is_being_deleted_gives_its_traffic_back():
    made = plan(in_canary(meta={"deletionTimestamp": "2026-11-04T12:00:00Z"}))
    assert made.switch is not None and made.switch.candidate is None and made.status is None


def test_numbers_behind_an_unchanged_verdict_are_not_written_at_every_look():
    """K-27: a canary's status wakes its readers a few times a minute, not at every look."""
    first = plan(in_canary(tally=tally(counts(60), counts(60)))).status
    assert first is not None
    more = {"stored": first, "tally": tally(counts(70), counts(70))}
    soon = decide(in_canary(**more), NOW + timedelta(seconds=1)).status
    assert soon == first
    later = decide(in_canary(**more), NOW + timedelta(seconds=4)).status
    assert later is not None and "70 of 155" in later["message"]
