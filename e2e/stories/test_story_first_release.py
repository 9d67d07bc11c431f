"""Story: a platform engineer applies a folder, and answers are served."""

from __future__ import annotations

import re
import time
from pathlib import Path

import asking
import pytest
import yaml
from live_cluster import LiveCluster, Object

pytestmark = pytest.mark.e2e
SAMPLE = Path(__file__).parents[2] / "crds/samples/support"
KINDS = ("releases", "inferencepools.meridian.dev", "indexepochs", "tenantpolicies", "servingconfigs")
WATCHED = (
    "release",
    "pool",
    "epoch",
    "tenant",
    "serving",
    "deployment",
    "inferenceservice",
    "job",
    "service",
    "configmap",
)
MAY_BE_EMPTY = {"CANDIDATE", "WARM"}


def test_a_folder_is_applied_and_the_first_release_is_promoted(cluster: LiveCluster, url: str, headers) -> None:
    """S-32, S-34, S-52: kubectl alone, no other tool and no other step."""
    applied = cluster.kubectl("apply", "--server-side", "-f", str(SAMPLE))
    assert applied.returncode == 0, applied.stderr

    waited = cluster.kubectl(
        "wait", "--for=condition=Promoted", f"release/{_first_release()}", "--timeout=600s", timeout=620
    )
    assert waited.returncode == 0, waited.stderr + cluster.explain(("release", _first_release()))

    reply = asking.ask_once(
        url,
        headers(asking.ACME_CUSTOMER),
        {"question": "Until when may I withdraw from an order that was placed online?"},
    )
    assert (reply.end, reply.done.get("degraded")) == ("done", "full"), (reply.status, reply.raw[-500:])
    assert "14 days" in reply.text
    assert reply.cited


def test_kubectl_get_reads_well(cluster: LiveCluster) -> None:
    """K-31: each kind prints its columns, and no value that is due is missing."""
    shown = cluster.kubectl("get", ",".join(KINDS))
    assert shown.returncode == 0, shown.stderr
    print("\n" + shown.stdout)
    for block in shown.stdout.strip().split("\n\n"):
        lines = block.splitlines()
        columns = [(found.group(), found.start()) for found in re.finditer(r"\S+", lines[0])]
        assert "AGE" in dict(columns)
        for line in lines[1:]:
            empty = {name for name, at in columns if line[at:].split(" ", 1)[0] in ("", "<none>")}
            assert empty <= MAY_BE_EMPTY, f"{empty} without a value in: {line}"


def test_applying_the_same_again_changes_nothing_and_then_nothing_is_written(cluster: LiveCluster) -> None:
    """K-27: after convergence no object of ours is written for a minute."""
    cluster.until("a quiet moment", lambda: _quiet(cluster, 5), seconds=90, every=0)
    before = _versions(cluster)

    applied = cluster.kubectl("apply", "--server-side", "-f", str(SAMPLE))
    assert applied.returncode == 0, applied.stderr

    time.sleep(60)
    after = _versions(cluster)
    changed = {
        key: (before.get(key), after.get(key))
        for key in before.keys() | after.keys()
        if before.get(key) != after.get(key)
    }
    assert not changed, f"written although nothing changed: {changed}"
    print(f"\n{len(after)} objects, 0 writes in 60 s")


def _first_release() -> str:
    """The release of the sample that has no rollback target."""
    documents = [d for f in sorted(SAMPLE.glob("*.yaml")) for d in yaml.safe_load_all(f.read_text()) if d]
    first = [d["metadata"]["name"] for d in documents if d["kind"] == "Release" and "rollbackTo" not in d["spec"]]
    assert len(first) == 1, f"the sample has {len(first)} first releases: run `meridian up`, which renders it"
    return first[0]


def _versions(cluster: LiveCluster) -> dict[str, str]:
    return {f"{kind}/{_name(o)}": o["metadata"]["resourceVersion"] for kind in WATCHED for o in cluster.all(kind)}


def _quiet(cluster: LiveCluster, seconds: float) -> bool:
    before = _versions(cluster)
    time.sleep(seconds)
    return before == _versions(cluster)


def _name(found: Object) -> str:
    return found["metadata"]["name"]
