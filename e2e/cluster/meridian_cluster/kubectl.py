"""kubectl as the administrator of the embedded cluster."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from meridian_cluster import binaries, layout, waiting

Manifest = Mapping[str, Any]


class Refused(RuntimeError):
    """kubectl failed; the message is what it said."""


def kubectl(*arguments: str | Path, text: str | None = None, timeout: float = 120) -> str:
    """Run kubectl and return what it printed. Raises Refused."""
    command = [binaries.path("kubectl"), "--kubeconfig", layout.ADMIN_KUBECONFIG, *arguments]
    try:
        done = subprocess.run(
            [str(part) for part in command],
            input=text, capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Refused(f"kubectl {arguments[0]} took more than {timeout:.0f} s") from error
    if done.returncode:
        raise Refused(f"kubectl {' '.join(map(str, arguments))}: {done.stderr.strip()[-1500:]}")
    return done.stdout


def apply(manifests: Iterable[Manifest]) -> None:
    """Server-side apply of objects; ours wins over other field managers, as this is our cluster."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
    apply_text(text)


def apply_text(text: str) -> None:
    """Server-side apply of YAML or JSON text."""
    kubectl(
        "apply", "--server-side", "--force-conflicts", "--field-manager=meridian-up", "-f", "-",
        text=text,
    )  # fmt: skip


def get(*arguments: str) -> dict[str, Any]:
    """An object or a list as JSON; {} when it does not exist."""
    text = kubectl("get", *arguments, "-o", "json", "--ignore-not-found")
    answer: dict[str, Any] = json.loads(text) if text.strip() else {}
    return answer


def established(*kinds: str, seconds: int = 60) -> None:
    """Wait until CustomResourceDefinitions are served. `kubectl wait` fails on one that is so new
    that it has no conditions yet, so this looks for itself."""

    def all_are() -> bool:
        items = get("crd", *kinds).get("items", [])
        conditions = [c for item in items for c in item.get("status", {}).get("conditions") or ()]
        ready = [c for c in conditions if c["type"] == "Established" and c["status"] == "True"]
        return len(ready) == len(kinds)

    waiting.until(f"{', '.join(kinds)} to be served", all_are, seconds=seconds)


def wait(*arguments: str, seconds: int) -> None:
    """`kubectl wait` with a limit. Raises Refused when it is over."""
    kubectl("wait", *arguments, f"--timeout={seconds}s", timeout=seconds + 10)


def rollout(name: str, namespace: str, seconds: int) -> None:
    """Wait until a Deployment has rolled out. Raises Refused with its pods' states."""
    try:
        kubectl(
            "-n", namespace, "rollout", "status", name, f"--timeout={seconds}s",
            timeout=seconds + 10,
        )  # fmt: skip
    except Refused as error:
        pods = kubectl("-n", namespace, "get", "pods", "-o", "wide")
        raise Refused(f"{error}\n{pods}") from error
