"""What a Release owns in the cluster: the Job of its offline evaluation and that Job's signed snapshot. Pure."""

from __future__ import annotations

import json
from typing import Any

from meridian_api.serving import Envelope
from meridian_operator.cluster import Manifest, owner_reference
from meridian_operator.plan import EvaluationRequest
from meridian_operator.settings import Settings

JOB_DEADLINE_SECONDS = 900
EVALUATION = "/evaluation"
"""Appended to the service's name in a candidate's evaluation snapshot and for the Job that reads it. Such a snapshot is signed
like one that serves; this makes every replica refuse it as another service's. No service's own name can hold a slash.
"""
_MOUNTS = {"config": "/etc/meridian/config", "keys": "/etc/meridian/keys", "golden": "/etc/meridian/golden"}


def evaluation_config_map(request: EvaluationRequest, owner: Manifest, envelope: Envelope) -> Manifest:
    """The candidate's snapshot, candidate as serving, as the data plane reads it at start."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(request, owner),
        "data": {"envelope.json": json.dumps(envelope.to_wire(), sort_keys=True)},
    }


def evaluation_job(request: EvaluationRequest, owner: Manifest, settings: Settings) -> Manifest:
    """Runs the data plane's own pipeline over the golden set; one try and one retry, at most 15 minutes."""
    secret = settings.database_secret
    mounts: list[Manifest] = [
        *({"name": name, "mountPath": path, "readOnly": True} for name, path in _MOUNTS.items()),
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    volumes: list[Manifest] = [
        {"name": "config", "configMap": {"name": request.job}},
        {"name": "keys", "configMap": {"name": settings.keys_config_map}},
        {"name": "golden", "configMap": {"name": request.golden_config_map}},
        {"name": "tmp", "emptyDir": {}},
    ]
    token: list[Manifest] = []
    if settings.orders_token_secret:
        token = [{"name": "MERIDIAN_ORDERS_TOKEN_FILE", "value": "/etc/meridian/orders/token"}]
        mounts.append({"name": "orders-token", "mountPath": "/etc/meridian/orders", "readOnly": True})
        volumes.append(
            {"name": "orders-token", "secret": {"secretName": settings.orders_token_secret, "defaultMode": 0o440}}
        )
    evaluation = {"release": request.release, "uid": request.uid, "attempt": request.attempt}
    container: dict[str, Any] = {
        "name": "evaluation",
        "image": settings.dataplane_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "meridian_dataplane.evaluation"],
        "env": [
            {"name": "MERIDIAN_CONFIG_MOUNT", "value": _MOUNTS["config"]},
            {"name": "MERIDIAN_PUBLIC_KEYS_DIR", "value": _MOUNTS["keys"]},
            {"name": "MERIDIAN_GOLDEN_FILE", "value": f"{_MOUNTS['golden']}/golden.jsonl"},
            {"name": "MERIDIAN_EVALUATION", "value": json.dumps(evaluation, sort_keys=True)},
            {"name": "MERIDIAN_SERVICE", "value": request.service + EVALUATION},
            {"name": "MERIDIAN_REGION", "value": settings.region},
            {"name": "MERIDIAN_ORDERS_URL", "value": settings.orders_url},
            {"name": "HOME", "value": "/tmp"},
            *token,
            _from_secret("MERIDIAN_DATABASE_DSN", secret, "app-dsn"),
            _from_secret("MERIDIAN_INGEST_DSN", secret, "ingest-dsn"),
        ],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }
    pod = {
        "restartPolicy": "Never",
        "serviceAccountName": settings.job_service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(request, owner),
        "spec": {
            "backoffLimit": 1,
            "activeDeadlineSeconds": JOB_DEADLINE_SECONDS,
            "template": {"metadata": {"labels": _labels(request)}, "spec": pod},
        },
    }


def _metadata(request: EvaluationRequest, owner: Manifest) -> Manifest:
    return {
        "name": request.job,
        "namespace": owner["metadata"]["namespace"],
        "labels": _labels(request),
        "ownerReferences": [owner_reference(owner)],
    }


def _labels(request: EvaluationRequest) -> dict[str, str]:
    return {
        "app.kubernetes.io/part-of": "meridian",
        "app.kubernetes.io/component": "evaluation",
        "meridian.dev/service": request.service,
    }


def _from_secret(name: str, secret: str, key: str) -> Manifest:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
