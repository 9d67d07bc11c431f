"""What a person writes into the chart's values is a text where a text is meant, or is refused by name."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meridian_cluster import binaries, chart, layout

yaml = pytest.importorskip("yaml")

FOLDER = layout.repository() / "charts" / "meridian"
PINNED = "@sha256:" + "a" * 64
IMAGE = f"docker.io/meridian/x{PINNED}"
KUBERNETES = ("--kube-version", "1.34.4")  # without a cluster to ask, helm guesses
Render = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def helm() -> Path:
    found = binaries.present("helm")
    if found is None:
        pytest.skip("helm is not compiled yet: `meridian up` does it")
    return found


@pytest.fixture
def render(helm: Path, tmp_path: Path) -> Render:
    """helm's answer to values that are given as JSON, over those of the embedded installation."""

    def rendered(values: dict[str, Any], name: str = "meridian", namespace: str = "meridian"):
        paths = [tmp_path / "embedded.json", tmp_path / "values.json"]
        paths[0].write_text(json.dumps(chart.values({"operator": IMAGE, "dataplane": IMAGE})))
        paths[1].write_text(json.dumps(values))
        files = [argument for path in paths for argument in ("--values", path)]
        command = [helm, "template", name, FOLDER, "--namespace", namespace, *KUBERNETES, *files]
        return subprocess.run(command, capture_output=True, text=True)

    return rendered


def texts(value: object, path: str = "") -> dict[str, object]:
    """Every leaf of some documents by its path."""
    if isinstance(value, dict):
        return {k: v for key, inner in value.items() for k, v in texts(inner, f"{path}/{key}").items()}
    if isinstance(value, list):
        return {k: v for index, inner in enumerate(value) for k, v in texts(inner, f"{path}/{index}").items()}
    return {path: value}


# Each is a label or a name to the schema, and a boolean, a null or a number to YAML where it is not quoted.
@pytest.mark.parametrize("word", ["true", "null", "123", "1e3", "no"])
def test_a_value_that_looks_like_something_else_stays_a_text(render, word):
    other = {"region": word if word[0].isalpha() else "eu-1"}
    done = render(
        {
            **other,
            "service": word,
            "images": {"pullSecrets": [word]},
            "postgres": {"secretName": word},
            "signing": {"secretName": word, "publicKeysConfigMap": word},
            "orders": {"tokenSecretName": word},
        },
        name=word,
        namespace=word,
    )
    assert done.returncode == 0, done.stderr
    documents = [document for document in yaml.safe_load_all(done.stdout) if document]
    expected = (
        "/metadata/namespace",
        "/metadata/labels/app.kubernetes.io/instance",
        "/imagePullSecrets/0/name",
        "/secretKeyRef/name",
        "/secret/secretName",
        "/configMap/name",
        "/value",
    )
    for document in documents:
        for path, value in texts(document).items():
            if path.endswith(expected):
                assert isinstance(value, str), (document["metadata"]["name"], path)
    (dataplane,) = (d for d in documents if d["kind"] == "Deployment" and d["metadata"]["name"] == chart.DATAPLANE)
    container = dataplane["spec"]["template"]["spec"]["containers"][0]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert environment["MERIDIAN_SERVICE"] == word
    assert environment["MERIDIAN_REGION"] == other["region"]
    assert dataplane["metadata"]["namespace"] == word


ISSUER = {"issuer": "https://i.test", "jwksUrl": "https://i.test/keys"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"images": {"operator": f"docker.io/meridian/operator:latest{PINNED}"}},
        {"images": {"dataplane": f"dataplane:1.0{PINNED}"}},
        {"images": {"dataplane": f"registry:5000/dataplane:5000{PINNED}"}},
        {"jobs": {"image": f"docker.io/meridian/job:latest{PINNED}"}},
        {"region": "1-eu"},
        {"region": "e" * 41},
        {"operator": {"resources": {"limits": {"memory": "512m"}}}},
        {"operator": {"resources": {"limits": {"memory": "512 Mi"}}}},
        {"dataplane": {"resources": {"requests": {"cpu": "one"}}}},
        {"dataplane": {"resources": {"requests": {"cpu": -1}}}},
        {"dataplane": {"resources": {"requests": {"ephemeral-storage": "1GiB"}}}},
        {"identity": {"issuers": [ISSUER, ISSUER]}},
        {"prometheusUrl": "http://"},
        {"prometheusUrl": "http:///graph"},
        {"prometheusUrl": "prometheus:9090"},
        {"prometheusUrl": "http://prometheus:port"},
        {"prometheusUrl": "http://prometheus?query=up"},
        {"endpoints": {"orders": "http://orders/#top"}},
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_the_schema(render, wrong):
    done = render(wrong)
    assert done.returncode != 0
    assert "don't meet the specifications of the schema" in done.stderr


@pytest.mark.parametrize(
    "right",
    [
        {"images": {"operator": f"registry.test:5000/a/b_c/operator{PINNED}", "dataplane": f"dataplane{PINNED}"}},
        {"region": "e" * 40},
        {"operator": {"resources": {"limits": {"memory": "1.5Gi", "cpu": 1}, "requests": {"cpu": "0.25"}}}},
        {"identity": {"issuers": [ISSUER, {"issuer": "https://j.test", "jwksUrl": "https://j.test/keys?p=1"}]}},
        {"prometheusUrl": "https://[fd00::1]:9090/prometheus"},
        {"prometheusUrl": "http://prometheus.monitoring.svc.cluster.local.:9090/"},
    ],
)
def test_a_value_that_fits_is_taken(render, right):
    done = render(right)
    assert done.returncode == 0, done.stderr


def test_an_issuer_with_two_addresses_of_keys_is_refused(render):
    done = render({"identity": {"issuers": [ISSUER, {**ISSUER, "jwksUrl": "https://other.test/keys"}]}})
    assert done.returncode != 0
    assert "identity.issuers names https://i.test twice" in done.stderr
