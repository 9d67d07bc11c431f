"""Which model target. Takes a Prompt and the health of targets; gives a Route; refuses with 503 `no_eligible_target`; pure.

The region filter comes first and fails closed: a target in a region that the tenant does not allow is never called, whatever
else is down (S-50, IV-12).
"""

from __future__ import annotations

from collections.abc import Callable

from meridian_api.serving import Manifest, ServingTenant, Target
from meridian_dataplane.calls import Prompt, Route
from meridian_dataplane.refusals import no_eligible_target


def choose(prompt: Prompt, healthy: Callable[[Target], bool]) -> Route:
    """The eligible targets that may be called now, in order. None when all are cooling down: then the ladder decides."""
    pinned = prompt.grounded.pinned
    allowed = eligible(pinned.manifest, pinned.caller.tenant)
    if not allowed:
        raise no_eligible_target()
    cap = min(
        pinned.manifest.settings.model.max_output_tokens,
        pinned.caller.tenant.budgets.max_output_tokens,
    )
    return Route(prompt, tuple(target for target in allowed if healthy(target)), cap)


def eligible(manifest: Manifest, tenant: ServingTenant) -> tuple[Target, ...]:
    """Targets whose region the tenant allows: primary, then the fallback if the ladder has it.

    A hosted fallback of a self-hosted primary is overflow, which a tenant has to allow by itself.
    """
    primary, fallback = manifest.primary, manifest.fallback
    targets = [primary]
    if fallback is not None and "fallback_model" in manifest.settings.ladder:
        overflows = fallback.provider == "Hosted" and primary.provider != "Hosted"
        if tenant.overflow or not overflows:
            targets.append(fallback)
    return tuple(target for target in targets if target.region in tenant.allowed_regions)
