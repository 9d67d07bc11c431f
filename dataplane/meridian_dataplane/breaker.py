"""Health of targets from their own last calls. One per target and process; no shared state, nothing to ask over the network."""

from __future__ import annotations

from collections import deque

from meridian_api.serving import Target
from meridian_api.v1alpha1.settings import Breaker
from meridian_dataplane.ports import Clock

COOL_DOWN_S = 5.0
_LEAST_CALLS = 5


class TargetBreaker:
    """Closed, open for a while, then half open with one trial call at a time (S-82, G-14)."""

    def __init__(self, limits: Breaker, clock: Clock) -> None:
        self._limits, self._clock = limits, clock
        self._calls: deque[bool] = deque(maxlen=limits.window)
        self._open_until: float | None = None
        self._trial_until = 0.0

    def healthy(self) -> bool:
        """Whether a call may start. Pure: asking claims nothing."""
        if self._open_until is None:
            return True
        now = self._clock.monotonic()
        return now >= self._open_until and now >= self._trial_until

    def started(self) -> None:
        """A call starts; half open, this one is the trial and others wait for its end."""
        if self._open_until is not None:
            self._trial_until = self._clock.monotonic() + COOL_DOWN_S

    def succeeded(self) -> None:
        if self._open_until is not None:
            self._calls.clear()
        self._open_until, self._trial_until = None, 0.0
        self._calls.append(True)

    def failed(self) -> None:
        self._calls.append(False)
        failures = self._calls.count(False)
        enough = len(self._calls) >= min(_LEAST_CALLS, self._limits.window)
        ratio = failures / len(self._calls)
        if self._open_until is not None or (enough and ratio > self._limits.open_at_failure_ratio):
            self._open_until = self._clock.monotonic() + COOL_DOWN_S
            self._trial_until = 0.0

    def abandoned(self) -> None:
        """The caller left, or the request was at fault: says nothing about the target, and frees the trial."""
        self._trial_until = 0.0


class Health:
    """The breakers of all targets that were called, by pool and version."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._breakers: dict[tuple[str, str, str], TargetBreaker] = {}

    def of(self, target: Target, limits: Breaker | None = None) -> TargetBreaker:
        key = (target.pool, target.version, target.region)
        if key not in self._breakers:
            self._breakers[key] = TargetBreaker(limits or Breaker(), self._clock)
        return self._breakers[key]

    def healthy(self, target: Target) -> bool:
        return self.of(target).healthy()
