"""The one write that changes traffic, and the copy that data-plane pods can start from without control plane.

A crash between the two writes is healed by the kind ServingConfig, which compares the copy at every look (K-17).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any

from meridian_api.meta import API_VERSION
from meridian_api.serving import Envelope, Snapshot
from meridian_operator.cluster import Conflict, Manifest, Refused
from meridian_operator.converge import World
from meridian_operator.logs import log
from meridian_operator.plan import Switch
from meridian_operator.serving import contents, shrinkage, wakeups
from meridian_operator.serving.compile import Pointer, Problem, Stamp, compile_snapshot
from meridian_operator.serving.copies import config_map
from meridian_operator.serving.gather import gather_sources, keep_unreadable_tenants, read_stored
from meridian_operator.serving.sign import KeyUnusable, load_key, sign
from meridian_operator.serving.stored import Stored, reason_to_write


class CannotCompile(Refused):
    """What the switch asks for cannot be served; the message names every missing piece."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("; ".join(problem.message for problem in problems)[:1000])
        self.problems = problems


async def commit(switch: Switch, world: World, namespace: str) -> Envelope:
    """Carry out `switch`; answers what is stored afterwards, which is what was stored before if that serves alike.

    Raises Conflict when the ServingConfig is not the one that was seen (read and decide again), CannotCompile, Deposed,
    and other ClusterErrors, after which nothing is known about the write.
    """
    settings = world.settings
    try:
        key = load_key(Path(settings.signing_dir))
    except KeyUnusable as unusable:
        raise Refused(f"signing key: {unusable}") from None
    stored = await read_stored(world.cluster, settings, switch.service, key, namespace)
    live = stored.manifest["metadata"]["resourceVersion"] if stored else None
    if live != switch.expected_resource_version:
        raise Conflict(f"ServingConfig {switch.service} is at {live}, seen was {switch.expected_resource_version}")
    last = stored.snapshot if stored else None
    pointer = _pointer(switch, last)
    releases = filter(None, (pointer.serving, pointer.candidate))
    sources = await gather_sources(world.cluster, namespace, switch.service, settings.region, releases)
    tenants, _ = keep_unreadable_tenants(sources, last)
    spec = stored.manifest["spec"] if stored else {}
    gets = switch.candidate or switch.serving
    if switch.content is not None and contents.digest(spec, sources, gets) != switch.content:
        why = f"Release {gets} does not declare what was judged: it was made again with other content"
        raise CannotCompile((Problem("ReleaseReplaced", why),))
    seen_missing = shrinkage.LOOKS.missing_before(switch.service, time.monotonic())
    refused = stored is not None and shrinkage.refused_as_shrunken(stored.manifest)
    settled = shrinkage.settle(tenants, last, seen_missing, refused)
    stamp = Stamp(
        generation=stored.next_generation if stored else 1,
        lease_epoch=world.fence(),
        issued_at=world.clock().astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        shrink_confirmed=settled.confirmed or _still_shrinking(stored),
    )
    made = compile_snapshot(replace(sources, tenants=settled.tenants), pointer, stamp, last)
    if isinstance(made, tuple):
        raise CannotCompile(made)
    why = reason_to_write(stored, made.snapshot, key.key_id)
    if why is None and stored is not None:
        await world.cluster.apply(config_map(stored.manifest, stored.envelope))
        return stored.envelope
    envelope = sign(made.snapshot, key)
    known = contents.fields(spec, sources, made, switch.uid)
    written = await _write(world, namespace, stored, made.snapshot, envelope, known)
    log(
        "commit",
        key=f"ServingConfig/{namespace}/{switch.service}",
        generation=envelope.generation,
        because=switch.because,
        detail=why,
    )
    wakeups.LOCAL.notify(switch.service)
    await world.cluster.apply(config_map(written, envelope))
    return envelope


def _pointer(switch: Switch, last: Snapshot | None) -> Pointer:
    """What the switch asks for; the shadow share, which a switch does not name, stays with its candidate."""
    shadow = 0
    if last and last.candidate and last.candidate.manifest.release == switch.candidate:
        shadow = last.candidate.shadow_percent
    if switch.candidate is None:
        return Pointer(switch.serving)
    return Pointer(switch.serving, switch.candidate, switch.weight_percent, switch.salt, shadow)


def _still_shrinking(stored: Stored | None) -> bool:
    """A confirmed shrink stays so until every known replica has taken it: one that missed it would refuse all later ones."""
    if stored is None or stored.snapshot is None or not stored.snapshot.shrink_confirmed:
        return False
    reports = (stored.manifest.get("status") or {}).get("replicas") or ()
    return any(report.get("generation", 0) < stored.envelope.generation for report in reports)


async def _write(
    world: World,
    namespace: str,
    stored: Stored | None,
    snapshot: Snapshot,
    envelope: Envelope,
    known: Mapping[str, Any],
) -> Manifest:
    trial = snapshot.candidate
    spec = {
        "service": snapshot.service,
        "region": snapshot.region,
        "leaseEpoch": snapshot.lease_epoch,
        **envelope.to_wire(),
        "serving": snapshot.serving.release,
        "candidate": trial.manifest.release if trial else "",
        "candidateWeightPercent": trial.weight_percent if trial else 0,
        **known,
    }
    if stored is not None:
        return await world.cluster.replace({**stored.manifest, "spec": spec})
    metadata = {
        "name": snapshot.service,
        "namespace": namespace,
        "labels": {"app.kubernetes.io/part-of": "meridian"},
    }
    return await world.cluster.create(
        {"apiVersion": API_VERSION, "kind": "ServingConfig", "metadata": metadata, "spec": spec}
    )
