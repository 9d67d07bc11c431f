"""The cluster as a story sees it: reads and writes objects, waits, and says what it saw when nothing came."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

from meridian_cli.address import DEFAULT_KUBECONFIG, find_kubectl

NAMESPACE = "meridian"
OURS = "apis/meridian.dev/v1alpha1"
PATHS = {
    "release": f"{OURS}/namespaces/{{ns}}/releases",
    "pool": f"{OURS}/namespaces/{{ns}}/inferencepools",
    "epoch": f"{OURS}/namespaces/{{ns}}/indexepochs",
    "tenant": f"{OURS}/namespaces/{{ns}}/tenantpolicies",
    "serving": f"{OURS}/namespaces/{{ns}}/servingconfigs",
    "deployment": "apis/apps/v1/namespaces/{ns}/deployments",
    "inferenceservice": "apis/serving.kserve.io/v1beta1/namespaces/{ns}/inferenceservices",
    "job": "apis/batch/v1/namespaces/{ns}/jobs",
    "kserve pod": "api/v1/namespaces/kserve/pods",
    "pod": "api/v1/namespaces/{ns}/pods",
    "service": "api/v1/namespaces/{ns}/services",
    "configmap": "api/v1/namespaces/{ns}/configmaps",
    "secret": "api/v1/namespaces/{ns}/secrets",
}
Object = dict[str, Any]


class LiveCluster:
    """One API server. Plain requests for what a story only looks at; kubectl where the story is about kubectl."""

    def __init__(self, kubeconfig: Path | None = None) -> None:
        self.kubeconfig = kubeconfig or Path(os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG)
        found = find_kubectl()
        assert found, "no kubectl on the PATH or in the cache: run `meridian up`"
        self._kubectl = found
        self._http = _client(yaml.safe_load(self.kubeconfig.read_text()))

    def kubectl(self, *args: str, stdin: str | None = None, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """The command's result, whatever its code: a story asserts on it."""
        return subprocess.run(
            [self._kubectl, "--kubeconfig", str(self.kubeconfig), "-n", NAMESPACE, *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def apply(self, *objects: Object) -> subprocess.CompletedProcess[str]:
        """Server-side, as a person or GitOps does it."""
        done = self.try_apply(*objects)
        assert done.returncode == 0, f"kubectl apply failed: {done.stderr}"
        return done

    def try_apply(self, *objects: Object, dry_run: bool = False) -> subprocess.CompletedProcess[str]:
        text = yaml.safe_dump_all(objects, sort_keys=False)
        return self.kubectl("apply", "--server-side", *(["--dry-run=server"] if dry_run else []), "-f", "-", stdin=text)

    def find(self, kind: str, name: str) -> Object | None:
        answered = self._http.get(f"/{PATHS[kind].format(ns=NAMESPACE)}/{name}")
        if answered.status_code == 404:
            return None
        answered.raise_for_status()
        return answered.json()

    def get(self, kind: str, name: str) -> Object:
        found = self.find(kind, name)
        assert found is not None, f"{kind} {name} does not exist"
        return found

    def all(self, kind: str, selector: str = "") -> list[Object]:
        """Every object of the kind; none where the cluster does not know it."""
        params = {"labelSelector": selector} if selector else {}
        answered = self._http.get(f"/{PATHS[kind].format(ns=NAMESPACE)}", params=params)
        if answered.status_code == 404:
            return []
        answered.raise_for_status()
        return answered.json()["items"]

    def delete(self, kind: str, name: str) -> None:
        assert self.try_delete(kind, name), f"{kind} {name} could not be deleted"

    def try_delete(self, kind: str, name: str) -> bool:
        """False when admission refuses it."""
        answered = self._http.delete(f"/{PATHS[kind].format(ns=NAMESPACE)}/{name}")
        return answered.status_code in (200, 202, 404)

    def patch(self, kind: str, name: str, body: Mapping[str, Any]) -> Object:
        """A JSON merge patch."""
        answered = self._http.patch(
            f"/{PATHS[kind].format(ns=NAMESPACE)}/{name}",
            content=json.dumps(body),
            headers={"content-type": "application/merge-patch+json"},
        )
        assert answered.status_code == 200, answered.text
        return answered.json()

    def until(
        self,
        what: str,
        check: Callable[[], Any],
        *,
        seconds: float,
        every: float = 0.5,
        about: tuple[tuple[str, str], ...] = (),
    ) -> Any:
        """What `check` gives once it is true. Else fails with the state of the objects in `about` and the operator's last words."""
        deadline = time.monotonic() + seconds
        while not (found := check()):
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {seconds:.0f} s for {what}\n{self.explain(*about)}")
            time.sleep(every)
        return found

    def explain(self, *about: tuple[str, str]) -> str:
        """The status of the named objects, the pods, and the operator's last log lines."""
        parts = []
        for kind, name in about:
            found = self.find(kind, name)
            status = yaml.safe_dump(found.get("status"), sort_keys=False) if found else "does not exist"
            parts.append(f"--- {kind} {name}\n{status[:6000]}")
        parts.append("--- pods\n" + self.kubectl("get", "pods", "-o", "wide").stdout)
        parts.append("--- operator\n" + self.kubectl("logs", "deploy/meridian-operator", "--tail=30").stdout)
        return "\n".join(parts)

    def pods_of(self, deployment: str) -> list[Object]:
        """Its pods that are not being deleted, oldest first."""
        labels = self.get("deployment", deployment)["spec"]["selector"]["matchLabels"]
        found = self.all("pod", ",".join(f"{k}={v}" for k, v in labels.items()))
        living = [p for p in found if "deletionTimestamp" not in p["metadata"]]
        return sorted(living, key=lambda p: (p["metadata"]["creationTimestamp"], p["metadata"]["name"]))

    def scale(self, deployment: str, replicas: int) -> None:
        self.patch("deployment", deployment, {"spec": {"replicas": replicas}})


def condition(found: Object | None, type_: str) -> Mapping[str, Any]:
    """The condition, or an empty one."""
    conditions = ((found or {}).get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] == type_), {})


def is_true(found: Object | None, type_: str) -> bool:
    return condition(found, type_).get("status") == "True"


def is_ready_pod(pod: Object) -> bool:
    return is_true(pod, "Ready")


def _client(kubeconfig: Mapping[str, Any]) -> httpx.Client:
    cluster, user = kubeconfig["clusters"][0]["cluster"], kubeconfig["users"][0]["user"]
    context = ssl.create_default_context()
    if data := cluster.get("certificate-authority-data"):
        context.load_verify_locations(cadata=base64.b64decode(data).decode())
    elif file := cluster.get("certificate-authority"):
        context.load_verify_locations(file)
    if file := user.get("client-certificate"):
        context.load_cert_chain(file, user["client-key"])
    headers = {"authorization": f"Bearer {user['token']}"} if "token" in user else {}
    return httpx.Client(base_url=cluster["server"], headers=headers, verify=context, timeout=10, trust_env=False)
