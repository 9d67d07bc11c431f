"""The node's address, the rules that keep the cluster on this machine, and how both are undone.

Everything that `open_up` and Kubernetes itself change on the host is undone by `close_down`:
addresses, bridges, firewall chains of both IP families, and kernel settings, whose former values
are written down before the first change.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from meridian_cluster import kept_files, layout

# Kernel settings that we, kubelet or kube-proxy change.
_SETTINGS = (
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all/route_localnet",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
_FORMER = layout.STATE / "kernel-settings.json"
_BRIDGE = "cni0"
_BUILT_IN = ("INPUT", "OUTPUT", "FORWARD", "PREROUTING", "POSTROUTING")
CNI_CONFIGURATION = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": _BRIDGE,
            "isGateway": True,
            "ipMasq": False,
            "hairpinMode": True,  # a pod may be the endpoint of a Service that it calls itself
            "ipam": {
                "type": "host-local",
                "dataDir": str(layout.STATE / "cni-addresses"),
                "ranges": [[{"subnet": layout.POD_RANGE}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}


def _run(*argv: str) -> subprocess.CompletedProcess[str]:
    """A program that is not installed fails like any other: what it would have undone, nobody did."""
    try:
        return subprocess.run(argv, capture_output=True, text=True)
    except FileNotFoundError:
        return subprocess.CompletedProcess(argv, 127, stdout="", stderr=f"{argv[0]} is not installed")


def _must(*argv: str) -> None:
    done = _run(*argv)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")


def _way_out() -> str | None:
    """The interface of the default route, if the machine has one."""
    fields = _run("ip", "route", "show", "default").stdout.split()
    return fields[fields.index("dev") + 1] if "dev" in fields else None


def _fences() -> list[tuple[str, ...]]:
    """Nothing addressed to a Service and nothing sent by a pod leaves by the machine's own way."""
    out = _way_out()
    if out is None:
        return []
    return [
        ("OUTPUT", "-d", layout.SERVICE_RANGE, "-o", out, "-j", "REJECT"),
        ("FORWARD", "-s", layout.POD_RANGE, "-o", out, "-j", "REJECT"),
    ]


def open_up() -> None:
    """Add the node's address and the fences. Idempotent."""
    if not kept_files.document(_FORMER):
        former = {}
        for name in _SETTINGS:
            path = Path("/proc/sys") / name
            if path.exists():
                former[name] = path.read_text().strip()
        kept_files.write(_FORMER, json.dumps(former))
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    if layout.NODE_ADDRESS not in _run("ip", "-o", "addr", "show", "dev", "lo").stdout:
        _must("ip", "addr", "add", f"{layout.NODE_ADDRESS}/32", "dev", "lo")
    for rule in _fences():
        if _run("iptables", "-w", "-C", *rule).returncode:
            _must("iptables", "-w", "-I", *rule)


def close_down() -> None:
    """Undo all of it; safe when nothing is there."""
    for rule in _fences():
        while _run("iptables", "-w", "-D", *rule).returncode == 0:
            pass
    for family in ("iptables", "ip6tables"):
        for table in ("filter", "nat", "mangle"):
            _remove_chains(family, table)
    for line in _run("ip", "netns", "list").stdout.splitlines():
        if line.startswith("cni-"):
            _run("ip", "netns", "del", line.split()[0])  # takes the pod's veth pair along
    _run("ip", "link", "del", _BRIDGE)
    _run("ip", "addr", "del", f"{layout.NODE_ADDRESS}/32", "dev", "lo")
    former: dict[str, str] = kept_files.document(_FORMER)
    for name, value in former.items():
        path = Path("/proc/sys") / name
        if path.read_text().strip() != value:
            path.write_text(value)
    _FORMER.unlink(missing_ok=True)


def _remove_chains(family: str, table: str) -> None:
    """Remove the chains of kubelet and kube-proxy: first the jumps to them, then they."""
    lines = _run(f"{family}-save", "-t", table).stdout.splitlines()
    ours = [line.split()[0][1:] for line in lines if line.startswith(":KUBE-")]
    if not ours:
        return
    script = [f"*{table}"]
    for line in lines:
        built_in = any(line.startswith(f"-A {chain} ") for chain in _BUILT_IN)
        if built_in and " -j KUBE-" in line:
            script.append("-D" + line[2:])
    script += [f"-F {chain}" for chain in ours] + [f"-X {chain}" for chain in ours]
    text = "\n".join([*script, "COMMIT", ""])
    subprocess.run([f"{family}-restore", "-w", "--noflush"], input=text, text=True, check=True)
