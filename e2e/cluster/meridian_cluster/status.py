"""`meridian status`: what runs on this machine and in the cluster, and how much memory it takes."""

from __future__ import annotations

from dataclasses import dataclass

from meridian_cluster import images, kubectl, layout, processes

EXPECTED = (
    "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "containerd", "kubelet",
    "kube-proxy", "coredns", "discovery", "prometheus", "issuer", "postgres",
)  # fmt: skip


@dataclass(frozen=True)
class Process:
    """One host process: None for a pid that is not there."""

    name: str
    pid: int | None
    resident: int  # bytes


def host_processes() -> list[Process]:
    """Every process that an installation has, running or not."""
    found = []
    for name in EXPECTED:
        identity = processes.running(name)
        resident = processes.resident_bytes(identity) if identity else 0
        found.append(Process(name, identity.pid if identity else None, resident))
    return found


def status() -> int:
    """Print it. Returns 0 when everything runs, 1 otherwise."""
    rows = host_processes()
    for row in rows:
        state = f"pid {row.pid:<8} {row.resident / 2**20:7.0f} MiB" if row.pid else "not running"
        print(f"  {row.name:<26} {state}")
    print(f"  {'together':<26} {'':<12} {sum(row.resident for row in rows) / 2**20:7.0f} MiB")
    healthy = all(row.pid for row in rows)
    if processes.running("kube-apiserver"):
        try:
            print(kubectl.kubectl("get", "nodes"))
            print(kubectl.kubectl("get", "pods", "-A", "-o", "wide", timeout=15))
        except kubectl.Refused as error:
            print(f"the API server does not answer: {error}")
            healthy = False
        print(f"export KUBECONFIG={layout.ADMIN_KUBECONFIG}")
    for name, ref in images.image_refs().items():
        print(f"  {name:<10} {ref}")
    if not healthy:
        print("not everything runs: `meridian up` starts what is missing")
    return 0 if healthy else 1
