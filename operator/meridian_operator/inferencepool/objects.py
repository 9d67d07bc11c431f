"""Manifests of one pool version: pod template, workload by provider, headless Service. Pure; golden-tested."""

from __future__ import annotations

import json
from typing import Any

from meridian_api.names import derived_name
from meridian_api.v1alpha1.inferencepool import InferencePoolSpec, PoolVersion
from meridian_operator.cluster import Manifest, owner_reference
from meridian_operator.inferencepool import kserve_types

POOL_LABEL = "meridian.dev/pool"
VERSION_LABEL = "meridian.dev/version-of"
CONTAINER = "kserve-container"
"""The name that KServe wants for a custom container; the same in a Deployment, so that dashboards need one query."""

# Runs inside the engine's container: an HTTP probe cannot POST, and Ready means a completion was served by this very pod.
PROBE = """\
import json, sys, urllib.request
port, model, prompt, tokens, limit = json.loads(sys.argv[1])
body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "stream": False}
request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(),
                                 {"Content-Type": "application/json"})
answer = json.load(urllib.request.urlopen(request, timeout=limit))
sys.exit(0 if answer["choices"][0]["message"]["content"].strip() else 1)
"""


def workload_name(pool: str, version: str) -> str:
    """Of the workload and of the headless Service alike."""
    return derived_name(pool, version)


def wanted_replicas(spec: InferencePoolSpec) -> int:
    """Per demanded version. Never 0: what is demanded has to be warm."""
    return max(1, spec.scaling.min_replicas)


def manifests(pool: Manifest, spec: InferencePoolSpec, version: PoolVersion) -> tuple[Manifest, ...]:
    """The Service and the workload of `version`, owned by `pool`."""
    service = headless_service(pool, spec, version)
    if spec.provider == "KServe":
        return service, inference_service(pool, spec, version)
    return service, deployment(pool, spec, version)


def headless_service(pool: Manifest, spec: InferencePoolSpec, version: PoolVersion) -> Manifest:
    """Its DNS name resolves to every ready pod: the data plane needs no API server to find replicas."""
    assert spec.engine is not None
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(pool, version),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": False,
            "selector": {VERSION_LABEL: workload_name(pool["metadata"]["name"], version.name)},
            "ports": [{"name": "http", "port": spec.engine.port, "targetPort": spec.engine.port, "protocol": "TCP"}],
        },
    }


def deployment(pool: Manifest, spec: InferencePoolSpec, version: PoolVersion) -> Manifest:
    """Provider Deployment: needs nothing but Kubernetes."""
    selector = {VERSION_LABEL: workload_name(pool["metadata"]["name"], version.name)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(pool, version),
        "spec": {
            "replicas": wanted_replicas(spec),
            "selector": {"matchLabels": selector},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {
                "metadata": {"labels": _labels(pool, version), "annotations": _scraping(spec)},
                "spec": pod_spec(spec, version),
            },
        },
    }


def inference_service(pool: Manifest, spec: InferencePoolSpec, version: PoolVersion) -> Manifest:
    """Provider KServe, with the KServe SDK's types, which `observe` has loaded in a thread."""
    pod = pod_spec(spec, version)
    predictor = {
        "min_replicas": wanted_replicas(spec),
        "max_replicas": max(wanted_replicas(spec), spec.scaling.max_replicas),
        "labels": _labels(pool, version),
        "annotations": _scraping(spec),
        "containers": pod["containers"],
        "volumes": pod["volumes"],
        "node_selector": pod.get("nodeSelector"),
        "topology_spread_constraints": pod.get("topologySpreadConstraints"),
        "image_pull_secrets": pod.get("imagePullSecrets"),
        "security_context": pod["securityContext"],
        "automount_service_account_token": pod["automountServiceAccountToken"],
        "enable_service_links": pod["enableServiceLinks"],
        "termination_grace_period_seconds": pod["terminationGracePeriodSeconds"],
        "deployment_strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
    }
    metadata = _metadata(pool, version)
    metadata["annotations"] = {
        "serving.kserve.io/deploymentMode": "Standard",
        # The operator owns the replica count: with `external` there is no HPA and KServe leaves the count alone.
        "serving.kserve.io/autoscalerClass": "external",
    }
    return kserve_types.inference_service(predictor, metadata)


def predictor_scale(namespace: str, name: str, replicas: int) -> Manifest:
    """The replica count of the Deployment that KServe made for InferenceService `name`, and nothing else of it."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"namespace": namespace, "name": f"{name}-predictor"},
        "spec": {"replicas": replicas},
    }


def pod_spec(spec: InferencePoolSpec, version: PoolVersion) -> dict[str, Any]:
    """A restricted pod that is Ready only after it has served a completion, and drains before it ends."""
    engine = spec.engine
    assert engine is not None
    limits = {"cpu": engine.resources.cpu, "memory": engine.resources.memory}
    if engine.resources.gpus:
        limits["nvidia.com/gpu"] = str(engine.resources.gpus)
    mounts: list[dict[str, Any]] = [{"name": "tmp", "mountPath": "/tmp"}]
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}]
    if engine.weights_claim:
        mounts.append({"name": "weights", "mountPath": "/weights", "readOnly": True})
        claim = {"claimName": engine.weights_claim, "readOnly": True}
        volumes.append({"name": "weights", "persistentVolumeClaim": claim})
    warmup = spec.warmup
    ask = json.dumps([engine.port, spec.model, warmup.prompt, warmup.max_tokens, warmup.timeout_seconds])
    health = {"path": "/health", "port": engine.port}
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": spec.drain_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": CONTAINER,
                "image": version.image or engine.image,
                "imagePullPolicy": "IfNotPresent",
                "args": [*engine.args, *version.args],
                "env": [{"name": "HOME", "value": "/tmp"}, *({"name": e.name, "value": e.value} for e in engine.env)],
                "ports": [{"name": "http", "containerPort": engine.port, "protocol": "TCP"}],
                "resources": {"requests": dict(limits), "limits": limits},
                "volumeMounts": mounts,
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "startupProbe": {
                    "exec": {"command": ["python3", "-c", PROBE, ask]},
                    "periodSeconds": 5,
                    "timeoutSeconds": warmup.timeout_seconds,
                    "failureThreshold": warmup.failure_threshold,
                },
                "readinessProbe": {
                    "httpGet": dict(health),
                    "periodSeconds": 5,
                    "timeoutSeconds": 3,
                    "failureThreshold": 3,
                },
                # Long on purpose: a busy engine is not a dead one, and a restart throws away everybody's answer.
                "livenessProbe": {
                    "httpGet": dict(health),
                    "periodSeconds": 20,
                    "timeoutSeconds": 10,
                    "failureThreshold": 6,
                },
            }
        ],
        "volumes": volumes,
    }
    if engine.placement.node_selector:
        pod["nodeSelector"] = dict(engine.placement.node_selector)
    if engine.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in engine.image_pull_secrets]
    if engine.placement.spread_over_zones:
        pod["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"app.kubernetes.io/component": "engine"}},
            }
        ]
    return pod


def _metadata(pool: Manifest, version: PoolVersion) -> dict[str, Any]:
    meta = pool["metadata"]
    return {
        "namespace": meta["namespace"],
        "name": workload_name(meta["name"], version.name),
        "labels": _labels(pool, version),
        "ownerReferences": [owner_reference(pool)],
    }


def _labels(pool: Manifest, version: PoolVersion) -> dict[str, str]:
    name = pool["metadata"]["name"]
    return {
        "app.kubernetes.io/part-of": "meridian",
        "app.kubernetes.io/component": "engine",
        POOL_LABEL: name,
        VERSION_LABEL: workload_name(name, version.name),
    }


def _scraping(spec: InferencePoolSpec) -> dict[str, str]:
    assert spec.engine is not None
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(spec.engine.port),
        "prometheus.io/path": "/metrics",
    }
