"""`meridian status`: what runs on this machine and in the cluster, whether it is healthy, and which release serves."""

from __future__ import annotations

import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from meridian_cluster import (
    apiserver,
    containers,
    control_plane,
    images,
    kubectl,
    layout,
    postgres,
    postgres_roles,
    processes,
    prometheus,
    waiting,
)

EXPECTED = (
    "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "containerd", "kubelet",
    "kube-proxy", "coredns", "discovery", "prometheus", "issuer", "postgres",
)  # fmt: skip
SERVING = (
    "SERVICE:.metadata.name,GENERATION:.spec.generation,SERVING:.spec.serving,"
    "CANDIDATE:.spec.candidate,WEIGHT:.spec.candidateWeightPercent"
)


def answers_ok(url: str) -> bool:
    """Whether a health check of this machine says 200. Its own certificate is not verified: nothing is sent to it."""
    context = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(url, timeout=2, context=context) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def accepts(path: Path) -> bool:
    """Whether something accepts connections on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1.0)
        return client.connect_ex(str(path)) == 0


# `discovery` has nothing to ask: that it runs is its health.
HEALTHY: Mapping[str, Callable[[], bool]] = {
    "etcd": lambda: answers_ok(f"http://127.0.0.1:{control_plane.ENDPOINT.etcd_port}/health"),
    "kube-apiserver": lambda: apiserver.ready(control_plane.ENDPOINT),
    "kube-controller-manager": lambda: answers_ok("https://127.0.0.1:10257/healthz"),
    "kube-scheduler": lambda: answers_ok("https://127.0.0.1:10259/healthz"),
    "containerd": lambda: accepts(containers.SOCKET),
    "kubelet": lambda: answers_ok("http://127.0.0.1:10248/healthz"),
    "kube-proxy": lambda: answers_ok(f"http://{layout.NODE_ADDRESS}:10249/healthz"),
    "coredns": lambda: waiting.port_open(layout.NODE_ADDRESS, 53),
    "prometheus": prometheus.ready,
    "issuer": lambda: waiting.port_open(layout.NODE_ADDRESS, layout.ISSUER_PORT),
    "postgres": lambda: postgres_roles.accepts(postgres.installation().superuser_dsn),
}


@dataclass(frozen=True)
class Process:
    """One host process: None for a pid that is not there."""

    name: str
    pid: int | None
    resident: int  # bytes
    healthy: bool

    def line(self) -> str:
        """For a screen of 120 columns."""
        health = "healthy" if self.healthy else "NOT HEALTHY" if self.pid else "NOT RUNNING"
        pid = f"pid {self.pid}" if self.pid else ""
        memory = f"{self.resident / 2**20:5.0f} MiB"
        return f"  {self.name:<24} {health:<11} {pid:<12} {memory}  {layout.LOGS / self.name}.log"


def host_processes() -> list[Process]:
    """Every process that an installation has, running or not."""
    found = []
    for name in EXPECTED:
        identity = processes.running(name)
        resident = processes.resident_bytes(identity) if identity else 0
        healthy = identity is not None and HEALTHY.get(name, lambda: True)()
        found.append(Process(name, identity.pid if identity else None, resident, healthy))
    return found


def status() -> int:
    """Print it. Returns 0 when everything runs and is healthy, 1 otherwise."""
    rows = host_processes()
    for row in rows:
        print(row.line())
    print(f"  {'together':<24} {'':<11} {'':<12} {sum(row.resident for row in rows) / 2**20:5.0f} MiB")
    healthy = all(row.healthy for row in rows)
    if processes.running("kube-apiserver"):
        try:
            _cluster()
        except kubectl.Refused as error:
            print(f"the API server does not answer: {error}")
            healthy = False
        print(f"export KUBECONFIG={layout.ADMIN_KUBECONFIG}")
    for name, ref in images.image_refs().items():
        print(f"  {name:<10} {ref}")
    if not healthy:
        print("not everything runs and is healthy: `meridian up` starts what is missing; the logs are named above")
    return 0 if healthy else 1


def _cluster() -> None:
    """Which release serves, the node, and the pods that did not end. Raises kubectl.Refused."""
    print()
    print(kubectl.kubectl("get", "nodes", timeout=15))
    print(kubectl.kubectl("get", "pods", "-A", "--field-selector=status.phase!=Succeeded", timeout=15))
    ended = kubectl.kubectl("get", "pods", "-A", "-o", "name", "--field-selector=status.phase=Succeeded", timeout=15)
    print(f"{len(ended.splitlines())} evaluations and index builds have completed\n")
    print(
        kubectl.kubectl("-n", layout.NAMESPACE, "get", "servingconfigs", "-o", f"custom-columns={SERVING}", timeout=15)
    )
