"""Installing charts/meridian with helm: the one description of what runs in the cluster."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from meridian_cluster import binaries, installation, kubectl, layout, waiting

RELEASE = "meridian"
PARTS = "app.kubernetes.io/part-of=meridian"
DATAPLANE = "meridian-dataplane"
COMPONENT = "app.kubernetes.io/component=dataplane"


def values(refs: Mapping[str, str]) -> dict[str, Any]:
    """What the embedded installation sets in the chart's values."""
    return {
        "images": {name: refs[name] for name in ("operator", "dataplane")},
        "region": layout.REGION,
        "service": layout.SERVICE,
        "postgres": {"secretName": installation.POSTGRES_SECRET},
        "signing": {
            "secretName": installation.SIGNING_SECRET,
            "publicKeysConfigMap": installation.KEYS,
        },
        "prometheusUrl": layout.PROMETHEUS_URL,
        "endpoints": {
            "orders": f"http://orders.{layout.NAMESPACE}.svc.{layout.CLUSTER_DOMAIN}",
        },
        "orders": {"tokenSecretName": installation.ORDERS_SECRET},
        "identity": {
            "issuers": [
                {
                    "issuer": layout.ISSUER_URL,
                    "jwksUrl": f"{layout.ISSUER_URL}/.well-known/jwks.json",
                }
            ]
        },
    }


def install(refs: Mapping[str, str]) -> bool:
    """Install or upgrade. False when there is no chart. Raises RuntimeError with helm's words."""
    folder = layout.repository() / "charts" / "meridian"
    if not (folder / "Chart.yaml").exists():
        return False
    path = layout.STATE / "values.json"
    path.write_text(json.dumps(values(refs), indent=1))
    done = subprocess.run(
        [binaries.path("helm"), "upgrade", "--install", RELEASE, folder, "--values", path,
         "--namespace", layout.NAMESPACE, "--kubeconfig", layout.ADMIN_KUBECONFIG],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"helm upgrade failed: {done.stderr.strip()[-2000:]}")
    return True


def wait(seconds: int = 180) -> None:
    """Wait until every Deployment of ours has rolled out, but for the data plane only until its
    containers have started: it is not Ready before the first Release gives it a configuration.

    Raises kubectl.Refused or WaitedTooLong with the state of the pods.
    """
    found = kubectl.get("-n", layout.NAMESPACE, "deployments", "-l", PARTS)
    names = [item["metadata"]["name"] for item in found.get("items", [])]
    for name in names:
        if name != DATAPLANE:
            kubectl.rollout(f"deployment/{name}", layout.NAMESPACE, seconds)
    if DATAPLANE in names:
        waiting.until(
            "the data plane's containers to start",
            dataplane_started,
            seconds=seconds,
            every=0.5,
            why_not=lambda: kubectl.kubectl("-n", layout.NAMESPACE, "get", "pods"),
        )


def dataplane_started() -> bool:
    """Whether the present version runs and every data-plane pod has passed its start.

    Not all have to be of the present version: an update goes on only as pods become Ready, and
    without a Release none does.
    """
    deployment = kubectl.get("-n", layout.NAMESPACE, "deployment", DATAPLANE)
    status = deployment.get("status", {})
    if status.get("observedGeneration", 0) < deployment["metadata"]["generation"]:
        return False
    pods = [
        pod
        for pod in kubectl.get("-n", layout.NAMESPACE, "pods", "-l", COMPONENT).get("items", [])
        if "deletionTimestamp" not in pod["metadata"]
    ]
    enough = len(pods) >= deployment["spec"].get("replicas", 1)
    return enough and status.get("updatedReplicas", 0) >= 1 and all(map(_started, pods))


def _started(pod: kubectl.Manifest) -> bool:
    containers = pod.get("status", {}).get("containerStatuses", [])
    return bool(containers) and all(container.get("started") for container in containers)
