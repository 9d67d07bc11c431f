"""Finds the data plane's address, and remembers it for the time when the API server is down."""

import os
import shutil
import socket
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

DEFAULT_KUBECONFIG = Path("/var/lib/meridian/admin.kubeconfig")
DEFAULT_CACHE = Path("/var/lib/meridian/dataplane.address")
URL_VARIABLE = "MERIDIAN_URL"
_ADDRESS = "jsonpath={.spec.clusterIP}:{.spec.ports[0].port}"


class NoAddress(Exception):
    """No address of the data plane is known; the message says what to do."""


def dataplane_url(kubeconfig: Path | None = None, cache: Path = DEFAULT_CACHE) -> str:
    """$MERIDIAN_URL, else the remembered address if it answers, else the Service's. Raises
    NoAddress.

    The remembered one is asked first: a frozen API server would cost every question its time-out.
    An address older than the kubeconfig belongs to a cluster before this one.
    """
    if given := os.environ.get(URL_VARIABLE):
        return given.rstrip("/")
    kubeconfig = kubeconfig or Path(os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG)
    remembered = _remembered(cache)
    if remembered and _is_newer(cache, kubeconfig) and _accepts(remembered):
        return remembered
    found = _service_address(kubeconfig)
    if found:
        _remember(cache, found)
        return found
    if remembered:
        return remembered
    raise NoAddress(
        "the Service meridian-dataplane was not found and no address is remembered. "
        "Is the installation up (`meridian status`)? Or give --url."
    )


def _service_address(kubeconfig: Path) -> str | None:
    kubectl = find_kubectl()
    if kubectl is None:
        return None
    command = [kubectl, "--request-timeout=3s", "-n", "meridian", "get", "svc"]
    try:
        done = subprocess.run(
            [*command, "meridian-dataplane", "-o", _ADDRESS],
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    host, _, port = done.stdout.strip().rpartition(":")
    if done.returncode or not host or host == "None" or not port.isdigit():
        return None
    return f"http://{host}:{port}"


def find_kubectl() -> str | None:
    """On the PATH, else the newest in Meridian's cache of binaries."""
    if found := shutil.which("kubectl"):
        return found
    home = Path(os.environ.get("MERIDIAN_CACHE") or Path.home() / ".cache" / "meridian")
    held = [p for p in home.glob("*/*/**/kubectl") if p.is_file() and os.access(p, os.X_OK)]
    return str(max(held, key=lambda p: p.stat().st_mtime)) if held else None


def _remembered(cache: Path) -> str | None:
    try:
        text = cache.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if text.startswith("http://") else None


def _remember(cache: Path, url: str) -> None:
    """Best effort: somebody who may not write there asks the API server each time."""
    partial = cache.with_name(f"{cache.name}.{os.getpid()}")
    try:
        partial.write_text(url + "\n", "utf-8")
        partial.replace(cache)
    except OSError:
        return


def _is_newer(cache: Path, kubeconfig: Path) -> bool:
    try:
        return cache.stat().st_mtime >= kubeconfig.stat().st_mtime
    except OSError:
        return not kubeconfig.exists()


def _accepts(url: str) -> bool:
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=0.5):
            return True
    except OSError:
        return False
