"""Templates with ${PLACEHOLDERS}: the samples, and the order service's manifests.

A release pins images and ConfigMaps by digest, so the samples can only be written when those are
known. Placeholders are `${OPERATOR_IMAGE}`, `${DATAPLANE_IMAGE}`, `${PREDICTOR_IMAGE}`,
`${ORDERS_IMAGE}` and `${DIGEST:configmap-name}`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import yaml

from meridian_api.digest import configmap_digest
from meridian_cluster import layout

# A name in a comment is documentation, not a placeholder: only these shapes are replaced.
_PLACEHOLDER = re.compile(r"\$\{((?:[A-Z]+_IMAGE)|(?:DIGEST:[a-z0-9.-]+))\}")


class Unknown(KeyError):
    """A template names something that does not exist."""

    def __str__(self) -> str:
        return str(self.args[0])


def placeholders(refs: Mapping[str, str], digests: Mapping[str, str]) -> dict[str, str]:
    """The values of all placeholders: image references by name, digests by ConfigMap name."""
    values = {f"{name.upper()}_IMAGE": ref for name, ref in refs.items()}
    return values | {f"DIGEST:{name}": digest for name, digest in digests.items()}


def render(text: str, values: Mapping[str, str]) -> str:
    """Replace every placeholder. Raises Unknown with the names that have no value."""
    missing = sorted({name for name in _PLACEHOLDER.findall(text) if name not in values})
    if missing:
        raise Unknown(f"no value for {', '.join(missing)}; known: {', '.join(sorted(values))}")
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)


def configmap_digests(texts: Mapping[str, str]) -> dict[str, str]:
    """The digest of every ConfigMap in some YAML texts, by its name."""
    digests = {}
    for text in texts.values():
        for document in yaml.safe_load_all(text):
            if document and document.get("kind") == "ConfigMap":
                digests[document["metadata"]["name"]] = configmap_digest(document.get("data") or {})
    return digests


def render_samples(refs: Mapping[str, str]) -> Path | None:
    """Render crds/samples/templates/SERVICE into crds/samples/SERVICE, replacing what was there.

    Returns the folder, or None when there are no templates.
    """
    samples = layout.repository() / "crds" / "samples"
    source, target = samples / "templates" / layout.SERVICE, samples / layout.SERVICE
    texts = {path.name: path.read_text() for path in sorted(source.glob("*.yaml"))}
    if not texts:
        return None
    values = placeholders(refs, configmap_digests(texts))
    rendered = {name: render(text, values) for name, text in texts.items()}
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name, text in rendered.items():
        (target / name).write_text(text)
    return target
