"""Prometheus as a host process: it finds the pods through the API server and scrapes them."""

from __future__ import annotations

import json
import pwd
import shutil
import urllib.error
import urllib.request

from meridian_cluster import control_plane, layout, processes, waiting

USER = "prometheus"  # made by Debian's package
SCRAPE_SECONDS = 2  # a canary of one minute needs more than four samples
_LABEL = "__meta_kubernetes_pod_annotation_prometheus_io_"


def _configuration(kubeconfig: str) -> dict[str, object]:
    relabel = [
        {"source_labels": [f"{_LABEL}scrape"], "action": "keep", "regex": "true"},
        {"source_labels": ["__meta_kubernetes_pod_phase"], "action": "drop",
         "regex": "Succeeded|Failed"},
        {"source_labels": [f"{_LABEL}path"], "regex": "(.+)", "target_label": "__metrics_path__"},
        {"source_labels": ["__meta_kubernetes_pod_ip", f"{_LABEL}port"], "separator": ":",
         "target_label": "__address__"},
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
        {"source_labels": ["__meta_kubernetes_pod_label_app_kubernetes_io_name"],
         "target_label": "app"},
    ]  # fmt: skip
    return {
        "global": {
            "scrape_interval": f"{SCRAPE_SECONDS}s",
            "scrape_timeout": f"{SCRAPE_SECONDS}s",
            "evaluation_interval": "15s",
        },
        "scrape_configs": [
            {
                "job_name": "pods",
                "kubernetes_sd_configs": [{"role": "pod", "kubeconfig_file": kubeconfig}],
                # A container with several ports appears several times; the address makes them one.
                "relabel_configs": relabel,
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
    """Start Prometheus under its own user and wait until it is ready. Idempotent."""
    folder = layout.STATE / "prometheus"
    folder.mkdir(exist_ok=True)
    kubeconfig = folder / "kubeconfig"
    shutil.copyfile(control_plane.ENDPOINT.pki / "prometheus.kubeconfig", kubeconfig)
    kubeconfig.chmod(0o600)
    configuration = folder / "prometheus.json"
    configuration.write_text(json.dumps(_configuration(str(kubeconfig)), indent=1))
    for path in (folder, kubeconfig, configuration):
        shutil.chown(path, USER, pwd.getpwnam(USER).pw_gid)
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
