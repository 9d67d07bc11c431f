"""How far a build is. The store's row decides what is built; the Job's status only tells that nobody works any more."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from meridian_api.meta import ConfigMapRef
from meridian_operator.cluster import Unreadable
from meridian_operator.conditions import Say, conditions, cut, is_true, kstatus, timestamp
from meridian_operator.indexepoch.objects import job_name
from meridian_operator.indexepoch.seen import Observed
from meridian_operator.plan import REST, SOON, EnsureEpoch, EventNote, Plan

Rule = Callable[[Observed, datetime], Plan | None]
ACCEPTED = Say("Accepted", True, "Valid")


def decide(seen: Observed, now: datetime) -> Plan:
    """The first rule that answers; the last always does."""
    return next(plan for rule in RULES if (plan := rule(seen, now)) is not None)


def leave_if_deleting(seen: Observed, now: datetime) -> Plan | None:
    """The Job goes by garbage collection (K-21)."""
    return Plan("leave_if_deleting") if seen.object["metadata"].get("deletionTimestamp") else None


def refuse_what_is_invalid(seen: Observed, now: datetime) -> Plan | None:
    """What got past the schema gives a condition (K-35)."""
    return None if seen.spec is not None else _refused(seen, now, "SpecInvalid", seen.problem)


def report_what_is_built(seen: Observed, now: datetime) -> Plan | None:
    """First among the rules of substance: a finished index stays finished, whatever became of its sources and its Job."""
    if not isinstance(seen.build, dict) or seen.build["state"] != "built" or seen.spec is None:
        return None
    recall, floor = seen.build["recall_at_6"], seen.spec.min_recall_at_6
    if floor > 0 and (recall is None or not recall >= floor):  # NaN is below every floor
        measured = "was not measured" if recall is None else f"is {recall:.3f}"
        return _failed(seen, now, "RecallBelowFloor", f"recall at 6 {measured}, the floor is {floor:.3f}")
    said = kstatus(ACCEPTED, Say("Built", True, "Complete"), _serving(seen))
    fresh = not is_true(seen.object.get("status"), "Built")
    note = EventNote("Normal", "Built", f"{seen.build['documents']} documents in {seen.build['chunks']} chunks")
    return Plan("report_what_is_built", status=_status(seen, said, "Built", now), events=(note,) if fresh else ())


def wait_for_what_is_unreadable(seen: Observed, now: datetime) -> Plan | None:
    """Nothing is created or called failed while a source is silent."""
    silent = (seen.tenants, seen.digests, seen.partitions, seen.job, seen.build)
    first = next((s for s in silent if isinstance(s, Unreadable)), None)
    if first is None:
        return None
    before = seen.object.get("status") or {}
    built = True if is_true(before, "Built") else None
    said = kstatus(ACCEPTED, Say("Built", built, "SourceSilent", f"{first.source}: {first.why}"))
    phase = before.get("phase", "Pending")
    return Plan("wait_for_what_is_unreadable", status=_status(seen, said, phase, now), look_again=SOON)


def need_tenants(seen: Observed, now: datetime) -> Plan | None:
    """An index for a tenant that nobody onboarded; it goes on when the policy appears."""
    assert seen.spec is not None and not isinstance(seen.tenants, Unreadable)
    missing = sorted(set(seen.spec.tenants) - seen.tenants)
    if not missing:
        return None
    return _refused(seen, now, "TenantUnknown", f"no TenantPolicy has tenantId {', '.join(missing)}")


def stay_in_the_region(seen: Observed, now: datetime) -> Plan | None:
    """Residency holds for a build as for an answer, before any document is read (T-41)."""
    return _refused(seen, now, "RegionNotAllowed", "; ".join(seen.outside)) if seen.outside else None


def need_sources(seen: Observed, now: datetime) -> Plan | None:
    """Every ConfigMap is there and is, byte for byte, the one that was meant."""
    assert seen.spec is not None and not isinstance(seen.digests, Unreadable)
    named: list[ConfigMapRef] = [s.config_map for s in seen.spec.sources if s.config_map is not None]
    if seen.spec.golden_set is not None:
        named.append(seen.spec.golden_set)
    for want in named:
        live = seen.digests.get(want.name)
        if live is None:
            return _refused(seen, now, "SourceMissing", f"there is no ConfigMap {want.name}")
        if live != want.digest:
            why = f"ConfigMap {want.name} has digest {live}, the spec names {want.digest}"
            return _refused(seen, now, "DigestDiffers", why)
    return None


def make_partitions(seen: Observed, now: datetime) -> Plan | None:
    """A partition of each tenant for this epoch, before anything is written."""
    assert seen.spec is not None and not isinstance(seen.partitions, Unreadable)
    missing = sorted(set(seen.spec.tenants) - seen.partitions)
    if not missing:
        return None
    name = seen.object["metadata"]["name"]
    said = kstatus(ACCEPTED, Say("Built", False, "MakingPartitions", f"partitions for {', '.join(missing)}"))
    return Plan(
        "make_partitions",
        store=tuple(EnsureEpoch(tenant, name) for tenant in missing),
        status=_status(seen, said, "Pending", now),
        look_again=SOON,
    )


def leave_foreign_job(seen: Observed, now: datetime) -> Plan | None:
    """Never overwrite what somebody else made (K-10, T-51)."""
    if not seen.job_is_foreign:
        return None
    why = f"Job {job_name(seen.object['metadata']['name'])} exists and is not this epoch's; it is left alone"
    return _failed(seen, now, "ForeignOwner", why)


def start_the_job(seen: Observed, now: datetime) -> Plan | None:
    """Create it once: its template is immutable, so an operator upgrade never touches a running one (K-31)."""
    if seen.job is not None or seen.wanted_job is None:
        return None
    said = kstatus(ACCEPTED, Say("Built", False, "Building", "the index Job is being created"))
    return Plan("start_the_job", apply=(seen.wanted_job,), status=_status(seen, said, "Building", now), look_again=SOON)


def fail_with_the_job(seen: Observed, now: datetime) -> Plan | None:
    """The Job gave up. Its own word in the store, where there is one, says why."""
    assert isinstance(seen.job, dict)
    told = seen.build["error"] if isinstance(seen.build, dict) else ""
    failed = next((c for c in _job_conditions(seen) if c["type"] == "Failed" and c["status"] == "True"), None)
    if failed is None:
        return None
    why = told or failed.get("message") or failed.get("reason") or "the Job failed"
    name = seen.job["metadata"]["name"]
    return _failed(seen, now, "JobFailed", f"{why}; delete Job {name} to try again")


def building(seen: Observed, now: datetime) -> Plan:
    """Total: the Job is at work, or has ended and its result is about to be read."""
    done, total = seen.progress.get("documents", 0), seen.progress.get("documents_total", 0)
    told = seen.build["error"] if isinstance(seen.build, dict) else ""
    message = f"{done} of {total} documents" + (f"; {told}" if told else "")
    said = kstatus(ACCEPTED, Say("Built", False, "Building", message))
    return Plan("building", status=_status(seen, said, "Building", now), look_again=SOON)


RULES: tuple[Rule, ...] = (
    leave_if_deleting,
    refuse_what_is_invalid,
    report_what_is_built,
    wait_for_what_is_unreadable,
    need_tenants,
    stay_in_the_region,
    need_sources,
    make_partitions,
    leave_foreign_job,
    start_the_job,
    fail_with_the_job,
    building,
)


def _job_conditions(seen: Observed) -> list[dict[str, Any]]:
    assert isinstance(seen.job, dict)
    return (seen.job.get("status") or {}).get("conditions") or []


def _serving(seen: Observed) -> Say:
    return Say("Serving", seen.serving, "InServingConfig" if seen.serving else "NotRouted")


def _refused(seen: Observed, now: datetime, reason: str, message: str) -> Plan:
    """What a person, or an object yet to appear, has to put right; looked at again with every resync."""
    said = kstatus(Say("Accepted", False, reason, message), Say("Built", False, reason), stalled=True)
    notes = (EventNote("Warning", reason, message),)
    return Plan(reason, status=_status(seen, said, "Pending", now), events=notes, look_again=REST)


def _failed(seen: Observed, now: datetime, reason: str, message: str) -> Plan:
    said = kstatus(ACCEPTED, Say("Built", False, reason, message), stalled=True)
    notes = (EventNote("Warning", reason, message),)
    return Plan(reason, status=_status(seen, said, "Failed", now), events=notes, look_again=REST)


def _status(seen: Observed, said: tuple[Say, ...], phase: str, now: datetime) -> dict[str, Any]:
    """The whole status. Facts of the build come from the store; while it is silent, what was last known stays."""
    before = seen.object.get("status") or {}
    generation = int(seen.object["metadata"].get("generation", 0))
    build = seen.build if isinstance(seen.build, dict) else {}
    facts = build if build.get("state") == "built" else seen.progress
    failing = next((s for s in said if s.type == "Ready" and s.status is not True), None)
    needed = before.get("neededBy") or [] if isinstance(seen.needed_by, Unreadable) else list(seen.needed_by)[:32]
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "conditions": conditions(before, said, generation=generation, now=now),
        "phase": phase,
        "documents": int(facts.get("documents", before.get("documents", 0))),
        "documentsTotal": int(facts.get("documents_total", before.get("documentsTotal", 0))),
        "chunks": int(facts.get("chunks", before.get("chunks", 0))),
        "corpusFingerprint": build.get("corpus_fingerprint") or before.get("corpusFingerprint", ""),
        "neededBy": needed,
        "message": cut(failing.message if failing else ""),
    }
    if isinstance(seen.job, dict) or before.get("job"):
        status["job"] = job_name(seen.object["metadata"]["name"])
    recall = build.get("recall_at_6", before.get("recallAt6"))
    if recall is not None and 0 <= recall <= 1:
        status["recallAt6"] = round(float(recall), 6)
    if built_at := build.get("built_at"):
        status["builtAt"] = timestamp(built_at)
    elif before.get("builtAt"):
        status["builtAt"] = before["builtAt"]
    return status
