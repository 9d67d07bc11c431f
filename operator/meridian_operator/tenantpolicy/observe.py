"""One look at a tenant: its policy, whoever else claims the same tenant, its partitions, where it is served."""

from __future__ import annotations

import asyncio

from pydantic import ValidationError

from meridian_api.v1alpha1.tenantpolicy import TenantPolicySpec
from meridian_operator.cluster import Key, Unreadable, find, find_all
from meridian_operator.converge import World
from meridian_operator.demand import view
from meridian_operator.store.partitions import epochs_of_tenant
from meridian_operator.tenantpolicy.seen import Observed


async def observe(key: Key, world: World) -> Observed | None | Unreadable:
    """None when the policy is gone, Unreadable when it could not be read; what else did not answer is a value inside."""
    policy = await find(world.cluster, key.kind, key.namespace, key.name)
    if policy is None or isinstance(policy, Unreadable):
        return policy
    try:
        spec = TenantPolicySpec.from_wire(policy.get("spec"), unknown="ignore")
    except ValidationError as error:
        first = error.errors()[0]
        return Observed(policy, None, f"{'.'.join(str(p) for p in first['loc'])}: {first['msg']}")
    policies, configs, epochs = await asyncio.gather(
        find_all(world.cluster, "TenantPolicy", key.namespace),
        find_all(world.cluster, "ServingConfig", key.namespace),
        epochs_of_tenant(world.store, spec.tenant_id),
    )
    serving: tuple[str, ...] | Unreadable
    if isinstance(configs, Unreadable):
        serving = configs
    else:
        serving = tuple(sorted({v.region for c in configs if spec.tenant_id in (v := view(c)).tenants}))
    others = policies
    if not isinstance(policies, Unreadable):
        others = tuple(p for p in policies if p["metadata"]["uid"] != policy["metadata"]["uid"])
    return Observed(policy, spec, "", others, epochs, serving)
