"""`meridian digest`: the digest by which a Release pins a ConfigMap, so that nobody computes one by hand."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from meridian_api.digest import configmap_digest
from meridian_cli.kubectl import KubectlFailed, get


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="+", help="a manifest file, or the name of a ConfigMap in the cluster")


def run(args: argparse.Namespace) -> int:
    """Prints `NAME DIGEST` for each ConfigMap; 1 if one is not to be had or is not immutable."""
    status = 0
    for what in args.what:
        try:
            found = list(_config_maps(what))
        except (KubectlFailed, OSError, yaml.YAMLError) as error:
            print(f"meridian digest: {what}: {error}", file=sys.stderr)
            status = 1
            continue
        if not found:
            print(f"meridian digest: {what}: no ConfigMap of that name, and no file with one", file=sys.stderr)
            status = 1
        for manifest in found:
            print(f"{manifest['metadata']['name']} {configmap_digest(manifest.get('data') or {})}")
            if not manifest.get("immutable"):
                name = manifest["metadata"]["name"]
                print(f"  set `immutable: true` on {name}: a pin cannot hold what may change", file=sys.stderr)
                status = 1
    return status


def _config_maps(what: str) -> Iterator[dict[str, Any]]:
    path = Path(what)
    if path.is_file():
        documents = yaml.safe_load_all(path.read_text("utf-8"))
        yield from (d for d in documents if isinstance(d, dict) and d.get("kind") == "ConfigMap")
    else:
        manifest = get("configmaps", what)
        if manifest:
            yield manifest
