"""What PostgreSQL knows of a release's requests: judged outcomes, citations, errors, cost; each request id once.

`request_records` and `outcomes` have (tenant_id, request_id) as their key, so that the join counts a request once however
often it was judged. A degraded answer is an error of its release here: its primary model did not answer, and the ladder that
is kind to the user, the fallback model included, must not hide it (R-17). Requests younger than the label delay are left out,
good and bad alike (R-16). Cache hits and tenants that may not enter a canary are in neither arm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

COUNTS = """
select r.release, r.arm,
       count(*)                                                               as requests,
       count(*) filter (where r.state = 'error' or r.degraded <> 'full')         as errors,
       coalesce(sum(r.citations_total), 0)                                    as citations,
       coalesce(sum(r.citations_invalid), 0)                                  as citations_invalid,
       count(o.request_id) filter (where matured)                             as judged,
       count(o.request_id) filter (where matured and o.success)               as successes,
       count(*) filter (where in_step)                                        as step_requests,
       count(o.request_id) filter (where matured and in_step)                 as step_judged,
       count(o.request_id) filter (where matured and in_step and o.success)   as step_successes,
       coalesce(sum(r.cost_usd) filter (where matured and o.request_id is not null), 0)::float8 as judged_cost_usd
  from (select *, started_at <= %s as matured, started_at >= %s as in_step
          from meridian.request_records
         where service = %s and not cache_hit and (canary_eligible or not %s) and started_at >= %s
           and ((release = %s and arm = %s) or (release = %s and arm = 'serving'))
           and state not in ('refused', 'cancelled')) r
  left join meridian.outcomes o using (tenant_id, request_id)
 group by r.release, r.arm
"""


@dataclass(frozen=True)
class Window:
    """Which requests a look counts. `control` is None in Bake, where there is no concurrent control."""

    service: str
    release: str
    arm: str
    control: str | None
    since: datetime
    """Start of the canary (or bake) of this attempt: what another attempt saw does not count (R-05)."""
    step_since: datetime
    label_delay: timedelta
    eligible_only: bool


@dataclass(frozen=True)
class Counts:
    """One arm. `step_*`: since the present step began; the others: since the canary of this attempt began."""

    requests: int = 0
    errors: int = 0
    citations: int = 0
    citations_invalid: int = 0
    judged: int = 0
    successes: int = 0
    step_requests: int = 0
    step_judged: int = 0
    step_successes: int = 0
    judged_cost_usd: float = 0.0


@dataclass(frozen=True)
class Tally:
    """Both arms of one look."""

    candidate: Counts
    control: Counts


def parameters(window: Window, now: datetime) -> tuple[object, ...]:
    """In the order of `COUNTS`."""
    return (
        now - window.label_delay,
        window.step_since,
        window.service,
        window.eligible_only,
        window.since,
        window.release,
        window.arm,
        window.control or "",
    )


def tally(rows: Iterable[Mapping[str, Any]], window: Window) -> Tally | None:
    """The rows of `COUNTS`; an arm without rows has zero requests. None when a row is not what the query returns."""
    found: dict[tuple[str, str], Counts] = {}
    names = [name for name in Counts.__dataclass_fields__ if name != "judged_cost_usd"]
    try:
        for row in rows:
            counts = Counts(**{name: int(row[name]) for name in names}, judged_cost_usd=float(row["judged_cost_usd"]))
            if min(counts.__dict__.values()) < 0 or counts.successes > counts.judged or counts.judged > counts.requests:
                return None
            found[row["release"], row["arm"]] = counts
    except (KeyError, TypeError, ValueError):
        return None
    control = found.get((window.control, "serving")) if window.control else None
    return Tally(found.get((window.release, window.arm), Counts()), control or Counts())
