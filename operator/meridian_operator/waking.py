"""Who is woken by whose change. The resync wakes everybody anyway: this only makes it quick."""

from __future__ import annotations

from collections.abc import Iterable

from meridian_api.meta import API_VERSION
from meridian_operator.cluster import Key, Manifest

OWNED = ("InferenceService", "Deployment", "Job")

READ_BY: dict[str, tuple[str, ...]] = {
    "Release": ("Release", "InferencePool", "IndexEpoch", "ServingConfig"),
    "InferencePool": ("Release", "ServingConfig"),
    "IndexEpoch": ("Release", "ServingConfig"),
    "TenantPolicy": ("TenantPolicy", "IndexEpoch", "ServingConfig"),
    "ServingConfig": ("Release", "InferencePool", "IndexEpoch", "TenantPolicy"),
}
"""Kinds whose `observe` reads objects of the kind."""


def woken_by(changed: Manifest, known: Iterable[Key]) -> set[Key]:
    """Keys to look at after an event of `changed`: itself and its readers, or its owner."""
    kind, meta = changed["kind"], changed["metadata"]
    namespace = meta["namespace"]
    if kind in READ_BY:
        readers = READ_BY[kind]
        return {k for k in known if k.kind in readers and k.namespace == namespace} | {
            Key(kind, namespace, meta["name"])
        }
    keys = {
        Key(owner["kind"], namespace, owner["name"])
        for owner in meta.get("ownerReferences") or ()
        if owner.get("apiVersion") == API_VERSION and owner.get("kind") in READ_BY
    }
    if pool := (meta.get("labels") or {}).get(
        "meridian.dev/pool"
    ):  # KServe's Deployment: its owner is the InferenceService
        keys.add(Key("InferencePool", namespace, pool))
    return keys
