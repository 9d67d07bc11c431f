"""The kinds, and who is woken by whose change. The resync wakes everybody anyway: this only makes it quick."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meridian_api.meta import API_VERSION
from meridian_operator.cluster import Key, Manifest
from meridian_operator.converge import Kind
from meridian_operator.indexepoch import decide as _epoch_decide
from meridian_operator.indexepoch import observe as _epoch_observe
from meridian_operator.inferencepool import decide as _pool_decide
from meridian_operator.inferencepool import observe as _pool_observe
from meridian_operator.release import decide as _release_decide
from meridian_operator.release import observe as _release_observe
from meridian_operator.servingconfig import decide as _config_decide
from meridian_operator.servingconfig import observe as _config_observe
from meridian_operator.tenantpolicy import decide as _tenant_decide
from meridian_operator.tenantpolicy import observe as _tenant_observe

KINDS: dict[str, Kind[Any]] = {
    "Release": Kind("Release", _release_observe.observe, _release_decide.decide),
    "InferencePool": Kind("InferencePool", _pool_observe.observe, _pool_decide.decide),
    "IndexEpoch": Kind("IndexEpoch", _epoch_observe.observe, _epoch_decide.decide),
    "TenantPolicy": Kind("TenantPolicy", _tenant_observe.observe, _tenant_decide.decide),
    "ServingConfig": Kind("ServingConfig", _config_observe.observe, _config_decide.decide),
}
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
    if kind in KINDS:
        readers = READ_BY[kind]
        return {k for k in known if k.kind in readers and k.namespace == namespace} | {Key(kind, namespace, meta["name"])}
    keys = {
        Key(owner["kind"], namespace, owner["name"])
        for owner in meta.get("ownerReferences") or ()
        if owner.get("apiVersion") == API_VERSION and owner.get("kind") in KINDS
    }
    if pool := (meta.get("labels") or {}).get("meridian.dev/pool"):  # KServe's Deployment: its owner is the InferenceService
        keys.add(Key("InferencePool", namespace, pool))
    return keys
