"""Story: people make mistakes in manifests. Each is named where it is, and none reaches a user."""

from __future__ import annotations

import re
from pathlib import Path

import candidates
import pytest
from candidates import config_map, unique
from live_cluster import LiveCluster, condition
from serving_watch import ServingWatch

pytestmark = pytest.mark.e2e
INVALID = Path(__file__).parents[2] / "crds/samples/invalid"
EMPTY = "golden-story-empty"
FIELD = re.compile(r"\bspec(\.[\w\-\[\]\"'.]+|\[|:)")


@pytest.mark.parametrize("manifest", sorted(INVALID.glob("*.yaml")), ids=lambda p: p.stem)
def test_a_malformed_manifest_is_refused_with_the_fields_path(cluster: LiveCluster, manifest: Path) -> None:
    """S-41: at admission, by the API server, with the path of the field."""
    tried = cluster.kubectl("create", "--dry-run=server", "-n", "default", "-f", str(manifest))
    assert tried.returncode != 0, f"{manifest.name} was taken: {tried.stdout}"
    assert FIELD.search(tried.stderr), tried.stderr


@pytest.mark.parametrize("missing", ["prompt", "goldenSet", "pool", "epoch"])
def test_a_missing_reference_is_named_and_heals_when_it_appears(
    cluster: LiveCluster, submitted: list[str], missing: str
) -> None:
    """K-19: Accepted=False with the name; no crash; no edit of the release is needed."""
    absent = unique(missing.lower())
    made, changes = _absent(cluster, missing, absent)
    release = candidates.candidate(cluster, f"no-{missing.lower()}", **changes)
    name = release["metadata"]["name"]
    submitted.append(name)

    cluster.apply(release)
    said = candidates.wait_refused(cluster, name)
    assert absent in said, f"the message does not name {absent}: {said}"

    cluster.apply(made)
    kind = {"pool": "pool", "epoch": "epoch"}.get(missing, "configmap")
    try:
        cluster.until(
            f"{name} to be accepted",
            lambda: condition(cluster.get("release", name), "Accepted").get("status") == "True",
            seconds=300,
            about=(("release", name),),
        )
    finally:
        candidates.end(cluster, name)
        # An epoch is protected for as long as its status says that a release needs it.
        cluster.until(f"{absent} to be deleted", lambda: cluster.try_delete(kind, absent), seconds=90)


@pytest.mark.parametrize("wrong", ["empty golden set", "prompt digest", "embedding model"])
def test_content_that_does_not_hold_is_refused_before_any_traffic(
    cluster: LiveCluster, submitted: list[str], wrong: str
) -> None:
    """S-32, S-34, S-40, R-35."""
    release, word = _wrong(cluster, wrong)
    name = release["metadata"]["name"]
    submitted.append(name)

    with ServingWatch(cluster, candidates.SERVICE) as watch:
        cluster.apply(release)
        said = candidates.wait_refused(cluster, name)

    cluster.delete("configmap", EMPTY)
    print(f"\n{wrong}: {said}")
    assert re.search(word, said, re.IGNORECASE), said
    assert not watch.generations_of(name), "it was a candidate"


def test_a_model_that_fails_its_golden_set_gets_no_traffic(cluster: LiveCluster, submitted: list[str]) -> None:
    """S-02, S-34: the floors are counted before the first user."""
    release = candidates.candidate(cluster, "doomed", version=candidates.DOOMED_VERSION)
    name = release["metadata"]["name"]
    submitted.append(name)

    with ServingWatch(cluster, candidates.SERVICE) as watch:
        cluster.apply(release)
        candidates.wait_for_phase(cluster, name, "Rejected", seconds=300)

    found = cluster.get("release", name)
    print(f"\n{found['status']['message']}")
    assert re.search(r"\d", found["status"]["message"]), "the reason names numbers"
    assert not watch.generations_of(name), "it was a candidate"


def _absent(cluster: LiveCluster, missing: str, name: str) -> tuple[dict, dict]:
    """What does not exist yet, under `name`, and the change that makes a release refer to it."""
    spec = candidates.serving_release(cluster)["spec"]
    if missing in ("prompt", "goldenSet"):
        ref = spec["prompt"] if missing == "prompt" else spec["eval"]["goldenSet"]
        made, pinned = config_map(name, cluster.get("configmap", ref["name"])["data"])
        return made, {"prompt": pinned} if missing == "prompt" else {"eval": {**spec["eval"], "goldenSet": pinned}}
    if missing == "pool":
        made = _renamed(cluster.get("pool", spec["models"]["primary"]["pool"]), name)
        return made, {"models": {**spec["models"], "primary": {**spec["models"]["primary"], "pool": name}}}
    return _renamed(cluster.get("epoch", spec["index"]["epoch"]), name), {"index": {**spec["index"], "epoch": name}}


def _renamed(found: dict, name: str) -> dict:
    metadata = {"name": name, "namespace": found["metadata"]["namespace"]}
    return {"apiVersion": found["apiVersion"], "kind": found["kind"], "metadata": metadata, "spec": found["spec"]}


def _wrong(cluster: LiveCluster, wrong: str) -> tuple[dict, str]:
    spec = candidates.serving_release(cluster)["spec"]
    if wrong == "empty golden set":
        empty, pinned = config_map(EMPTY, {"golden.jsonl": ""})
        cluster.apply(empty)
        return candidates.candidate(cluster, "empty-golden", eval={**spec["eval"], "goldenSet": pinned}), "golden"
    if wrong == "prompt digest":
        other = {**spec["prompt"], "digest": "sha256:" + "0" * 64}
        return candidates.candidate(cluster, "wrong-digest", prompt=other), "digest"
    index = {**spec["index"], "embeddingModel": "wordllama@another-1"}
    return candidates.candidate(cluster, "wrong-embedding", index=index), "embedding|wordllama@another-1"
