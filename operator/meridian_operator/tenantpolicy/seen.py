"""What one look at a tenant found: values only."""

from __future__ import annotations

from dataclasses import dataclass

from meridian_api.v1alpha1.tenantpolicy import TenantPolicySpec
from meridian_operator.cluster import Manifest, Unreadable


@dataclass(frozen=True)
class Observed:
    """What `decide` reads."""

    object: Manifest
    spec: TenantPolicySpec | None
    problem: str = ""
    others: tuple[Manifest, ...] | Unreadable = ()
    """Other policies of the namespace."""
    epochs: frozenset[str] | None | Unreadable = None
    """Epochs with a partition of this tenant; None: the tenant has none itself."""
    serving_in: tuple[str, ...] | Unreadable = ()
    """Regions whose stored ServingConfig holds this tenant."""
