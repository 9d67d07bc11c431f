"""The real KServe controller, running in the cluster from its own module's manifests.

Its CRDs, roles, webhooks and settings are read from the Go module that the binary is compiled
from, so that they cannot differ from it. What we change, and why, is in `_settings` and
`_controller`: Standard mode, no ingress, small defaults, and probes that do not wait 30 s.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from meridian_cluster import binaries, certificates, images, kubectl, layout

NAMESPACE = "kserve"
CONTROLLER = "kserve-controller-manager"
_WEBHOOK_SERVICE = "kserve-webhook-server-service"
_CERTIFICATE = "kserve-webhook-server-cert"
_RESOURCES = ("inferenceservices", "servingruntimes", "inferencegraphs", "trainedmodels",
              "clusterservingruntimes")  # fmt: skip


@functools.cache
def _configuration() -> Path:
    """The folder `config` of the module, from Go's module cache."""
    done = subprocess.run(
        ["go", "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", "github.com/kserve/kserve"],
        cwd=binaries.GOMOD / "kserve", env={**os.environ, "GOFLAGS": "", "GOWORK": "off"},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    if not done.stdout.strip():  # the binary came from the cache, the sources did not
        subprocess.run(
            ["go", "mod", "download", "github.com/kserve/kserve"],
            cwd=binaries.GOMOD / "kserve", check=True, capture_output=True,
        )  # fmt: skip
        _configuration.cache_clear()
        return _configuration()
    return Path(done.stdout.strip()) / "config"


def _documents(*parts: str) -> Iterator[dict[str, Any]]:
    text = _configuration().joinpath(*parts).read_text()
    yield from (document for document in yaml.safe_load_all(text) if document)


def install() -> None:
    """Apply everything; `wait` says when it works. Idempotent."""
    folder = _configuration() / "crd" / "full"
    kinds = sorted([*folder.glob("*kserve.io_*.yaml"), *folder.glob("clusterstorage*/*.io_*.yaml")])
    kubectl.apply_text("\n---\n".join(path.read_text() for path in kinds))
    # The controller exits at start when its kinds are not served yet.
    kubectl.established(*(f"{name}.serving.kserve.io" for name in _RESOURCES))
    kubectl.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}])
    kubectl.apply(
        [
            *_documents("rbac", "role.yaml"),
            *_in_namespace(_documents("rbac", "service_account.yaml")),
            *_in_namespace(_documents("rbac", "role_binding.yaml")),
            *_in_namespace(_documents("rbac", "leader_election_role.yaml")),
            *_in_namespace(_documents("rbac", "leader_election_role_binding.yaml")),
            _settings(),
            _webhook_certificate(),
            *_in_namespace(_documents("webhook", "service.yaml")),
            _controller(),
        ]
    )


def wait(seconds: int = 120) -> None:
    """Wait for the controller, then let the API server call its webhooks.

    They are registered last: they fail closed, and nothing could be applied before they answer.
    """
    kubectl.rollout(f"deployment/{CONTROLLER}", NAMESPACE, seconds)
    kubectl.apply(_webhooks())


def _in_namespace(documents: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for document in documents:
        if not document["kind"].startswith("Cluster"):
            document["metadata"]["namespace"] = NAMESPACE
        for subject in document.get("subjects", ()):
            subject["namespace"] = NAMESPACE
        yield document


def _settings() -> dict[str, Any]:
    """The module's own ConfigMap with what this cluster needs changed."""
    (document,) = _documents("configmap", "inferenceservice.yaml")
    document["metadata"]["namespace"] = NAMESPACE
    data = {key: value for key, value in document["data"].items() if not key.startswith("_")}
    resources = {
        "cpuRequest": "20m",
        "cpuLimit": "2",
        "memoryRequest": "64Mi",
        "memoryLimit": "1Gi",
    }
    for key, changes in {
        "deploy": {"defaultDeploymentMode": "Standard"},
        "ingress": {"disableIngressCreation": True},
        "inferenceService": {"resource": resources},  # a whole core each would fill two cores
    }.items():
        data[key] = json.dumps({**json.loads(data[key]), **changes})
    document["data"] = data
    return document


def _webhook_certificate() -> dict[str, Any]:
    host = f"{_WEBHOOK_SERVICE}.{NAMESPACE}.svc"
    pair = certificates.serving(certificates.authority(layout.PKI), layout.PKI, "kserve-webhook", dns=(host,), ips=())
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": _CERTIFICATE, "namespace": NAMESPACE},
        "stringData": {"tls.crt": pair.certificate.read_text(), "tls.key": pair.key.read_text()},
    }


def _controller() -> dict[str, Any]:
    """The module's Deployment with our image, fast probes and no leader election."""
    document = next(_documents("manager", "manager.yaml"))
    pod = document["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    container |= {"image": images.KSERVE, "imagePullPolicy": "IfNotPresent", "args": []}
    for probe in ("livenessProbe", "readinessProbe"):
        container[probe] |= {"initialDelaySeconds": 1, "periodSeconds": 2, "failureThreshold": 30}
    container["resources"] = {"requests": {"cpu": "20m", "memory": "64Mi"}}
    pod["volumes"] = [{"name": "cert", "secret": {"secretName": _CERTIFICATE}}]
    return document


def _webhooks() -> list[dict[str, Any]]:
    """The webhook configurations with the real Service and the authority of its certificate."""
    authority = base64.b64encode((layout.PKI / "ca.crt").read_bytes()).decode()
    found = []
    for document in _documents("webhook", "manifests.yaml"):
        document["metadata"].pop("creationTimestamp", None)
        for webhook in document["webhooks"]:
            client = webhook["clientConfig"]
            client["service"] |= {"name": _WEBHOOK_SERVICE, "namespace": NAMESPACE}
            client["caBundle"] = authority
        found.append(document)
    return found
