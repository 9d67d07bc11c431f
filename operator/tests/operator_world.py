"""A small installation for the tests of the operator's kernel: objects as stored, and what people and the kubelet do to them."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

from serving_world import EPOCH, NAMESPACE, POOL, manifest, release_spec, release_wire, sources, tenant_wire

from meridian_api.serving import pack
from meridian_api.v1alpha1.inferencepool import InferencePoolSpec
from meridian_operator.cluster import Key
from meridian_operator.converge import World
from meridian_operator.inferencepool.objects import POOL_LABEL, VERSION_LABEL, workload_name
from meridian_operator.memory_cluster import MemoryCluster
from meridian_operator.memory_store import MemoryStore
from meridian_operator.serving.compile import Compiled, Pointer, Stamp, compile_snapshot
from meridian_operator.settings import Settings

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
SETTINGS = Settings(
    replica="operator-0",
    owner_dsn="",
    evidence_dsn="",
    dataplane_image="docker.io/meridian/dataplane@sha256:" + "d" * 64,
)
TWO_VERSIONS = [{"name": "v1", "digest": "sha256:" + "1" * 64}, {"name": "v2", "digest": "sha256:" + "2" * 64}]


def pool_wire(**changes: Any) -> dict[str, Any]:
    return {**POOL, "versions": TWO_VERSIONS, "scaling": {"minReplicas": 2, "maxReplicas": 4}, **changes}


class Place:
    """A cluster, a store and a clock; `look` is one pass of a kind."""

    def __init__(self, **cluster: Any) -> None:
        self.cluster = MemoryCluster(**cluster)
        self.store = MemoryStore()
        self.now = NOW
        self.epoch = 1

    @property
    def world(self) -> World:
        return World(self.cluster, self.store, SETTINGS, lambda: self.now, lambda: self.epoch)

    def put(self, kind: str, name: str, spec: dict[str, Any], **more: Any) -> dict[str, Any]:
        return self.cluster.put({**manifest(kind, name, spec), **more})

    def pool(self, **changes: Any) -> dict[str, Any]:
        return self.put("InferencePool", "qwen", pool_wire(**changes))

    def release(self, name: str, version: str, phase: str, rollback_to: str | None = None) -> None:
        spec = release_wire(models={"primary": {"pool": "qwen", "version": version, "region": "eu-1"}})
        if rollback_to:
            spec["rollbackTo"] = rollback_to
        self.put("Release", name, spec, status={"phase": phase})

    def tenant(self, name: str, tenant_id: str | None = None) -> dict[str, Any]:
        return self.put("TenantPolicy", name, tenant_wire(tenant_id or name))

    def serve(self, serving: str, version: str, *, generation: int = 1, applied: dict[str, int] | None = None) -> None:
        """A stored ServingConfig that routes to `version` for release `serving`, with replicas' reports."""
        models = {"primary": {"pool": "qwen", "version": version, "region": "eu-1"}}
        pools = {"qwen": InferencePoolSpec.from_wire(pool_wire())}
        stamp = Stamp(generation, 1, self.now.isoformat(), False)
        made = compile_snapshot(
            sources(releases={serving: release_spec(models=models)}, pools=pools), Pointer(serving), stamp, None
        )
        assert isinstance(made, Compiled), made
        payload = base64.b64encode(pack(made.snapshot)).decode()
        spec = {"service": "support", "region": "eu-1", "generation": generation, "leaseEpoch": 1, "payload": payload}
        reports = [{"replica": r, "generation": g} for r, g in (applied or {}).items()]
        self.put("ServingConfig", "support", spec, status={"replicas": reports})

    def dataplane(self, *replicas: str) -> None:
        """Ready endpoints of the data plane."""
        self.cluster.put(
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": "dp",
                    "namespace": NAMESPACE,
                    "labels": {"kubernetes.io/service-name": "meridian-dataplane"},
                },
                "endpoints": [{"conditions": {"ready": True}, "targetRef": {"name": r}} for r in replicas],
            }
        )

    def pods(self, version: str, ready: int, total: int | None = None) -> None:
        """The kubelet's doing."""
        name = workload_name("qwen", version)
        for number in range(total if total is not None else ready):
            self.cluster.put(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {
                        "name": f"{name}-{number}",
                        "namespace": NAMESPACE,
                        "labels": {POOL_LABEL: "qwen", VERSION_LABEL: name},
                    },
                    "status": {"conditions": [{"type": "Ready", "status": str(number < ready)}]},
                }
            )

    def live(self, kind: str, name: str) -> dict[str, Any]:
        return self.cluster.objects[kind, NAMESPACE, name]

    def names(self, kind: str) -> set[str]:
        return {name for k, _, name in self.cluster.objects if k == kind}

    def condition(self, kind: str, name: str, type_: str) -> dict[str, Any]:
        return next(c for c in self.live(kind, name)["status"]["conditions"] if c["type"] == type_)

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def key(kind: str, name: str) -> Key:
    return Key(kind, NAMESPACE, name)


__all__ = ["EPOCH", "NAMESPACE", "NOW", "SETTINGS", "Place", "key", "pool_wire"]
