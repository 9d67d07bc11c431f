"""Tells Prometheus by a file which pods to scrape: Debian's build of it cannot ask Kubernetes.

Runs as a host process. Pods choose by annotations: `prometheus.io/scrape: "true"`, `port`, `path`.
While the API server does not answer the file stays as it is, so that measuring goes on.
"""

from __future__ import annotations

import base64
import json
import ssl
import sys
import time
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

EVERY_SECONDS = 2.0
_ANNOTATION = "prometheus.io"
_APP = "app.kubernetes.io/name"


def targets(pods: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Prometheus's file format for the running pods that want to be scraped, in a fixed order."""
    found = []
    for pod in pods:
        metadata, status = pod["metadata"], pod.get("status", {})
        annotations = metadata.get("annotations") or {}
        if annotations.get(f"{_ANNOTATION}/scrape") != "true":
            continue
        if status.get("phase") != "Running" or not status.get("podIP"):
            continue
        port = annotations.get(f"{_ANNOTATION}/port", "8080")
        found.append(
            {
                "targets": [f"{status['podIP']}:{port}"],
                "labels": {
                    "__metrics_path__": annotations.get(f"{_ANNOTATION}/path", "/metrics"),
                    "namespace": metadata["namespace"],
                    "pod": metadata["name"],
                    "app": (metadata.get("labels") or {}).get(_APP, ""),
                },
            }
        )
    return sorted(found, key=lambda target: target["labels"]["pod"])


def list_pods(kubeconfig: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Every pod, as the API server has it. Raises OSError when it does not answer."""
    cluster = kubeconfig["clusters"][0]["cluster"]
    token = kubeconfig["users"][0]["user"]["token"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    request = urllib.request.Request(
        f"{cluster['server']}/api/v1/pods?resourceVersion=0",
        headers={"Authorization": f"Bearer {token}"},
    )
    context = ssl.create_default_context(cadata=authority)
    with urllib.request.urlopen(request, timeout=5, context=context) as answer:
        items: list[Mapping[str, Any]] = json.load(answer)["items"]
        return items


def main(kubeconfig: Path, output: Path) -> None:
    """Write the file whenever it changes, for ever."""
    credentials = json.loads(kubeconfig.read_text())
    written = ""
    while True:
        try:
            text = json.dumps(targets(list_pods(credentials)), indent=1)
        except OSError as error:
            print(f"keeping the last targets: {error}", file=sys.stderr, flush=True)
        else:
            if text != written:
                partial = output.with_suffix(".partial")
                partial.write_text(text)
                partial.rename(output)  # Prometheus never reads half a file
                written = text
        time.sleep(EVERY_SECONDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
