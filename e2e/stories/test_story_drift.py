"""Story: somebody deletes by hand what the operator made. It comes back."""

from __future__ import annotations

import time

import candidates
import pytest
from live_cluster import LiveCluster, Object
from serving_watch import ready_replicas

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


def test_a_deleted_serving_config_is_stored_again_and_every_replica_follows_it(cluster: LiveCluster) -> None:
    """K-18, F-07: numbers begin again below what replicas hold, and they follow nothing until it is above."""
    release = candidates.serving_release(cluster)
    service = release["spec"]["service"]
    before = cluster.get("serving", service)
    replicas = ready_replicas(cluster)
    assert replicas

    cluster.delete("serving", service)
    began = time.monotonic()
    cluster.until(
        f"every replica to follow the ServingConfig {service} that is stored again",
        lambda: (now := cluster.find("serving", service)) and _followed(now, replicas) and now["spec"]["generation"],
        seconds=RESYNC_S + SLACK_S,
        about=(("serving", service), ("release", release["metadata"]["name"])),
    )
    now = cluster.get("serving", service)
    assert now["metadata"]["uid"] != before["metadata"]["uid"]
    assert now["spec"]["serving"] == before["spec"]["serving"] == release["metadata"]["name"]
    assert now["spec"]["generation"] > before["spec"]["generation"]
    print(f"\nServingConfig {service} followed by {len(replicas)} replicas after {time.monotonic() - began:.1f} s")


def _followed(config: Object, replicas: set[str]) -> bool:
    reports = {r["replica"]: (r["generation"], r.get("digest")) for r in config.get("status", {}).get("replicas", ())}
    wanted = (config["spec"]["generation"], config["spec"]["digest"])
    return all(reports.get(name) == wanted for name in replicas)
