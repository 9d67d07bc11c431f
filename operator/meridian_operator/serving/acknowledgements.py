"""Which replicas have applied a generation: reports of the long poll, kept in ServingConfig.status (the idea of ACK and NACK)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from meridian_api.v1alpha1.servingconfig import ReplicaReport, ServingConfigStatus

REASON_LIMIT = 256
_REPLICA = re.compile(r"^[a-z0-9]([-.a-z0-9]{0,118}[a-z0-9])?$")
_DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$")
_UNPRINTABLE = re.compile(r"[^\x21-\x7e]+")


@dataclass(frozen=True)
class Acknowledged:
    """Every ready replica has applied the generation, or a later one."""

    replicas: int


@dataclass(frozen=True)
class Waiting:
    """These ready replicas have not; `refused` has the reasons of those that refused it."""

    names: tuple[str, ...]
    refused: tuple[tuple[str, str], ...] = ()

    def sentence(self, generation: int) -> str:
        """For a status message."""
        told = dict(self.refused)
        parts = [f"{name} (refused: {told[name]})" if name in told else name for name in self.names[:5]]
        more = f" and {len(self.names) - 5} more" if len(self.names) > 5 else ""
        return f"generation {generation} is not applied by {', '.join(parts)}{more}" if parts else "no replica is ready"


def acknowledged(
    status: ServingConfigStatus, ready_replicas: Collection[str], generation: int, digest: str = ""
) -> Acknowledged | Waiting:
    """Whether traffic really follows `generation` with the bytes of `digest` (any when empty).

    Without any ready replica nothing is known, so it is Waiting.
    """
    reports = {report.replica: report for report in status.replicas}
    late = []
    refused = []
    for name in sorted(ready_replicas):
        report = reports.get(name)
        if report is not None and has_applied(report, generation, digest):
            continue
        late.append(name)
        if report is not None and report.refused_generation >= generation:
            refused.append((name, report.reason))
    if late or not ready_replicas:
        return Waiting(tuple(late), tuple(refused))
    return Acknowledged(len(ready_replicas))


def has_applied(report: ReplicaReport, generation: int, digest: str) -> bool:
    """This generation and these bytes. A higher one is of a history that was deleted, or that a restored etcd lost: such a
    replica follows something else (F-07). An older data plane names no digest, and is believed.
    """
    return report.generation == generation and (not report.digest or not digest or report.digest == digest)


def clean_report(replica: str, applied: int, refused: int, reason: str, digest: str = "") -> ReplicaReport | None:
    """A report as it may enter status: names checked, text printable and bounded (K-28). None when the name is no pod's."""
    if not _REPLICA.match(replica):
        return None
    text = _UNPRINTABLE.sub(" ", reason).strip()[:REASON_LIMIT] if refused > applied else ""
    return ReplicaReport(
        replica=replica,
        generation=max(0, applied),
        refused_generation=refused if refused > applied else 0,
        reason=text,
        digest=digest if _DIGEST.match(digest) else None,
    )


def merge(
    status: ServingConfigStatus, reports: Iterable[ReplicaReport], gone: Collection[str] = ()
) -> ServingConfigStatus:
    """Status with newer reports in it. `highestAccepted` never falls; replicas in `gone` are dropped.

    A report with a lower generation than the stored one replaces it: a pod's emptyDir can be lost, and what counts is what
    the replica has now. Equal in, equal out, so that the caller can skip the write (K-27).
    """
    by_name = {report.replica: report for report in status.replicas if report.replica not in gone}
    for report in reports:
        by_name[report.replica] = report
    replicas = tuple(by_name[name] for name in sorted(by_name))[:500]
    highest = max([status.highest_accepted, *(report.generation for report in replicas)])
    everywhere = min((report.generation for report in replicas), default=0)
    return status.model_copy(update={"replicas": replicas, "acknowledged": everywhere, "highest_accepted": highest})
