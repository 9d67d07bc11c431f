"""What this replica serves by, in memory. The swap is one assignment; requests keep the snapshot they began with."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

from meridian_api.serving import Snapshot
from meridian_dataplane.configuration import keep
from meridian_dataplane.configuration.verify import Accepted, Receiver, Refused, read_keys, verify
from meridian_dataplane.ports import Clock
from meridian_dataplane.telemetry import Metrics, log, log_failure

MOUNTED = "envelope.json"


@dataclass(frozen=True)
class Source:
    """Where snapshots come from and are kept, and whom they must be meant for."""

    service: str
    region: str
    state_dir: Path
    mount: Path
    keys_dir: Path
    url: str | None = None
    token_file: Path | None = None


class Live:
    """The applied snapshot, what was refused, and when the control plane was last heard of."""

    def __init__(self, source: Source, clock: Clock, metrics: Metrics) -> None:
        self._source, self._clock, self._metrics = source, clock, metrics
        self.snapshot: Snapshot | None = None
        self.digest = ""
        """Of the envelope that the snapshot came in: two histories may have the same generation."""
        self.highest = 0
        """Highest generation ever accepted; below it nothing is, whoever signs it (IV-07)."""
        self.refused: Refused | None = None
        self._contact_at = clock.monotonic()
        self._changed = asyncio.Event()
        self._offering = asyncio.Lock()

    @property
    def contact_age(self) -> float:
        """Seconds since the control plane answered; since the start when it never did."""
        return self._clock.monotonic() - self._contact_at

    @property
    def stale(self) -> bool:
        """Past the soft expiry: goes on serving, and says so."""
        return self.snapshot is not None and self.contact_age > self.snapshot.soft_expiry_seconds

    def heard(self) -> None:
        """The control plane answered."""
        self._contact_at = self._clock.monotonic()
        self.report_age()

    def report_age(self) -> None:
        self._metrics.config_contact.set(self.contact_age)
        self._metrics.stale.set(1 if self.stale else 0)

    async def offer(self, raw: bytes, *, source: str) -> Accepted | Refused:
        """Verify `raw` off the loop; accepted, it serves at once and is then kept on disk."""
        async with self._offering:
            current = self.snapshot
            # A start from the older of two files may take up the newest generation again; below it nothing is taken.
            behind = current is None or current.generation < self.highest
            least = self.highest if behind else self.highest + 1
            judged = await asyncio.to_thread(
                lambda: verify(raw, self._receiver(), current=current, least_generation=max(1, least))
            )
            if isinstance(judged, Refused):
                self._refuse(judged, source)
                return judged
            self._apply(judged, source)
            await self._keep(judged)
            return judged

    async def start(self) -> None:
        """The newest valid one of what is on disk and what is mounted; none of them is no reason to end (F-05, F-12)."""
        best = await asyncio.to_thread(self._best_stored)
        if best is not None:
            self._apply(best, "start")
            await self._keep(best)
        else:
            log("config_none_stored", generation=0)

    def mounted(self) -> bytes | None:
        """The mounted envelope, if there is one. Blocking."""
        try:
            return (self._source.mount / MOUNTED).read_bytes()
        except OSError:
            return None

    def _receiver(self) -> Receiver:
        # The folder is read each time: a rotated key is known without a restart (F-10).
        source = self._source
        return Receiver(source.service, source.region, read_keys(source.keys_dir))

    def _best_stored(self) -> Accepted | None:
        receiver = self._receiver()
        self.highest = keep.highest(self._source.state_dir)

        def judged(raw: bytes, least: int) -> Accepted | None:
            found = verify(raw, receiver, current=None, least_generation=least)
            if isinstance(found, Refused):
                self._refuse(found, "start")
                return None
            return found

        # What was kept has been accepted before, so the older of two may serve although the newer is damaged.
        candidates = [judged(raw, 1) for raw in keep.kept(self._source.state_dir)]
        mounted = self.mounted()
        if mounted is not None:
            candidates.append(judged(mounted, max(1, self.highest)))
        valid = [one for one in candidates if one is not None]
        return max(valid, key=lambda one: one.snapshot.generation, default=None)

    def _apply(self, accepted: Accepted, source: str) -> None:
        self.snapshot, self.digest = accepted.snapshot, digest_in(accepted.raw)
        self.highest = max(self.highest, accepted.snapshot.generation)
        self.refused = None
        self._metrics.generation.set(accepted.snapshot.generation)
        self._changed.set()
        log("config_applied", generation=accepted.snapshot.generation, source=source)

    def _refuse(self, refused: Refused, source: str) -> None:
        if refused.reason == "old_generation" and source != "poll":
            # The mounted copy lags behind the poll by a minute; that is no alarm.
            return
        self.refused = refused
        self._metrics.config_refused.labels(refused.reason).inc()
        log("config_refused", generation=refused.generation, reason=refused.reason, source=source)

    async def _keep(self, accepted: Accepted) -> None:
        try:
            await asyncio.to_thread(keep.keep, self._source.state_dir, accepted.snapshot.generation, accepted.raw)
        except OSError as full:
            # Memory serves; only a restart without control plane would miss this one.
            self._metrics.config_disk_failures.inc()
            log_failure("config_not_kept", full, generation=accepted.snapshot.generation)


def digest_in(raw: bytes) -> str:
    """The digest that a verified envelope names."""
    return str(json.loads(raw).get("digest", ""))
