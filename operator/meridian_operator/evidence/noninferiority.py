"""Is the candidate at most `margin` worse than the control? One look at a planned n, and a guardrail against harm before it.

**The look.** Difference of two independent proportions, candidate minus control, with Newcombe's hybrid score interval
(R. G. Newcombe, Statistics in Medicine 17 (1998) 873-890, method 10): two Wilson intervals, combined. It needs no continuity
hack, keeps its level for rates near 1, and is never empty. At one-sided `alpha` the interval has level 1 - 2 alpha.

    lower > -margin                               Pass: a loss of `margin` or more is excluded
    upper < -margin                               Fail: a loss above `margin` is shown
    upper < 0 and point estimate <= -margin       Fail: shown to be worse, and by `margin` at best estimate
    otherwise                                     Inconclusive

The third line is why a candidate that is plainly worse need not wait for the second: for one that is truly equal its
probability is below alpha (upper < 0 alone has that), and for one that is truly `margin` worse Fail is the right answer.

**Harm, at every look.** A bad release must not wait for the planned n. Fail when the 99.9 % interval's upper end is below
-margin, with at least 30 judged requests in each arm. This is a guardrail, never a way to pass. Its false alarms: a candidate
exactly `margin` worse, which is not a good one, is stopped early with at most 0.0005 a look (Bonferroni over L looks: 0.0005 L,
far less in truth because looks share their data); one equal to the control would have to be off by `margin` on top of that,
which at 30 per arm, 0.9 and margin 0.10 is below 1e-5 a look.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from meridian_api.v1alpha1.release import Evidence, Verdict
from meridian_operator.planning.canary import PlannedSample, quantile

HARM_LEVEL = 0.999
HARM_MIN_PER_ARM = 30
TASK_SUCCESS = "task-success"
HARM = "task-success-harm"


@dataclass(frozen=True)
class Arm:
    """Judged requests of one arm, each counted once."""

    judged: int
    successes: int

    def __post_init__(self) -> None:
        if not 0 <= self.successes <= self.judged:
            raise ValueError(f"{self.successes} successes of {self.judged}")

    @property
    def rate(self) -> float:
        """Share of successes; only with judged > 0."""
        return self.successes / self.judged


@dataclass(frozen=True)
class Interval:
    """Of candidate minus control, in share."""

    low: float
    point: float
    high: float


def wilson(arm: Arm, z: float) -> tuple[float, float]:
    """The score interval of one proportion (Wilson 1927)."""
    n, p = arm.judged, arm.rate
    centre = p + z * z / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def newcombe(candidate: Arm, control: Arm, level: float) -> Interval:
    """The two-sided interval of the given level, e.g. 0.90 for a one-sided test at 5 %. Both arms need judged > 0."""
    z = quantile(1 - (1 - level) / 2)
    low_1, high_1 = wilson(candidate, z)
    low_2, high_2 = wilson(control, z)
    p1, p2 = candidate.rate, control.rate
    point = p1 - p2
    return Interval(point - math.hypot(p1 - low_1, high_2 - p2), point, point + math.hypot(high_1 - p1, p2 - low_2))


@dataclass(frozen=True)
class _Comparison:
    """Two arms under one name, and the verdict's common parts."""

    name: str
    candidate: Arm
    control: Arm
    margin: float
    planned: int | None = None

    def unclear(self, message: str) -> Evidence:
        return self._evidence("Inconclusive", "NotEnoughSamples", message, None)

    def says(self, verdict: Verdict, reason: str, interval: Interval, level: str) -> Evidence:
        one, two = self.candidate, self.control
        message = (
            f"task success {one.rate:.1%} ({one.successes}/{one.judged}) against {two.rate:.1%} ({two.successes}/{two.judged}),"
            f" {level} interval [{interval.low:+.3f}, {interval.high:+.3f}], margin {-self.margin:+.3f}"
        )
        return self._evidence(verdict, reason, message, interval)

    def _evidence(self, verdict: Verdict, reason: str, message: str, interval: Interval | None) -> Evidence:
        return Evidence(
            name=self.name,
            verdict=verdict,
            reason=reason,
            message=message,
            candidate_n=self.candidate.judged,
            candidate_successes=self.candidate.successes,
            control_n=self.control.judged,
            control_successes=self.control.successes,
            planned_n=self.planned,
            interval_low=round(interval.low, 4) if interval else None,
            interval_high=round(interval.high, 4) if interval else None,
            value=round(interval.point, 4) if interval else None,
            limit=-self.margin,
        )


def look(candidate: Arm, control: Arm, planned: PlannedSample, margin: float, alpha: float) -> Evidence:
    """The verdict at the planned n; below it, Inconclusive(NotEnoughSamples) with how far it is."""
    both = _Comparison(TASK_SUCCESS, candidate, control, margin, planned.candidate)
    if candidate.judged < max(planned.candidate, 1) or control.judged < max(planned.control, 1):
        return both.unclear(
            f"{candidate.judged} of {planned.candidate} judged requests of the candidate,"
            f" {control.judged} of {planned.control} of the control"
        )
    level = 1 - 2 * alpha
    interval = newcombe(candidate, control, level)
    shown = f"{100 * level:g} %"
    if interval.low > -margin:
        return both.says("Pass", "NotInferior", interval, shown)
    if interval.high < -margin or (interval.high < 0 and interval.point <= -margin):
        return both.says("Fail", "Inferior", interval, shown)
    return both.says("Inconclusive", "IntervalHoldsMargin", interval, shown)


def harm(candidate: Arm, control: Arm, margin: float) -> Evidence:
    """The guardrail at every look: Fail when harm beyond `margin` is already shown at 99.9 %, else nothing is claimed."""
    both = _Comparison(HARM, candidate, control, margin)
    if min(candidate.judged, control.judged) < HARM_MIN_PER_ARM:
        return both.unclear(f"fewer than {HARM_MIN_PER_ARM} judged requests in an arm")
    interval = newcombe(candidate, control, HARM_LEVEL)
    if interval.high < -margin:
        return both.says("Fail", "HarmShown", interval, "99.9 %")
    return both.says("Pass", "NoHarmShown", interval, "99.9 %")
