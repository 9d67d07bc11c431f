"""containerd: its process, its images, and the end of every container in it.

The image store lives in the cache, since importing images takes longer than anything else of a
warm start; containers and their state live in the state folder and end with `down`.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

from meridian_cluster import layout, processes, waiting

SOCKET = layout.RUN / "containerd.sock"
PAUSE = "docker.io/meridian/pause:local"
_NAMESPACE = "k8s.io"  # where the kubelet looks


def up() -> None:
    """Start containerd and wait for its socket. Idempotent."""
    configuration = layout.STATE / "containerd.toml"
    configuration.write_text(
        f"""version = 2
root = "{layout.cache("containerd")}"
state = "{layout.RUN}/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.btrfs"]
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  # Without CAP_SYS_RESOURCE a sandbox could not lower its own score and would not start.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{layout.STATE}/cni"
"""
    )
    processes.start("containerd", ["/usr/bin/containerd", "-c", configuration])
    waiting.until(
        "containerd",
        lambda: SOCKET.is_socket() and ctr("version", check=False).returncode == 0,
        seconds=30,
        why_not=lambda: processes.log_tail("containerd"),
    )


def ctr(*arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """containerd's own client, in the kubelet's namespace."""
    command = ["ctr", "-a", str(SOCKET), "-n", _NAMESPACE, *(str(part) for part in arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"ctr {' '.join(command[5:])}: {done.stderr.strip()[-800:]}")
    return done


def images() -> dict[str, str]:
    """Every image by name, with the digest of its manifest."""
    rows = ctr("images", "ls").stdout.splitlines()[1:]
    return {row.split()[0]: row.split()[2] for row in rows if row.strip()}


def end_all() -> None:
    """Kill and forget every container. Images stay."""
    if not processes.running("containerd"):
        return
    for task in ctr("tasks", "ls", "-q", check=False).stdout.split():
        ctr("tasks", "kill", "-s", "SIGKILL", task, check=False)
    with suppress(waiting.WaitedTooLong):  # `tasks rm -f` kills again
        waiting.until("containers to end", _none_running, seconds=5, every=0.1)
    for task in ctr("tasks", "ls", "-q", check=False).stdout.split():
        ctr("tasks", "rm", "-f", task, check=False)
    known = ctr("containers", "ls", "-q", check=False).stdout.split()
    if known:
        ctr("containers", "rm", *known, check=False)


def _none_running() -> bool:
    rows = ctr("tasks", "ls", check=False).stdout.splitlines()[1:]
    return not any("RUNNING" in row for row in rows)
