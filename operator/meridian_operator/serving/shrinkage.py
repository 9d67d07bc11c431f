"""A tenant list that shrinks a lot at once is believed only when two lists in a row say so (F-03, F-04)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from meridian_api.serving import ServingTenant, Snapshot

REFUSED = "*refused*"
"""Stands among the missing ids for those that only replicas know; no tenant id has such letters."""
SHARE = 0.20
COUNT = 3
ENDED = "1970-01-01T00:00:00Z"
"""`notAfter` of the tenants of a service that has none left."""
APART_SECONDS = 2.0
"""Between two lists that count as two."""


@dataclass(frozen=True)
class Settled:
    """The tenants to compile with. `kept` are absent from the list but not yet believed to be gone."""

    tenants: tuple[ServingTenant, ...]
    kept: tuple[str, ...] = ()
    confirmed: bool = False
    """The list shrank a lot, and that was seen twice."""
    doubted: bool = False
    """Replicas hold more tenants than what is stored, and refused it; one list has said so far that these are all."""


def is_large(before: Collection[str], missing: Collection[str]) -> bool:
    """Over 20 % and over 3 gone; an empty list after one that was not is large too."""
    if not missing:
        return False
    return len(missing) > SHARE * len(before) and (len(missing) > COUNT or len(missing) == len(before))


def refused_as_shrunken(manifest: Mapping[str, Any]) -> bool:
    """Whether a replica refused the stored generation for its missing tenants, and nothing in it says that they may be.

    So it is after a ServingConfig was deleted and stored again: what replicas hold is not what is compared with here.
    """
    reports = (manifest.get("status") or {}).get("replicas") or ()
    stored = manifest["spec"]["generation"]
    return any(r.get("refusedGeneration", 0) >= stored and r.get("reason") == "shrunken" for r in reports)


def settle(
    live: Iterable[ServingTenant], last: Snapshot | None, seen_missing: Collection[str], refused: bool = False
) -> Settled:
    """What of `live` is believed, given the stored snapshot and the ids that an earlier list missed too; `refused` says that
    replicas refused what is stored as shrunken.
    """
    tenants = tuple(live)
    if last is None:
        return Settled(tenants)
    if refused and tenants:
        again = REFUSED in seen_missing
        return Settled(tenants, confirmed=again, doubted=not again)
    now = {tenant.tenant_id for tenant in tenants}
    before = {tenant.tenant_id: tenant for tenant in last.tenants}
    missing = before.keys() - now
    if not is_large(before, missing):
        return Settled(tenants)
    doubtful = sorted(missing - set(seen_missing))
    if not doubtful and not tenants:
        # Replicas refuse a configuration for nobody as blank (F-03), so the last ones stay in it with their time ended: their
        # tokens are refused (T-23), and a switch can still be compiled.
        return Settled(tuple(t.model_copy(update={"not_after": ENDED}) for t in before.values()), confirmed=True)
    if not doubtful:
        return Settled(tenants, confirmed=True)
    return Settled((*tenants, *(before[name] for name in sorted(missing))), kept=tuple(sorted(missing)))


@dataclass
class Looks:
    """Which tenants of a service earlier lists missed, and since when (monotonic). In memory: a new leader looks twice."""

    since: dict[str, dict[str, float]] = field(default_factory=dict)

    def saw(self, service: str, missing: Collection[str], at: float) -> None:
        """Note one list: those back in it are forgotten."""
        earlier = self.since.get(service, {})
        self.since[service] = {name: earlier.get(name, at) for name in missing}

    def missing_before(self, service: str, at: float) -> frozenset[str]:
        """Ids that a list at least APART_SECONDS before `at` missed, and every one since."""
        return frozenset(name for name, first in self.since.get(service, {}).items() if at - first >= APART_SECONDS)


LOOKS = Looks()
"""This process's memory; only the leader looks."""
