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
    """Prints `NAME DIGEST` for each ConfigMap; 1 if one is not to be had, cannot be pinned or is not immutable."""
    status = 0
    for what in args.what:
        try:
            found = list(_config_maps(what))
        except UnicodeDecodeError:
            print(f"meridian digest: {what}: not a text file in UTF-8", file=sys.stderr)
            status = 1
            continue
        except (KubectlFailed, OSError, yaml.YAMLError) as error:
            print(f"meridian digest: {what}: {error}", file=sys.stderr)
            status = 1
            continue
        if not found:
            print(f"meridian digest: {what}: no ConfigMap of that name, and no file with one", file=sys.stderr)
            status = 1
        for manifest in found:
            fault = _fault(manifest)
            if fault:
                print(f"meridian digest: {what}: {fault}", file=sys.stderr)
                status = 1
                continue
            name = manifest["metadata"]["name"]
            print(f"{name} {configmap_digest(manifest.get('data') or {})}")
            if not manifest.get("immutable"):
                print(f"  set `immutable: true` on {name}: a pin cannot hold what may change", file=sys.stderr)
                status = 1
    return status


def _config_maps(what: str) -> Iterator[dict[str, Any]]:
    path = Path(what)
    if path.is_file():
        for document in yaml.safe_load_all(path.read_text("utf-8")):
            yield from _among(document)
    else:
        manifest = get("configmaps", what)
        if manifest:
            yield manifest


def _among(document: object) -> Iterator[dict[str, Any]]:
    """The document itself, or what a List holds: `kubectl get -o yaml` writes one."""
    if not isinstance(document, dict):
        return
    if document.get("kind") == "ConfigMap":
        yield document
    elif document.get("kind") == "List" and isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from _among(item)


def _fault(manifest: dict[str, Any]) -> str | None:
    """Why no Release can pin this ConfigMap, or None."""
    metadata = manifest.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str):
        return "a ConfigMap without metadata.name, by which a Release would find it"
    if manifest.get("binaryData"):
        return f"{name} has binaryData, which no digest covers: a pin would not hold it"
    data = manifest.get("data") or {}
    if not isinstance(data, dict):
        return f"the data of {name} is not a table of texts"
    odd = [key for key, value in data.items() if not (isinstance(key, str) and isinstance(value, str))]
    return f"{odd[0]} in the data of {name} is not a text: quote it" if odd else None
