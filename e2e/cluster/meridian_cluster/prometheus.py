"""Prometheus as a host process, scraping the pods that `discovery` finds."""

from __future__ import annotations

import json
import pwd
import shutil
import sys
import urllib.error
import urllib.request

from meridian_cluster import control_plane, layout, processes, waiting

USER = "prometheus"  # made by Debian's package
SCRAPE_SECONDS = 2  # a canary of one minute needs more than four samples


def _configuration(targets: str) -> dict[str, object]:
    return {
        "global": {
            "scrape_interval": f"{SCRAPE_SECONDS}s",
            "scrape_timeout": f"{SCRAPE_SECONDS}s",
            "evaluation_interval": "15s",
        },
        "scrape_configs": [
            {
                "job_name": "pods",
                "file_sd_configs": [{"files": [targets], "refresh_interval": "5s"}],
            }
        ],
    }


def ready() -> bool:
    """Whether Prometheus says that it is ready."""
    try:
        with urllib.request.urlopen(f"{layout.PROMETHEUS_URL}/-/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def up() -> None:
    """Start discovery, and Prometheus under its own user; wait until it is ready. Idempotent."""
    folder = layout.STATE / "prometheus"
    folder.mkdir(exist_ok=True)
    shutil.chown(folder, USER, pwd.getpwnam(USER).pw_gid)
    targets = folder / "targets.json"
    kubeconfig = control_plane.ENDPOINT.pki / "discovery.kubeconfig"
    processes.start("discovery", [sys.executable, "-m", "meridian_cluster.discovery", kubeconfig, targets])
    configuration = folder / "prometheus.json"
    configuration.write_text(json.dumps(_configuration(str(targets)), indent=1))
    processes.start(
        "prometheus",
        [
            "/usr/bin/prometheus",
            f"--config.file={configuration}",
            f"--storage.tsdb.path={folder}/data",
            "--storage.tsdb.retention.time=6h",
            "--storage.tsdb.retention.size=512MB",
            f"--web.listen-address={layout.NODE_ADDRESS}:{layout.PROMETHEUS_PORT}",
            "--log.level=warn",
        ],
        user=USER,
        cwd=folder,
    )
    waiting.until("Prometheus", ready, seconds=30, why_not=lambda: processes.log_tail("prometheus"))
