"""Every admission policy against a real kube-apiserver: what it must refuse, and what it must let through.

A case names who (`as`), what (`do`, `object`, for an update maybe a `subresource`), what exists before (`given`; with
`beforePolicies`, before they do), and for a refusal a part of its message.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from meridian_cluster import apiserver, binaries

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "policies" / "admission"
CASES = sorted(FOLDER.glob("cases/*/*.yaml"))
NAMESPACE = "cases"
PLURALS = {
    "Namespace": "namespaces",
    "Pod": "pods",
    "ServiceAccount": "serviceaccounts",
    "Release": "releases",
    "InferencePool": "inferencepools",
    "IndexEpoch": "indexepochs",
    "ServingConfig": "servingconfigs",
    "CustomResourceDefinition": "customresourcedefinitions",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
}
EDITOR_RULES = [
    # Named one by one: `*` would grant the subresource `releases/approve` too.
    {
        "apiGroups": ["meridian.dev"],
        "resources": ["releases", "inferencepools", "indexepochs", "servingconfigs"],
        "verbs": ["get", "create", "update", "delete"],
    },
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]},
]
APPROVER_RULES = [{"apiGroups": ["meridian.dev"], "resources": ["releases/approve"], "verbs": ["update"]}]


class Server:
    """A few calls, as anybody."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def call(
        self,
        verb: str,
        manifest: dict[str, Any],
        who: dict[str, Any] | None = None,
        subresource: str = "",
        **query: str,
    ) -> httpx.Response:
        version, kind = manifest["apiVersion"], manifest["kind"]
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        namespace = manifest["metadata"].get("namespace")
        path += f"/namespaces/{namespace}" if namespace else ""
        path += f"/{PLURALS[kind]}"
        if verb != "POST":
            path += f"/{manifest['metadata']['name']}{subresource}"
        headers = []
        if who:
            headers = [("Impersonate-User", who["user"]), *(("Impersonate-Group", group) for group in who["groups"])]
        body = None if verb in ("GET", "DELETE") else manifest
        return self._client.request(verb, path, json=body, headers=headers, params=query)

    def make(self, manifest: dict[str, Any], who: dict[str, Any] | None = None) -> None:
        answer = self.call("POST", manifest, who)
        if answer.status_code == 409:
            return
        assert answer.is_success, answer.text
        if "status" in manifest:
            stored = answer.json()
            operator = f"system:serviceaccount:{manifest['metadata']['namespace']}:meridian-operator"
            who = {"user": operator, "groups": ["system:masters"]}
            done = self.call("PUT", {**stored, "status": manifest["status"]}, who, "/status")
            assert done.is_success, done.text


def grant(server: Server, name: str, rules: list[dict[str, Any]]) -> None:
    version = "rbac.authorization.k8s.io/v1"
    server.make({"apiVersion": version, "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules})
    server.make(
        {
            "apiVersion": version,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name}],
        }
    )


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    if binaries.present("kube-apiserver") is None:
        pytest.skip("kube-apiserver is not compiled yet: `make test` does it")
    with (
        apiserver.temporary() as running,
        httpx.Client(
            base_url=running.url,
            verify=apiserver_context(running.ca),
            headers={"Authorization": f"Bearer {running.token}"},
            timeout=20,
        ) as client,
    ):
        made = Server(client)
        made.make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for path in sorted((ROOT / "crds").glob("*.yaml")):
            made.make(yaml.safe_load(path.read_text()))
        grant(made, "editors", EDITOR_RULES)
        grant(made, "approvers", APPROVER_RULES)
        wait_until_served(made)
        for path in CASES:
            prepare(made, yaml.safe_load(path.read_text()), before_policies=True)
        for path in sorted(FOLDER.glob("*.yaml")):
            for manifest in yaml.safe_load_all(path.read_text()):
                made.make(manifest)
        yield made


def apiserver_context(ca: Path) -> Any:
    import ssl

    return ssl.create_default_context(cafile=str(ca))


def wait_until_served(server: Server) -> None:
    for kind in ("Release", "InferencePool", "IndexEpoch", "ServingConfig"):
        probe = {
            "apiVersion": "meridian.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": "absent", "namespace": NAMESPACE},
        }
        for _ in range(200):
            answer = server.call("GET", probe)
            if answer.status_code == 404 and "absent" in answer.text:
                break
            time.sleep(0.1)
        else:
            raise AssertionError(f"{kind} is not served: {answer.text}")


def attempt(server: Server, case: dict[str, Any]) -> httpx.Response:
    """The case's act, as a dry run, so that it can be tried again until the policies are loaded."""
    manifest = case["object"]
    if case["do"] == "create":
        return server.call("POST", manifest, case["as"], dryRun="All")
    if case["do"] == "delete":
        return server.call("DELETE", manifest, case["as"], dryRun="All")
    live = server.call("GET", manifest)
    assert live.is_success, live.text
    body = {**manifest, "metadata": {**live.json()["metadata"], **manifest["metadata"]}}
    return server.call("PUT", body, case["as"], case.get("subresource", ""), dryRun="All")


def prepare(server: Server, case: dict[str, Any], *, before_policies: bool = False) -> None:
    for given in case.get("given", ()):
        if given.get("beforePolicies", False) == before_policies:
            server.make(given["object"], given.get("as"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_case(server: Server, path: Path) -> None:
    """T-46, T-48, K-21, K-34."""
    case = yaml.safe_load(path.read_text())
    prepare(server, case)
    if path.parent.name == "pass":
        answer = attempt(server, case)
        assert answer.is_success, f"{case['about']}\n{answer.text}"
        return
    deadline = time.monotonic() + 30
    while True:  # a new policy takes a moment to be loaded
        answer = attempt(server, case)
        if not answer.is_success or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    assert not answer.is_success, f"{case['about']} It was let through."
    assert case["refusedWith"] in answer.json()["message"], answer.text


def test_every_policy_has_cases_of_both_kinds_and_denies() -> None:
    for path in FOLDER.glob("*.yaml"):
        kinds = [manifest["kind"] for manifest in yaml.safe_load_all(path.read_text())]
        assert kinds.count("ValidatingAdmissionPolicy") == kinds.count("ValidatingAdmissionPolicyBinding") > 0
    assert {path.parent.name for path in CASES} == {"pass", "fail"}
