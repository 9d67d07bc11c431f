"""What the demo says it saw: only what decided, and only what happened."""

from datetime import UTC, datetime

import pytest

from meridian_cli.demo import story
from meridian_cli.demo.watching import Watched, back_seconds, deciding, failed_in_substance, note_serving, without_phase

LOOK = {"name": "task-success", "verdict": "Inconclusive", "candidateSuccesses": 6, "candidateN": 12}
HARM = {"name": "task-success-harm", "verdict": "Fail", "candidateSuccesses": 33, "candidateN": 50}
SLOW = {"name": "ttft-p95", "verdict": "Fail"}
DECIDED = datetime(2026, 11, 30, 5, 36, 26, tzinfo=UTC).timestamp()


def rolled_back(reason: str, *evidence: dict) -> Watched:
    status = {
        "conditions": [{"type": "Degraded", "reason": reason}],
        "evidence": list(evidence),
        "history": [
            {"phase": "Canary", "at": "2026-11-30T05:36:14Z"},
            {"phase": "RolledBack", "at": "2026-11-30T05:36:26Z"},
        ],
    }
    return Watched(phase="RolledBack", status=status)


def config(generation: int, candidate: str, weight: int, *applied: int) -> dict:
    replicas = [{"replica": f"pod-{number}", "generation": one} for number, one in enumerate(applied)]
    spec = {"generation": generation, "candidate": candidate, "candidateWeightPercent": weight}
    return {"spec": spec, "status": {"replicas": replicas}}


def test_a_rollback_for_latency_is_not_one_for_substance():
    unharmed = HARM | {"verdict": "Pass"}
    assert failed_in_substance(rolled_back("HarmShown", LOOK, HARM))
    assert failed_in_substance(rolled_back("Inferior", LOOK | {"verdict": "Fail"}, unharmed))
    assert not failed_in_substance(rolled_back("LimitExceeded", SLOW, LOOK, unharmed))
    assert not failed_in_substance(rolled_back("Aborted"))


def test_the_numbers_shown_are_those_that_decided():
    assert deciding(rolled_back("HarmShown", LOOK, HARM)) == HARM
    assert deciding(rolled_back("LimitExceeded", LOOK, HARM | {"verdict": "Pass"})) == LOOK
    assert "task success 33/50" in story.describe_canary(rolled_back("HarmShown", LOOK, HARM))
    assert "nothing" in story.describe_canary(rolled_back("Aborted"))


def test_weight_0_counts_once_every_replica_has_applied_it(monkeypatch):
    clock = iter((DECIDED + 1.5, DECIDED + 9))
    monkeypatch.setattr("meridian_cli.demo.watching.time.time", lambda: next(clock))
    seen, pods = rolled_back("HarmShown"), {"pod-0", "pod-1"}
    for looked in (
        config(4, "", 0, 4, 4),  # before its canary: no way back yet
        config(5, "bad", 50, 5, 4),
        config(6, "", 0, 6, 5),
        config(6, "", 0, 6),
    ):
        note_serving(seen, looked, "bad", pods)
        assert back_seconds(seen) is None
    note_serving(seen, config(7, "", 0, 6, 7), "bad", pods)
    note_serving(seen, config(7, "", 0, 7, 7), "bad", pods)
    assert back_seconds(seen) == pytest.approx(1.5)
    assert (seen.weights, seen.max_weight) == ([0, 50, 0], 50)


@pytest.mark.parametrize(
    ("phase", "message", "told"),
    [
        ("RolledBack", "Rolled back: too slow: 9 s", "too slow: 9 s"),
        ("Rejected", "Rejected: no such base", "no such base"),
        ("Promoted", "promoted", "promoted"),
        ("Canary", "50 %: 3 of 155", "50 %: 3 of 155"),
        ("Pending", "", ""),
    ],
)
def test_a_phase_is_said_once(phase, message, told):
    assert without_phase(phase, message) == told


def test_weights_are_told_in_words():
    assert story.describe_weights([0, 5, 25, 0]) == "after a canary at 5 % and 25 %"
    assert story.describe_weights([0]) == "without a canary"
