"""The numbers of one look: evaluation report, judged outcomes, metrics. Failures are values; each read has 2 s."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

from meridian_api.v1alpha1.release import ReleaseSpec
from meridian_operator.cluster import Key, Manifest, Unreadable, find
from meridian_operator.converge import World
from meridian_operator.evidence.evaluation import REPORT, report_of
from meridian_operator.evidence.outcomes import COUNTS, Tally, Window, parameters, tally
from meridian_operator.evidence.prometheus import read_metrics, window
from meridian_operator.evidence.readings import Metrics
from meridian_operator.release.gates import evaluation_job
from meridian_operator.release.seen import JobState, Live, Seen, entered, parse_time

READ_SECONDS = 2.0


async def evaluation(world: World, key: Key, seen: Seen, phase: str) -> tuple[JobState, object | None]:
    """The Job first, then the report: a Job seen as done has written its report by then."""
    if phase not in ("Checks", "Queued", "OfflineEval"):
        return "absent", None
    attempt = seen.spec.attempt if isinstance(seen.spec, ReleaseSpec) else 1
    job = await find(world.cluster, "Job", key.namespace, evaluation_job(seen.uid, attempt, seen.name))
    state: JobState = "absent" if job is None else "running" if isinstance(job, Unreadable) else _job_state(job)
    rows = await _read(world, REPORT, (seen.uid, attempt))
    return state, rows if isinstance(rows, Unreadable) else report_of(rows)


def _job_state(job: Manifest) -> JobState:
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("status") == "True" and condition["type"] in ("Complete", "Failed"):
            return "succeeded" if condition["type"] == "Complete" else "failed"
    return "running"


async def counts(world: World, seen: Seen, spec: ReleaseSpec, phase: str) -> Tally | Unreadable | None:
    """Judged outcomes and records of both arms since this attempt's canary (or bake) began."""
    canary = phase in ("Canary", "Held")
    since = entered(seen.status, "Canary" if canary else "Bake")
    if since is None or not (canary or phase == "Bake"):  # not said yet: the next look has a window
        return None
    asked = Window(
        service=spec.service,
        release=seen.name,
        arm="candidate" if canary else "serving",
        control=seen.live.serving if canary and isinstance(seen.live, Live) else None,
        since=since,
        step_since=parse_time(seen.status.step_since) or since,
        label_delay=timedelta(seconds=spec.rollout.canary.label_delay_seconds),
        eligible_only=canary,
    )
    rows = await _read(world, COUNTS, parameters(asked, world.clock()))
    if isinstance(rows, Unreadable):
        return rows
    counted = tally(rows, asked)
    return counted if counted is not None else Unreadable("request_records", "the counts are not what was asked for")


async def metrics(world: World, seen: Seen, phase: str) -> Metrics | None:
    """What Prometheus says about the arm that this phase watches."""
    if phase not in ("Canary", "Held", "Bake"):
        return None
    began = (parse_time(seen.status.step_since) if phase != "Bake" else None) or entered(seen.status, phase)
    seconds = window(_elapsed(world.clock(), began))
    arm = "serving" if phase == "Bake" else "candidate"
    return await read_metrics(world.settings.prometheus_url, seen.name, arm, seconds)


def _elapsed(now: datetime, began: datetime | None) -> float:
    return (now - began).total_seconds() if began else 0.0


async def _read(world: World, sql: str, asked: tuple[object, ...]) -> list[dict[str, Any]] | Unreadable:
    try:
        return await asyncio.wait_for(world.store.read(sql, asked), READ_SECONDS)
    except TimeoutError:
        return Unreadable("postgresql", f"no answer in {READ_SECONDS:.0f} s")
