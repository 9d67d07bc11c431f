"""A small world for the tests of `serving`: one pool, one epoch, two releases, two tenants."""

from __future__ import annotations

import json
from typing import Any

from meridian_api.digest import configmap_digest
from meridian_api.meta import API_VERSION
from meridian_api.serving import ServingTenant
from meridian_api.v1alpha1.indexepoch import IndexEpochSpec
from meridian_api.v1alpha1.inferencepool import InferencePoolSpec
from meridian_api.v1alpha1.release import ReleaseSpec
from meridian_api.v1alpha1.tenantpolicy import TenantPolicySpec
from meridian_operator.serving.compile import Sources, serving_tenant

NAMESPACE = "meridian"
IMAGE = "docker.io/meridian/predictor@sha256:" + "a" * 64
DIGEST = "sha256:" + "b" * 64
CONFIG_MAPS: dict[str, dict[str, str]] = {
    "prompt-1": {"system.txt": "Answer from the passages.", "format.txt": "h1\n"},
    "tool-1": {
        "tool.json": json.dumps(
            {
                "name": "get_order",
                "schemaVersion": "2",
                "description": "Looks up one order.",
                "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}},
                "endpoint": "orders",
                "path": "/orders/{order_id}",
                "method": "GET",
                "sideEffect": False,
                "timeoutMs": 2000,
                "roles": ["customer"],
                "resultFields": ["status"],
            }
        )
    },
}
POOL: dict[str, Any] = {
    "model": "qwen",
    "region": "eu-1",
    "provider": "Deployment",
    "engine": {"image": IMAGE},
    "versions": [{"name": "v1", "digest": DIGEST}],
}
EPOCH: dict[str, Any] = {
    "region": "eu-1",
    "tenants": ["acme"],
    "embedding": {"revision": "r1"},
    "sources": [{"name": "docs", "tenant": "acme", "configMap": {"name": "docs", "digest": DIGEST}}],
}


def configmap(name: str) -> dict[str, str]:
    return CONFIG_MAPS[name]


def release_wire(tool_digest: str | None = None, **changes: Any) -> dict[str, Any]:
    return {
        "service": "support",
        "app": {"version": "1", "image": IMAGE},
        "prompt": {"name": "prompt-1", "digest": configmap_digest(CONFIG_MAPS["prompt-1"])},
        "models": {"primary": {"pool": "qwen", "version": "v1", "region": "eu-1"}},
        "index": {"epoch": "epoch-1", "embeddingModel": "wordllama@r1"},
        "tools": [
            {
                "name": "get_order",
                "schemaVersion": "2",
                "configMap": {"name": "tool-1", "digest": tool_digest or configmap_digest(CONFIG_MAPS["tool-1"])},
            }
        ],
        "eval": {"goldenSet": {"name": "golden", "digest": DIGEST}},
        **changes,
    }


def release_spec(tool_digest: str | None = None, **changes: Any) -> ReleaseSpec:
    return ReleaseSpec.from_wire(release_wire(tool_digest, **changes))


def tenant_wire(name: str, regions: tuple[str, ...] = ("eu-1",)) -> dict[str, Any]:
    return {
        "tenantId": name,
        "identity": {"issuer": "http://issuer.test", "tenantValue": name},
        "allowedRegions": list(regions),
        "roles": [{"name": "customer"}],
    }


def tenant(name: str, regions: tuple[str, ...] = ("eu-1",)) -> ServingTenant:
    return serving_tenant(TenantPolicySpec.from_wire(tenant_wire(name, regions)))


def sources(**changes: Any) -> Sources:
    parts: dict[str, Any] = {
        "service": "support",
        "region": "eu-1",
        "namespace": NAMESPACE,
        "releases": {"support-1": release_spec(), "support-2": release_spec()},
        "pools": {"qwen": InferencePoolSpec.from_wire(POOL)},
        "epochs": {"epoch-1": IndexEpochSpec.from_wire(EPOCH)},
        "tenants": (tenant("acme"),),
        "config_maps": CONFIG_MAPS,
    }
    return Sources(**{**parts, **changes})


def manifest(kind: str, name: str, spec: dict[str, Any], **meta: Any) -> dict[str, Any]:
    """A stored object of ours."""
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE, **meta},
        "spec": spec,
    }
