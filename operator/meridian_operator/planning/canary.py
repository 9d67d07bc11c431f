"""How many judged requests a canary needs: arithmetic, fixed before the first request.

Two questions, two formulas:

* **Non-inferiority, one-sided** (what a Release plans with). The candidate may lose less than `margin`. With control rate p
  and the candidate at the edge of what is allowed, p - margin, the normal approximation for two independent proportions is

      n_candidate = (z[1-alpha] + z[power])^2 * (v_candidate + v_control / k) / margin^2 ,   n_control = k * n_candidate

  with v = rate * (1 - rate), unpooled, and k control requests for each candidate request (Chow, Shao, Wang: Sample Size
  Calculations in Clinical Research, 3rd ed., section 4.2; Julious: Sample Sizes for Clinical Trials, chapter 11).
* **Two-sided difference** (the reference document's 564): n = (z[1-alpha/2] + z[power])^2 * 2 * p * (1 - p) / delta^2 per arm.

Both suppose independent requests and a reliable label; clustering and label error raise n and are not modelled here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

_NORMAL = NormalDist()


@dataclass(frozen=True)
class PlannedSample:
    """Judged requests per arm at which the one look is taken."""

    candidate: int
    control: int


def quantile(probability: float) -> float:
    """The standard normal quantile z."""
    return _NORMAL.inv_cdf(probability)


def plan_non_inferiority(
    baseline: float, margin: float, alpha: float, power: float, weight_percent: int
) -> PlannedSample:
    """The sample for a one-sided non-inferiority test when `weight_percent` of the traffic is the candidate's.

    Rates and margin are shares in (0, 1), alpha is one-sided. Raises ValueError without a control (weight 0 or 100), or
    when the margin is not below the baseline: then any candidate would be allowed.
    """
    if not 0 < weight_percent < 100:
        raise ValueError(f"a weight of {weight_percent} % leaves one arm empty")
    if margin >= baseline:
        raise ValueError(f"margin {margin} is not below the baseline {baseline}")
    edge = baseline - margin
    ratio = (100 - weight_percent) / weight_percent
    variance = edge * (1 - edge) + baseline * (1 - baseline) / ratio
    candidate = (quantile(1 - alpha) + quantile(power)) ** 2 * variance / margin**2
    return PlannedSample(_ceil(candidate), _ceil(candidate * ratio))


def two_sided_difference(
    baseline: float, delta: float, alpha: float = 0.05, power: float = 0.8, *, rounded: bool = False
) -> float:
    """Requests per arm to see a change of `delta`; `rounded` uses z to two places, as printed tables and the reference do."""
    z_alpha, z_power = quantile(1 - alpha / 2), quantile(power)
    if rounded:
        z_alpha, z_power = round(z_alpha, 2), round(z_power, 2)
    return (z_alpha + z_power) ** 2 * 2 * baseline * (1 - baseline) / delta**2


def seconds_to_collect(sample: PlannedSample, judged_per_second: float, weight_percent: int) -> float:
    """Seconds until both arms are full when `judged_per_second` requests in all get a label; infinite without traffic."""
    if judged_per_second <= 0:
        return math.inf
    share = weight_percent / 100
    return max(sample.candidate / (judged_per_second * share), sample.control / (judged_per_second * (1 - share)))


def _ceil(value: float) -> int:
    """The next integer, forgiving the last bits of floating point (155.0000000001 is 155)."""
    return math.ceil(value - 1e-9)
