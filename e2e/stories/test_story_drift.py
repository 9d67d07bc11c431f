"""Story: somebody deletes by hand what the operator made. It comes back."""

from __future__ import annotations

import time

import candidates
import pytest
from live_cluster import LiveCluster, Object

pytestmark = pytest.mark.e2e
RESYNC_S = 30
SLACK_S = 15


@pytest.mark.parametrize("kind", ["workload", "service"])
def test_what_a_pool_owns_is_back_within_one_resync(cluster: LiveCluster, kind: str) -> None:
    """K-18. Deleted: the version that only waits for a rollback, so that no user depends on it meanwhile."""
    pool, version = _spare_version(cluster)
    if kind == "service":
        victim = ("service", version["workload"])
    else:
        victim = ("inferenceservice" if pool["spec"]["provider"] == "KServe" else "deployment", version["workload"])
    before = cluster.get(*victim)["metadata"]["uid"]

    cluster.delete(*victim)
    began = time.monotonic()
    cluster.until(
        f"{victim[0]} {victim[1]} to be back",
        lambda: (found := cluster.find(*victim)) and found["metadata"]["uid"] != before,
        seconds=RESYNC_S + SLACK_S,
        about=(("pool", pool["metadata"]["name"]),),
    )
    back = time.monotonic() - began
    cluster.until(
        f"{version['name']} to be warm again",
        lambda: _version(cluster, pool, version["name"]).get("warm"),
        seconds=180,
        about=(("pool", pool["metadata"]["name"]),),
    )
    print(f"\n{victim[0]} {victim[1]} back after {back:.1f} s, warm after {time.monotonic() - began:.1f} s")


def _spare_version(cluster: LiveCluster) -> tuple[Object, dict]:
    """A running version that does not serve; where there is none, the one that does."""
    primary = candidates.serving_release(cluster)["spec"]["models"]["primary"]
    found = [(p, v) for p in cluster.all("pool") for v in p.get("status", {}).get("versions", ()) if v.get("warm")]
    assert found, "no version is warm"
    return min(
        found, key=lambda pv: (pv[0]["metadata"]["name"], pv[1]["name"]) == (primary["pool"], primary["version"])
    )


def _version(cluster: LiveCluster, pool: Object, name: str) -> dict:
    status = cluster.get("pool", pool["metadata"]["name"]).get("status", {})
    return next((v for v in status.get("versions", ()) if v["name"] == name), {})
