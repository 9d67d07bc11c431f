"""One look at the stored object and at everything it was compiled from."""

from __future__ import annotations

import time

from meridian_api.serving import ServingTenant, Snapshot
from meridian_operator.cluster import ClusterError, Key, Unreadable, find
from meridian_operator.converge import World
from meridian_operator.serving import shrinkage, wakeups
from meridian_operator.serving.compile import Pointer, Problem
from meridian_operator.serving.gather import (
    gather_sources,
    keep_unreadable_tenants,
    open_stored,
    signing_key,
)
from meridian_operator.serving.shrinkage import Settled
from meridian_operator.serving.sign import KeyUnusable
from meridian_operator.servingconfig.seen import Observed


async def observe(key: Key, world: World) -> Observed | Unreadable | None:
    """None when there is no ServingConfig; Unreadable when any part did not answer, so that nothing partial is compiled."""
    manifest = await find(world.cluster, key.kind, key.namespace, key.name)
    if manifest is None or isinstance(manifest, Unreadable):
        return manifest
    signing = signing_key(world.settings.signing_dir)
    if isinstance(signing, KeyUnusable):
        return Unreadable("signing key", str(signing))
    copy = await find(world.cluster, "ConfigMap", key.namespace, f"meridian-config-{key.name}")
    if isinstance(copy, Unreadable):
        return copy
    try:
        stored = await open_stored(world.cluster, world.settings, manifest, signing)
    except ClusterError as error:
        return Unreadable("public keys", str(error)[:300])
    wakeups.LOCAL.notify(key.name)
    if stored.snapshot is None:
        problem = Problem("PayloadUnusable", f"the stored payload cannot be used: {stored.why}")
        return Observed(manifest, stored, signing.key_id, None, Settled(()), (problem,), copy)
    pointer = Pointer.of(stored.snapshot)
    releases = filter(None, (pointer.serving, pointer.candidate))
    try:
        sources = await gather_sources(world.cluster, key.namespace, key.name, world.settings.region, releases)
    except ClusterError as error:
        return Unreadable(f"sources of {key.name}", str(error)[:300])
    tenants, problems = keep_unreadable_tenants(sources, stored.snapshot)
    settled = _settle(key.name, tenants, stored.snapshot, shrinkage.refused_as_shrunken(manifest))
    return Observed(manifest, stored, signing.key_id, sources, settled, tuple(problems), copy)


def _settle(service: str, tenants: tuple[ServingTenant, ...], last: Snapshot, refused: bool) -> Settled:
    at = time.monotonic()
    settled = shrinkage.settle(tenants, last, shrinkage.LOOKS.missing_before(service, at), refused)
    live = {tenant.tenant_id for tenant in tenants}
    missing = {t.tenant_id for t in last.tenants} - live
    shrinkage.LOOKS.saw(service, missing | {shrinkage.REFUSED} if refused else missing, at)
    return settled
