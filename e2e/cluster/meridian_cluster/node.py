"""The node: kubelet and kube-proxy on top of containerd."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from meridian_cluster import (
    binaries,
    certificates,
    containers,
    control_plane,
    kubectl,
    layout,
    network,
    processes,
)

KUBELET_ROOT = layout.STATE / "kubelet"
CGROUPS = Path("/sys/fs/cgroup")


def _kubelet_configuration() -> dict[str, object]:
    serving = certificates.serving(
        certificates.authority(layout.PKI),
        layout.PKI,
        "kubelet",
        dns=(layout.NODE_NAME,),
        ips=(layout.NODE_ADDRESS,),
    )
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",  # there may be no systemd
        "failSwapOn": False,
        "failCgroupV1": False,  # some kernels still mount the first version's hierarchies
        "containerRuntimeEndpoint": f"unix://{containers.SOCKET}",
        "address": layout.NODE_ADDRESS,
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        # Pods reach this address too: only who the API server knows and allows may ask.
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.PKI / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDNS": [layout.NODE_ADDRESS],
        "clusterDomain": layout.CLUSTER_DOMAIN,
        "resolvConf": "",
        "podLogsDir": str(layout.STATE / "pod-logs"),
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 100,  # images cannot be pulled again: never collect them
        "shutdownGracePeriod": "0s",
    }


def up() -> None:
    """Start kubelet and kube-proxy and wait until the node is Ready. Idempotent."""
    folder = layout.STATE / "cni"
    folder.mkdir(exist_ok=True)
    (folder / "10-pods.conflist").write_text(json.dumps(network.CNI_CONFIGURATION))
    configuration = layout.STATE / "kubelet.json"
    configuration.write_text(json.dumps(_kubelet_configuration(), indent=1))
    pki = control_plane.ENDPOINT.pki
    processes.start(
        "kubelet",
        [
            binaries.path("kubelet"),
            f"--config={configuration}",
            f"--kubeconfig={pki}/node.kubeconfig",
            f"--root-dir={KUBELET_ROOT}",
            f"--cert-dir={KUBELET_ROOT}/pki",
            f"--hostname-override={layout.NODE_NAME}",
            f"--node-ip={layout.NODE_ADDRESS}",
        ],
    )
    processes.start(
        "kube-proxy",
        [
            binaries.path("kube-proxy"),
            f"--kubeconfig={pki}/proxy.kubeconfig",
            f"--hostname-override={layout.NODE_NAME}",
            f"--cluster-cidr={layout.POD_RANGE}",
            "--proxy-mode=iptables",
            f"--bind-address={layout.NODE_ADDRESS}",
            f"--metrics-bind-address={layout.NODE_ADDRESS}:10249",
            "--iptables-min-sync-period=100ms",
            "--conntrack-max-per-core=0",  # leave the machine's own connection tracking alone
            "--conntrack-tcp-timeout-established=0s",
            "--conntrack-tcp-timeout-close-wait=0s",
        ],
    )
    node = f"node/{layout.NODE_NAME}"
    try:
        kubectl.wait("--for=create", node, seconds=60)
        kubectl.wait("--for=condition=Ready", node, seconds=60)
    except kubectl.Refused as error:
        raise RuntimeError(f"{error}\n{processes.log_tail('kubelet')}") from error


def remove_cgroups() -> None:
    """Remove the empty control groups that kubelet and containerd leave behind."""
    for pattern in ("*/kubepods", "*/k8s.io", "kubepods", "k8s.io"):
        for top in CGROUPS.glob(pattern):
            for folder in sorted(top.rglob("*"), key=lambda path: -len(path.parts)):
                if folder.is_dir():
                    _remove(folder)
            _remove(top)


def _remove(folder: Path) -> None:
    with suppress(OSError):  # still in use by something that is not ours
        folder.rmdir()
