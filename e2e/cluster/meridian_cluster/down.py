"""`meridian down`: everything that `up` started ends, and the machine is as it was before.

Processes are ended by recorded identity, containers through containerd, mounts only below our own
folders. Caches stay: compiled programs, packages, images.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from meridian_cluster import containers, images, layout, network, node, processes
from meridian_cluster.narration import Narrator
from meridian_cluster.up import alone

# First what would start containers again, last what the others need to end well.
_BEFORE_CONTAINERS = ("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
_AFTER_CONTAINERS = ("coredns", "discovery", "prometheus", "issuer", "postgres", "containerd")
_KEPT = {"pgsql", "lock"}  # PostgreSQL's programs, and the lock that we hold
STEPS = 5


def down(*, quiet: bool = False) -> None:
    """End everything. Safe when nothing runs, and after a crash in the middle of `up`."""
    narrator = Narrator(STEPS, quiet=quiet)
    with alone(narrator.say):
        with narrator.step("Kubernetes' controllers and kubelet"):
            for name in _BEFORE_CONTAINERS:
                processes.stop(name, grace=3)
        with narrator.step("Containers"):
            containers.end_all()
            if processes.running("containerd"):
                images.prune()
        with narrator.step("Services, API server, etcd"):
            for name in _AFTER_CONTAINERS:
                # SIGINT asks PostgreSQL to end its clients' sessions; SIGTERM would wait for them.
                first = signal.SIGINT if name == "postgres" else signal.SIGTERM
                processes.stop(name, grace=10, first=first)
            # Without etcd the API server ignores SIGTERM for a minute, and it holds no state.
            processes.stop("kube-apiserver", grace=0)
            processes.stop("etcd", grace=5)
            for name in processes.names():
                processes.stop(name)
        with narrator.step("Mounts, network, control groups"):
            unmount()
            network.close_down()
            node.remove_cgroups()
        with narrator.step("State"):
            remove_state()
    narrator.say(f"down in {narrator.elapsed():.0f} s; caches are kept in {layout.cache('')}")


def mounts(table: str, *folders: Path) -> list[str]:
    """Mount points at or below some folders, innermost first, from the text of /proc/mounts."""
    points = [line.split()[1].encode().decode("unicode_escape") for line in table.splitlines()]
    ours = [
        point for point in points if any(point == str(folder) or point.startswith(f"{folder}/") for folder in folders)
    ]
    return sorted(ours, key=len, reverse=True)


def unmount() -> None:
    """Unmount everything below the state folder and the caches of containerd and buildah."""
    folders = (layout.STATE, layout.cache("containerd"), layout.cache("buildah"))
    for point in mounts(Path("/proc/mounts").read_text(), *folders):
        subprocess.run(["umount", "-l", point], capture_output=True)


def remove_state() -> None:
    """Remove the state folder's contents. Raises RuntimeError when something is still mounted
    there: removing across a mount would remove somebody's files."""
    left = mounts(Path("/proc/mounts").read_text(), layout.STATE)
    if left:
        raise RuntimeError(f"still mounted: {', '.join(left)}")
    for path in layout.STATE.iterdir():
        if path.name in _KEPT:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    remove_elsewhere()


def remove_elsewhere() -> None:
    """What kubelet and containerd write outside our folders whatever they are told; folders only
    where nothing else is in them."""
    for link in Path("/var/log/containers").glob("*.log"):
        if str(layout.STATE) in str(link.readlink()):
            link.unlink()
    for path in Path("/var/lib/cni/results").glob("pods-*"):
        path.unlink()
    for path in Path("/var/lib/kubelet/device-plugins").glob("*"):
        path.unlink()
    for folder in (
        "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet",
        "/var/log/containers",
        "/var/lib/cni/results",
        "/var/lib/cni",
    ):
        with suppress(OSError):
            Path(folder).rmdir()
