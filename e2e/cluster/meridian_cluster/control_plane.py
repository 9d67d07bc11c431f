"""etcd, kube-apiserver, controller manager and scheduler as host processes.

`stop_apiserver` and `start_apiserver` are what drills use to take the control plane away.
"""

from __future__ import annotations

import shutil

from meridian_cluster import apiserver, binaries, kubectl, layout, processes, waiting

ENDPOINT = apiserver.Endpoint(layout.NODE_ADDRESS, layout.APISERVER_PORT, layout.PKI)


def start_etcd() -> None:
    """Start etcd with its data in the state folder."""
    command = apiserver.etcd_command(ENDPOINT, layout.STATE / "etcd", durable=True)
    processes.start("etcd", command)
    waiting.until(
        "etcd",
        lambda: waiting.port_open("127.0.0.1", ENDPOINT.etcd_port),
        seconds=30,
        why_not=lambda: processes.log_tail("etcd"),
    )


def start_apiserver(*, seconds: float = 90) -> None:
    """Start kube-apiserver and wait until it is ready. Idempotent."""
    processes.start("kube-apiserver", apiserver.command(ENDPOINT))
    waiting.until(
        "kube-apiserver's /readyz",
        lambda: apiserver.ready(ENDPOINT),
        seconds=seconds,
        why_not=lambda: processes.log_tail("kube-apiserver"),
    )


def stop_apiserver() -> None:
    """Take the API server away, at once: SIGKILL, as a machine that dies does."""
    processes.stop("kube-apiserver", grace=0.0)


def up() -> None:
    """Credentials, then the four processes; the administrator's kubeconfig. Idempotent."""
    apiserver.write_credentials(ENDPOINT)
    admin = ENDPOINT.pki / "admin.kubeconfig"
    layout.ADMIN_KUBECONFIG.touch(mode=0o600)
    if layout.ADMIN_KUBECONFIG.read_text() != admin.read_text():
        shutil.copyfile(admin, layout.ADMIN_KUBECONFIG)
    start_etcd()
    start_apiserver()
    pki = ENDPOINT.pki
    processes.start(
        "kube-controller-manager",
        [
            binaries.path("kube-controller-manager"),
            f"--kubeconfig={pki}/controller-manager.kubeconfig",
            f"--service-account-private-key-file={pki}/service-accounts.key",
            f"--root-ca-file={pki}/ca.crt",
            "--use-service-account-credentials",
            "--leader-elect=false",
            # Where the only node is this machine, a silent node means a silent API server: calling
            # its pods unready would take away what still works.
            "--node-monitor-grace-period=1h",
        ],
    )
    processes.start(
        "kube-scheduler",
        [
            binaries.path("kube-scheduler"),
            f"--kubeconfig={pki}/scheduler.kubeconfig",
            "--leader-elect=false",
        ],
    )
    kubectl.apply([_readers()])


def _readers() -> kubectl.Manifest:
    """CoreDNS and discovery may read Services, endpoints and pods, and change nothing."""
    accounts = {account.name: account.user for account in apiserver.ACCOUNTS}
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "meridian-readers"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": accounts[name]} for name in ("dns", "discovery")],
    }
