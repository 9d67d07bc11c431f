"""Releases for stories: the one that serves, with one thing changed.

Built from what serves at that moment, so that a story runs on a fresh cluster and on one that has seen many releases.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from live_cluster import NAMESPACE, LiveCluster, Object, condition, is_true

from meridian_api.digest import configmap_digest

SERVICE = "support"
GOOD_VERSION, BAD_VERSION, DOOMED_VERSION = "story-good-1", "story-bad-1", "story-doomed-1"
FAULTS: Mapping[str, tuple[str, ...]] = {
    GOOD_VERSION: (),
    # Fluent, correctly cited and beside the point, on questions that people type without care: the golden set does not
    # hold such questions, the traffic does.
    BAD_VERSION: ("--fault", "worse_answer:0.9:casual"),
    # Bad on everything: a gate before any traffic has to see it.
    DOOMED_VERSION: ("--fault", "abstain:0.9:always"),
}
QUICK_ROLLOUT: Mapping[str, Any] = {
    "canary": {"steps": [{"weight": 50}], "margin": 0.1, "baselineSuccess": 0.9},
    "onInconclusive": "Rollback",
    "maxDurationSeconds": 600,
    "bakeSeconds": 10,
}
FINAL = ("Promoted", "Rejected", "RolledBack", "Superseded")


def serving_release(cluster: LiveCluster) -> Object:
    """The release that the stored pointer names."""
    found = cluster.find("serving", SERVICE)
    assert found, "nothing serves yet: the story of the first release comes before this one"
    return cluster.get("release", found["spec"]["serving"])


def unique(stem: str) -> str:
    return f"story-{stem}-{secrets.token_hex(3)}"


def candidate(
    cluster: LiveCluster,
    stem: str,
    *,
    version: str | None = None,
    steps: Sequence[int] = (50,),
    rollout: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Object:
    """A release with a new name that differs from the serving one in `version` of its model and in `changes` of its spec."""
    base = serving_release(cluster)
    spec = {k: copy.deepcopy(v) for k, v in base["spec"].items() if k not in ("attempt", "hold", "approvals", "intent")}
    asked = {**QUICK_ROLLOUT, **(rollout or {})}
    asked["canary"] = {**asked["canary"], "steps": [{"weight": w} for w in steps]}
    guardrails = spec.get("rollout", {}).get("guardrails")
    if guardrails and "guardrails" not in asked:
        asked["guardrails"] = guardrails
    spec |= {"rollbackTo": base["metadata"]["name"], "rollout": asked}
    if version:
        spec["models"]["primary"]["version"] = with_version(cluster, spec["models"]["primary"]["pool"], version)
    spec |= changes
    return {
        "apiVersion": "meridian.dev/v1alpha1",
        "kind": "Release",
        "metadata": {"name": unique(stem), "namespace": NAMESPACE},
        "spec": spec,
    }


def with_version(cluster: LiveCluster, pool: str, version: str) -> str:
    """The pool has `version` afterwards: the arguments of its first version without faults, plus the version's own."""
    found = cluster.get("pool", pool)
    versions = found["spec"]["versions"]
    if all(v["name"] != version for v in versions):
        kept = [v for v in versions if v["name"] not in FAULTS]
        args = _without_faults(kept[0].get("args", ())) + FAULTS[version]
        added = {"name": version, "uri": f"sim://{pool}/{version}@1", "args": [*args]}
        if image := kept[0].get("image"):
            added["image"] = image
        cluster.patch("pool", pool, {"spec": {"versions": [*versions, added]}})
    return version


def phase(cluster: LiveCluster, name: str) -> str:
    found = cluster.find("release", name)
    return ((found or {}).get("status") or {}).get("phase", "Pending")


def wait_for_phase(cluster: LiveCluster, name: str, *wanted: str, seconds: float) -> str:
    """The phase reached. Fails at once when the release ends in another one."""

    def reached() -> str | None:
        now = phase(cluster, name)
        if now in (*FINAL, "Held") and now not in wanted:
            raise AssertionError(f"{name} ended as {now}, not {wanted}\n{cluster.explain(('release', name))}")
        return now if now in wanted else None

    about = (("release", name), ("pool", serving_release(cluster)["spec"]["models"]["primary"]["pool"]))
    return cluster.until(f"release {name} to be {' or '.join(wanted)}", reached, seconds=seconds, about=about)


def wait_refused(cluster: LiveCluster, name: str, seconds: float = 90) -> str:
    """Waits until a release is turned down before any traffic; gives the reason and message."""

    def refused() -> str | None:
        found = cluster.get("release", name)
        said = condition(found, "Accepted")
        status = found.get("status") or {}  # one look: two could be of different moments
        if said.get("status") == "False" or status.get("phase") == "Rejected":
            return f"{said.get('reason')}: {said.get('message')} | {status.get('message', '')}"
        return None

    return cluster.until(f"release {name} to be refused", refused, seconds=seconds, about=(("release", name),))


def end(cluster: LiveCluster, name: str) -> None:
    """Leaves nothing of a story's release behind, unless it serves now."""
    if cluster.find("release", name) is None or serving_release(cluster)["metadata"]["name"] == name:
        return
    if phase(cluster, name) not in FINAL:
        cluster.patch("release", name, {"spec": {"intent": "Abort"}})
        cluster.until(f"{name} to be aborted", lambda: phase(cluster, name) in FINAL, seconds=60)
    cluster.kubectl("delete", "release", name, "--wait=false")


def evidence(found: Object) -> Mapping[str, Mapping[str, Any]]:
    return {e["name"]: e for e in (found.get("status") or {}).get("evidence", ())}


def config_map(name: str, data: Mapping[str, str]) -> tuple[Object, dict[str, str]]:
    """An immutable ConfigMap and the reference that pins it."""
    made = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "immutable": True,
        "data": dict(data),
    }
    return made, {"name": name, "digest": configmap_digest(data)}


def promoted(found: Object | None) -> bool:
    return is_true(found, "Promoted")


def _without_faults(args: Sequence[str]) -> tuple[str, ...]:
    kept: list[str] = []
    skip = False
    for arg in args:
        if skip:
            skip = False
        elif arg == "--fault":
            skip = True
        elif not arg.startswith("--fault="):
            kept.append(arg)
    return tuple(kept)
