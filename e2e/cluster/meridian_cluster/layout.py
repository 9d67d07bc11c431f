"""Where everything of the embedded installation lives: addresses, names and folders.

Two roots: a cache of what is expensive to make and safe to keep (`cache`), and the running state
(`STATE`), which `down` removes. Nothing is ever written into the source tree except the rendered
samples.
"""

from __future__ import annotations

import os
from pathlib import Path

NODE_ADDRESS = "10.200.0.1"  # on lo: pods reach it, and it never leaves the machine
NODE_NAME = "node1"
POD_RANGE = "10.244.0.0/24"
SERVICE_RANGE = "10.96.0.0/16"
FIRST_SERVICE_ADDRESS = "10.96.0.1"  # what `kubernetes.default` resolves to
CLUSTER_DOMAIN = "cluster.local"

APISERVER_PORT = 6443
POSTGRES_PORT = 5432
PROMETHEUS_PORT = 9090
ISSUER_PORT = 8600

NAMESPACE = "meridian"
SERVICE = "support"
REGION = "eu-1"

STATE = Path("/var/lib/meridian")
RUN = STATE / "run"
LOGS = STATE / "log"
PKI = STATE / "pki"
SECRETS = STATE / "secrets"
ADMIN_KUBECONFIG = STATE / "admin.kubeconfig"

PROMETHEUS_URL = f"http://{NODE_ADDRESS}:{PROMETHEUS_PORT}"
ISSUER_URL = f"http://{NODE_ADDRESS}:{ISSUER_PORT}"


def cache(kind: str) -> Path:
    """The folder of the cache for one kind of thing ("bin", "images" ...); created when missing."""
    root = os.environ.get("MERIDIAN_CACHE") or Path.home() / ".cache" / "meridian"
    folder = Path(root) / kind
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def repository() -> Path:
    """The root of the source tree: the embedded cluster is always run from a checkout."""
    return Path(__file__).resolve().parents[3]


def prepare_state() -> None:
    """Make the state folders. Secrets are readable by root only; the rest may be traversed,
    because the database runs as its own user below the same root."""
    for folder in (STATE, RUN, LOGS, PKI):
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    SECRETS.mkdir(parents=True, exist_ok=True, mode=0o700)
    SECRETS.chmod(0o700)
