"""Debian's packages that the embedded cluster stands on; only what is missing is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

# A file of each package, so that "installed" is a look and not a question to dpkg.
PACKAGES = {
    "containerd": "/usr/bin/containerd",
    "runc": "/usr/sbin/runc",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "iptables": "/usr/sbin/iptables",
    "conntrack": "/usr/sbin/conntrack",
    "buildah": "/usr/bin/buildah",
    "debootstrap": "/usr/sbin/debootstrap",
    "prometheus": "/usr/bin/prometheus",
    "etcd-server": "/usr/bin/etcd",
    "iproute2": "/usr/sbin/ip",
    "openssl": "/usr/bin/openssl",
    "gcc": "/usr/bin/gcc",
    "libc6-dev": "/usr/lib/x86_64-linux-gnu/libc.a",
}
_POLICY = Path("/usr/sbin/policy-rc.d")


class Unsuitable(RuntimeError):
    """This machine cannot run the embedded cluster; the message says why and what to do."""


def missing(names: Iterable[str] = PACKAGES) -> list[str]:
    """Which of these packages are not installed."""
    paths = {name: Path(PACKAGES[name]) for name in names}
    return [name for name, path in paths.items() if not path.exists() and not shutil.which(path.name)]


def check_machine() -> None:
    """Raises Unsuitable where `up` could not work, before anything is changed."""
    if os.geteuid() != 0:
        raise Unsuitable("the embedded cluster needs root: it runs a kubelet")
    if shutil.which("apt-get") is None and missing():
        raise Unsuitable(f"no apt-get here; install these by hand: {', '.join(missing())}")
    if shutil.which("go") is None:
        raise Unsuitable("Go is missing (1.26 or newer): Kubernetes is compiled from its modules")


def install(report: Callable[[str], None], names: Iterable[str] = PACKAGES) -> None:
    """Install what is missing, without letting any package start its own service. Raises Unsuitable."""
    wanted = missing(names)
    if not wanted:
        return
    report(f"installing {', '.join(wanted)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    ours = not _POLICY.exists()
    if ours:  # Debian asks this script before it starts a service; 101 means "do not"
        _POLICY.write_text("#!/bin/sh\nexit 101\n")
        _POLICY.chmod(0o755)
    command = ["apt-get", "install", "-y", "--no-install-recommends", *wanted]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:  # most often a package list that is missing or too old
            report("apt-get update")
            subprocess.run(["apt-get", "update"], env=environment, capture_output=True)
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise Unsuitable(f"apt-get install failed:\n{done.stderr.strip()[-1500:]}")
    finally:
        if ours:
            _POLICY.unlink(missing_ok=True)


if (
    __name__ == "__main__"
):  # `python -m meridian_cluster.toolchain PACKAGE ...`: for tests, which need a few of them only
    install(print, sys.argv[1:] or PACKAGES)
