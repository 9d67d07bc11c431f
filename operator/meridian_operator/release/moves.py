"""The few things a rule can answer: stay, change the split, promote, go back. Each gives a whole Plan. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from meridian_api.v1alpha1.release import Evidence, Phase, ReleaseSpec
from meridian_operator.cluster import Unreadable
from meridian_operator.conditions import timestamp
from meridian_operator.plan import REST, SOON, EvaluationRequest, EventNote, Plan, Switch
from meridian_operator.release.seen import Live, Seen, parse_time, salt
from meridian_operator.release.status import Told, status_wire

AT_ONCE = timedelta(milliseconds=300)
"""When the next pass has something to do already."""


@dataclass(frozen=True)
class Situation:
    """What rules look at: a Seen whose spec parses and whose ServingConfig could be read."""

    seen: Seen
    now: datetime
    spec: ReleaseSpec
    live: Live | None
    phase: Phase
    watched: tuple[Evidence, ...]
    """Guardrails at this look; empty without traffic."""

    @property
    def first(self) -> bool:
        """A service's first release: no control, no canary, nothing to return to."""
        return self.spec.rollback_to is None

    @property
    def somebody_serves(self) -> bool:
        """Whether another release's status says that it answers users."""
        return not isinstance(self.seen.siblings, Unreadable) and any(other.serves for other in self.seen.siblings)

    @property
    def step(self) -> int:
        """1-based step whose weight is committed; 0 before the first."""
        return sum(step.weight <= self.seen.weight for step in self.spec.rollout.canary.steps)


def stay(s: Situation, because: str, told: Told, look_again: timedelta = SOON) -> Plan:
    """Only say something."""
    return _plan(s, because, told, None, look_again)


def give_weight(s: Situation, because: str, step: int, message: str, evidence: tuple[Evidence, ...] = ()) -> Plan:
    """Commit the weight of a 1-based step, with this release as candidate of the one that serves."""
    weight = s.spec.rollout.canary.steps[step - 1].weight
    told = Told(
        "Canary", "CanaryStep", message, evidence=evidence, weight=weight,
        changes={"step": step, "step_since": _stamp(s), "bake_observed_seconds": 0, "bake_last_look": None},
    )  # fmt: skip
    serving = s.live.serving if s.live else (s.spec.rollback_to or s.seen.name)
    switch = replace(_switch(s, serving, s.seen.name, weight, message), content=s.seen.content, uid=s.seen.uid)
    return _plan(s, because, told, switch, AT_ONCE)


def take_over(s: Situation, because: str, message: str, evidence: tuple[Evidence, ...] = ()) -> Plan:
    """Move the pointer to this release; the pods that passed keep serving (R-34). Bake begins."""
    told = Told(
        "Bake", "Baking", message, evidence=evidence, weight=100,
        changes={"bake_observed_seconds": 0, "bake_last_look": None},
    )  # fmt: skip
    return _plan(s, because, told, replace(_switch(s, s.seen.name, None, 0, message), content=s.seen.content), AT_ONCE)


def go_back(
    s: Situation,
    because: str,
    reason: str,
    message: str,
    evidence: tuple[Evidence, ...] = (),
    phase: Phase = "RolledBack",
) -> Plan:
    """All traffic to the release before, in one step (R-42), whatever else is wrong; the spec is not touched (R-49)."""
    known = s.live is None or s.live.acknowledged
    told = Told(
        phase, reason, message, stalled=known, degraded=True, evidence=evidence, changes={"bake_last_look": None}
    )
    if s.seen.is_candidate and s.live:
        moving = replace(told, weight=0, stalled=False)
        return _plan(s, because, moving, _switch(s, s.live.serving, None, 0, message), AT_ONCE)
    if not s.seen.is_serving:
        return stay(s, because, told, AT_ONCE)
    if s.spec.rollback_to is None:
        return stay(
            s, because, replace(told, phase=s.phase, message=f"{message}; a first release has nothing to return to")
        )
    if not s.seen.target_reachable:
        why = f"{message}; the way back waits for {', '.join(s.seen.cold_target) or s.spec.rollback_to}"
        return stay(s, because, replace(told, phase=s.phase, message=why))
    moving = replace(told, weight=0, stalled=False)
    switch = replace(_switch(s, s.spec.rollback_to, None, 0, message), content=s.seen.target_content)
    return _plan(s, because, moving, switch, AT_ONCE)


def serve_again(s: Situation, because: str, message: str) -> Plan:
    """Store once more what served: nothing is stored."""
    told = Told(s.phase, "StoredAgain", message, weight=100, settled=s.phase == "Promoted")
    switch = replace(_switch(s, s.seen.name, None, 0, message), content=s.seen.content)
    return _plan(s, because, told, switch, AT_ONCE)


def is_over(s: Situation, because: str, told: Told) -> Plan:
    """Rest in a final phase."""
    return stay(s, because, told, REST)


def seconds_since(s: Situation, stamp: str | None) -> float:
    """From a timestamp of ours until now; 0 without one, and never negative."""
    at = parse_time(stamp)
    return max(0.0, (s.now - at).total_seconds()) if at else 0.0


def _stamp(s: Situation) -> str:
    return timestamp(s.now)


def _switch(s: Situation, serving: str, candidate: str | None, weight: int, because: str) -> Switch:
    return Switch(
        service=s.spec.service,
        serving=serving,
        candidate=candidate,
        weight_percent=weight,
        salt=salt(s.seen.uid, s.spec.attempt) if candidate else "",
        expected_resource_version=s.live.resource_version if s.live else None,
        because=because[:300],
    )


def _plan(s: Situation, because: str, told: Told, switch: Switch | None, look_again: timedelta, **more: Any) -> Plan:
    events: tuple[EventNote, ...] = ()
    if told.phase != s.seen.status.phase:
        kind = "Warning" if told.degraded or told.problem else "Normal"
        events = (EventNote(kind, told.phase, told.message[:500]),)
    return Plan(
        because=because,
        switch=switch,
        status=status_wire(s.seen, told, s.now),
        events=events,
        look_again=look_again,
        **more,
    )


def with_evaluation(s: Situation, because: str, told: Told, request: EvaluationRequest) -> Plan:
    """Say something and start the offline evaluation."""
    return _plan(s, because, told, None, SOON, evaluation=request)
