"""The Indexed Job that builds an epoch. Pure; golden-tested."""

from __future__ import annotations

from typing import Any

from meridian_api.digest import canonical_json
from meridian_api.meta import ConfigMapRef
from meridian_api.names import derived_name
from meridian_api.v1alpha1.indexepoch import IndexEpochSpec
from meridian_operator.cluster import Manifest, owner_reference
from meridian_operator.settings import Settings

EPOCH_LABEL = "meridian.dev/epoch-of"
BACKOFF_LIMIT = 4


def job_name(epoch: str) -> str:
    """The same for the same epoch, so that a crash after creating it creates no second one (K-15)."""
    return derived_name("index", epoch)


def index_job(epoch: Manifest, spec: IndexEpochSpec, settings: Settings) -> Manifest:
    """One completion per shard; each publishes its documents by itself."""
    meta = epoch["metadata"]
    name = job_name(meta["name"])
    labels = {
        "app.kubernetes.io/part-of": "meridian",
        "app.kubernetes.io/component": "index",
        EPOCH_LABEL: name,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "namespace": meta["namespace"],
            "name": name,
            "labels": labels,
            "ownerReferences": [owner_reference(epoch)],
        },
        "spec": {
            "completionMode": "Indexed",
            "completions": spec.shards,
            "parallelism": min(spec.shards, 4),
            "backoffLimit": BACKOFF_LIMIT,
            "template": {"metadata": {"labels": labels}, "spec": _pod(epoch, spec, settings)},
        },
    }


def _pod(epoch: Manifest, spec: IndexEpochSpec, settings: Settings) -> dict[str, Any]:
    meta = epoch["metadata"]
    what = canonical_json({"name": meta["name"], "uid": meta["uid"], "spec": spec.to_wire()}).decode()
    sources = [(f"/etc/meridian/sources/{s.name}", s.config_map) for s in spec.sources if s.config_map is not None]
    maps: list[tuple[str, ConfigMapRef]] = [*sources]
    if spec.golden_set is not None:
        maps.append(("/etc/meridian/golden", spec.golden_set))
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}]
    mounts: list[dict[str, Any]] = [{"name": "tmp", "mountPath": "/tmp"}]
    for number, (path, source) in enumerate(maps):
        volumes.append({"name": f"content-{number}", "configMap": {"name": source.name}})
        mounts.append({"name": f"content-{number}", "mountPath": path, "readOnly": True})
    dsn = {"secretKeyRef": {"name": settings.database_secret, "key": "ingest-dsn"}}
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "serviceAccountName": settings.job_service_account,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "index",
                "image": settings.dataplane_image,
                "imagePullPolicy": "IfNotPresent",
                "command": ["python", "-m", "meridian_dataplane.ingestion"],
                "env": [
                    {"name": "HOME", "value": "/tmp"},
                    {"name": "MERIDIAN_EPOCH", "value": what},
                    {"name": "MERIDIAN_INGEST_DSN", "valueFrom": dsn},
                ],
                "resources": {
                    "requests": {"cpu": "100m", "memory": "256Mi"},
                    "limits": {"cpu": "1", "memory": "1Gi"},
                },
                "volumeMounts": mounts,
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
        "volumes": volumes,
    }
