"""Containers as the node sees them: the one process to kill, found by its container id."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from live_cluster import Object


def main_process(pod: Object) -> int:
    """Pid, on the node, of the first process of the pod's only container.

    Looked up in /proc and not asked of containerd: it works for every runtime, and with the control plane down.
    """
    container = container_id(pod)
    found = [pid for pid in _pids() if container in _read(pid, "cgroup") and _is_first(pid)]
    assert len(found) == 1, (
        f"{len(found)} first processes of container {container} of {pod['metadata']['name']}: {found}"
    )
    return found[0]


def kill(pod: Object) -> int:
    """SIGKILL to that process and nothing else. Returns its pid."""
    pid = main_process(pod)
    kill_process(pid)
    return pid


def kill_process(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def container_id(pod: Object) -> str:
    (status,) = pod["status"]["containerStatuses"]
    return status["containerID"].split("://", 1)[1]


def restarts(pod: Object) -> int:
    return sum(s["restartCount"] for s in pod["status"].get("containerStatuses", ()))


def pids_of_container(container: str) -> list[int]:
    return [pid for pid in _pids() if container in _read(pid, "cgroup")]


def _is_first(pid: int) -> bool:
    """Whether it is process 1 of its own pid namespace."""
    lines = [line for line in _read(pid, "status").splitlines() if line.startswith("NSpid:")]
    return bool(lines) and len(lines[0].split()) > 2 and lines[0].split()[-1] == "1"


def _pids() -> list[int]:
    return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()]


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""
