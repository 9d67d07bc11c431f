"""Prometheus is told of the running pods that ask for it, and of no others."""

import pytest

from meridian_cluster import discovery


def pod(name="p", annotations=None, **status):
    """A pod as the API server lists it."""
    wanted = {"prometheus.io/scrape": "true", "prometheus.io/port": "8081"}
    return {
        "metadata": {
            "name": name,
            "namespace": "meridian",
            "annotations": wanted if annotations is None else annotations,
            "labels": {"app.kubernetes.io/name": "x"},
        },
        "status": {"phase": "Running", "podIP": "10.244.0.9", **status},
    }


def test_a_running_annotated_pod_is_a_target():
    (target,) = discovery.targets([pod()])
    assert target["targets"] == ["10.244.0.9:8081"]
    assert target["labels"] == {
        "__metrics_path__": "/metrics",
        "namespace": "meridian",
        "pod": "p",
        "app": "x",
    }


@pytest.mark.parametrize(
    "other",
    [
        pod(annotations={}),
        pod(annotations={"prometheus.io/scrape": "false"}),
        pod(phase="Succeeded"),
        pod(podIP=""),
        {"metadata": {"name": "bare", "namespace": "x"}},
    ],
)
def test_no_other_pod_is(other):
    assert discovery.targets([other]) == []


def test_the_order_does_not_depend_on_the_list():
    pods = [pod("b"), pod("a")]
    assert discovery.targets(pods) == discovery.targets(pods[::-1])
