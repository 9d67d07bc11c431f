"""kubectl as the demo uses it: the very commands that a reader could type."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meridian_cli.address import DEFAULT_KUBECONFIG, find_kubectl

NAMESPACE = "meridian"


class KubectlFailed(Exception):
    """kubectl exited non-zero; the message is its own."""


def kubectl(*arguments: str | Path, timeout: float = 60.0, check: bool = True) -> str:
    """What `kubectl -n meridian ARGUMENTS` prints. Raises KubectlFailed."""
    found = find_kubectl()
    if found is None:
        raise KubectlFailed("kubectl was not found; `meridian up` installs it")
    environment = {
        **os.environ,
        "KUBECONFIG": os.environ.get("KUBECONFIG") or str(DEFAULT_KUBECONFIG),
    }
    try:
        done = subprocess.run(
            [found, "-n", NAMESPACE, *map(str, arguments)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise KubectlFailed(f"kubectl {' '.join(map(str, arguments))}: no answer in {timeout:.0f} s") from late
    if done.returncode and check:
        raise KubectlFailed(done.stderr.strip() or done.stdout.strip())
    return done.stdout


def get(resource: str, name: str | None = None) -> dict[str, Any]:
    """The object (or the list of a resource) as the API server has it; {} when it does not
    exist."""
    arguments: Sequence[str] = (
        resource,
        *([name] if name else []),
        "-o",
        "json",
        "--ignore-not-found",
    )
    printed = kubectl("get", *arguments, timeout=15)
    return json.loads(printed) if printed.strip() else {}


def condition(manifest: dict[str, Any], kind: str) -> dict[str, Any]:
    """A condition of an object, {} when absent."""
    found = [c for c in manifest.get("status", {}).get("conditions", []) if c["type"] == kind]
    return found[0] if found else {}
