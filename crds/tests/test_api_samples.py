"""Every sample is tried on the model and on a real kube-apiserver, and they agree."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
import yaml

from meridian_api.kinds import KINDS
from meridian_cluster import apiserver, waiting

SAMPLES = Path(__file__).parent.parent / "samples"
BY_KIND = {kind.kind: kind for kind in KINDS}
Manifest = dict[str, Any]


def files(folder: str) -> list[Path]:
    found = sorted((SAMPLES / folder).glob("*.yaml"))
    assert found, folder
    return found


def named(path: Path) -> str:
    return path.stem


def expected(path: Path) -> str:
    """The text that the refusal must contain, from the sample's first line."""
    return path.read_text().splitlines()[0].removeprefix("# refused: ")


class Server:
    """Just enough of a client: create, replace, delete, as a person's `kubectl` with strict field validation."""

    def __init__(self, running: apiserver.TemporaryServer) -> None:
        self._running = running
        self._tls = ssl.create_default_context(cafile=str(running.ca))

    def call(self, method: str, path: str, body: Manifest | None = None) -> tuple[int, Manifest]:
        request = urllib.request.Request(
            f"{self._running.url}{path}?fieldValidation=Strict",
            method=method,
            data=json.dumps(body).encode() if body else None,
            headers={"Authorization": f"Bearer {self._running.token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, context=self._tls, timeout=20) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            return refused.code, json.load(refused)

    def collection(self, manifest: Manifest) -> str:
        return f"/apis/{manifest['apiVersion']}/namespaces/default/{BY_KIND[manifest['kind']].plural}"

    def create(self, manifest: Manifest) -> tuple[int, Manifest]:
        return self.call("POST", self.collection(manifest), manifest)

    def replace(self, manifest: Manifest, seen: Manifest) -> tuple[int, Manifest]:
        manifest["metadata"]["resourceVersion"] = seen["metadata"]["resourceVersion"]
        return self.call("PUT", f"{self.collection(manifest)}/{manifest['metadata']['name']}", manifest)

    def delete(self, manifest: Manifest) -> None:
        self.call("DELETE", f"{self.collection(manifest)}/{manifest['metadata']['name']}")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with apiserver.temporary() as running:
        client = Server(running)
        for path in sorted(SAMPLES.parent.glob("meridian.dev_*.yaml")):
            status, answer = client.call(
                "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", yaml.safe_load(path.read_text())
            )
            assert status == 201, f"{path.name}: {answer['message']}"
        for kind in KINDS:
            path = f"/apis/meridian.dev/v1alpha1/namespaces/default/{kind.plural}"
            waiting.until(
                f"{kind.plural} to be served", lambda p=path: client.call("GET", p)[0] == 200, seconds=30, every=0.1
            )
        yield client


def parse(manifest: Manifest) -> None:
    BY_KIND[manifest["kind"]].spec.from_wire(manifest["spec"])


@pytest.mark.parametrize("path", files("valid"), ids=named)
def test_a_valid_sample_is_accepted_by_model_and_server_alike(path: Path, server: Server) -> None:
    """S-32: every field set survives the round trip through the model and the server."""
    manifest = yaml.safe_load(path.read_text())
    model = BY_KIND[manifest["kind"]].spec.from_wire(manifest["spec"])
    status, answer = server.create(manifest)
    server.delete(manifest)
    assert status == 201, answer.get("message")
    stored = BY_KIND[manifest["kind"]].spec.from_wire(answer["spec"])
    assert stored == model, "server-side defaults differ from the model's"


@pytest.mark.parametrize("path", files("invalid"), ids=named)
def test_an_invalid_sample_is_refused_by_both_with_the_fields_name(path: Path, server: Server) -> None:
    """S-41, T-17, T-40, T-43, T-46, G-08, K-35, R-29: bad input names the field at the earliest place that can know."""
    manifest = yaml.safe_load(path.read_text())
    with pytest.raises(pydantic.ValidationError):
        parse(manifest)
    status, answer = server.create(manifest)
    server.delete(manifest)
    assert status in (400, 422), answer
    assert expected(path) in answer["message"]


@pytest.mark.parametrize("path", files("invalid-updates"), ids=named)
def test_a_forbidden_change_is_refused_by_the_server(path: Path, server: Server) -> None:
    """R-22, T-48, K-06, F-07: immutable fields stay, generations and lease epochs only grow, optional fields included."""
    before, after = yaml.safe_load_all(path.read_text())
    parse(before)
    parse(after)
    status, seen = server.create(before)
    assert status == 201, seen.get("message")
    status, answer = server.replace(after, seen)
    server.delete(before)
    assert status == 422, answer
    assert expected(path) in answer["message"]


@pytest.mark.parametrize("path", files("valid-updates"), ids=named)
def test_an_allowed_change_is_accepted(path: Path, server: Server) -> None:
    """R-24: intent, attempt, hold and approvals are what may change in a Release."""
    before, after = yaml.safe_load_all(path.read_text())
    status, seen = server.create(before)
    assert status == 201, seen.get("message")
    status, answer = server.replace(after, seen)
    server.delete(before)
    assert status == 200, answer.get("message")


@pytest.mark.parametrize(
    ("sample", "name", "refusal"),
    [
        ("release-full", "2026-10-21.2", "cannot be rolled back to itself"),
        ("release-full", "a" * 121, "at most 120 characters"),
        ("release-full", "support-latest", "'latest' floats"),
        ("indexepoch", "latest", "'latest' floats"),
        ("inferencepool", "support.llm", "at most 63"),
        ("inferencepool", "a" * 64, "at most 63"),
        ("servingconfig", "support.eu", "at most 63"),
    ],
)
def test_a_name_that_others_could_not_use_is_refused(sample: str, name: str, refusal: str, server: Server) -> None:
    """S-41, K-35: the server alone has the name in hand."""
    manifest = yaml.safe_load((SAMPLES / "valid" / f"{sample}.yaml").read_text())
    manifest["metadata"]["name"] = name
    status, answer = server.create(manifest)
    server.delete(manifest)
    assert status == 422, answer
    assert refusal in answer["message"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_status_field_that_the_model_can_write_is_in_the_schema(kind: Any, server: Server) -> None:
    """K-36: the server prunes unknown status fields without a word, so model and schema must be one."""
    status, crd = server.call(
        "GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{kind.plural}.meridian.dev"
    )
    assert status == 200
    root = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert set(root["properties"]["status"]["properties"]) == {f.alias for f in kind.status.model_fields.values()}
    assert "preserve-unknown-fields" not in json.dumps(root).lower()
