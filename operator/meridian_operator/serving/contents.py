"""What is known of the content behind a release's name: stored with the pointer, so that neither a lost status nor a Release that
was deleted and made again can change it (R-22, K-10). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meridian_api.content import content_digest
from meridian_operator.serving.compile import Compiled, Sources

MOST = 16
"""Releases remembered, the one that serves first."""


def digest(spec: Mapping[str, Any], sources: Sources, release: str) -> str | None:
    """Of what `release` would serve by: as stored while it has traffic, since its manifest is kept too; else as declared now."""
    with_traffic = _with_traffic(spec)
    if release in with_traffic:
        return with_traffic[release]
    declared = sources.releases.get(release)
    return content_digest(declared) if declared else None


def fields(spec: Mapping[str, Any], sources: Sources, made: Compiled, uid: str) -> dict[str, Any]:
    """The fields of a ServingConfig's spec that say so, for the snapshot in `made`; `uid` is its candidate's, if that is new.

    `spec` is the stored one. A manifest that was kept though the Release declares another content gives no digest.
    """
    serving, trial = made.snapshot.serving.release, made.snapshot.candidate
    earlier = {one["release"]: one["digest"] for one in spec.get("served") or ()}
    now = None if serving in made.kept and serving not in _with_traffic(spec) else digest(spec, sources, serving)
    served = {**({serving: now} if now else {}), **{name: d for name, d in earlier.items() if name != serving}}
    found: dict[str, Any] = {"served": [{"release": n, "digest": d} for n, d in list(served.items())[:MOST]]}
    if trial is None:
        return found
    name = trial.manifest.release
    same = spec.get("candidate") == name
    known = spec.get("candidateDigest") if same else digest(spec, sources, name)
    found["candidateUid"] = uid or (spec.get("candidateUid", "") if same else "")
    return {**found, "candidateDigest": known} if known else found


def _with_traffic(spec: Mapping[str, Any]) -> dict[str, str]:
    """Stored digests of the releases that have traffic; an earlier version stored none."""
    found = {one["release"]: one["digest"] for one in spec.get("served") or () if one["release"] == spec.get("serving")}
    if spec.get("candidate") and spec.get("candidateDigest"):
        found[spec["candidate"]] = spec["candidateDigest"]
    return found
