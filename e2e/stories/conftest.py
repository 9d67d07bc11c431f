"""What every story shares. Stories run one after another on one cluster, each on whatever serves when it begins."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import asking
import candidates
import hypothesis  # noqa: F401  its plugin imports it at the very end otherwise, where CPython 3.11.7 may fail (gh-106905)
import pytest
from live_cluster import LiveCluster, is_ready_pod

from meridian_cli.address import dataplane_url
from meridian_cli.identity import Identity


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first release comes first: the other stories start from one that serves."""
    items.sort(key=lambda item: "first_release" not in item.nodeid)


@pytest.fixture(scope="session")
def cluster() -> LiveCluster:
    found = LiveCluster()
    os.environ.setdefault("KUBECONFIG", str(found.kubeconfig))
    return found


@pytest.fixture(scope="session")
def url(cluster: LiveCluster) -> str:
    """The data plane's Service."""
    return dataplane_url(cluster.kubeconfig)


@pytest.fixture
def headers() -> Callable[[Identity], dict[str, str]]:
    return lambda who: asking.bearer(asking.token(who))


@pytest.fixture
def submitted(cluster: LiveCluster) -> Iterator[list[str]]:
    """Names of releases that the story made; ended and deleted afterwards unless they serve."""
    names: list[str] = []
    yield names
    for name in names:
        candidates.end(cluster, name)


@pytest.fixture(autouse=True)
def steady(cluster: LiveCluster) -> None:
    """Given a cluster at rest: operator and data plane ready, no rollout under way."""
    # Before the first release a data-plane pod has nothing to serve, and says so by not being ready.
    serves = cluster.find("serving", candidates.SERVICE) is not None
    for deployment in ("meridian-operator", "meridian-dataplane") if serves else ("meridian-operator",):
        cluster.until(
            f"{deployment} to be ready",
            lambda name=deployment: (pods := cluster.pods_of(name)) and all(is_ready_pod(p) for p in pods),
            seconds=120,
        )
    under_way = ("Checks", "OfflineEval", "Canary", "Bake")
    busy = lambda: [r for r in cluster.all("release") if (r.get("status") or {}).get("phase") in under_way]  # noqa: E731
    cluster.until("earlier rollouts to end", lambda: not busy(), seconds=300, every=1)
