"""The chart as helm renders it: rights, pods, and agreement with what the programs read from their environment."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from meridian_cluster import binaries
from meridian_dataplane.settings import read_settings
from meridian_operator.settings import from_environment

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "meridian"
IMAGE = "docker.io/meridian/x@sha256:" + "a" * 64
IMAGES = ("--set", f"images.operator={IMAGE}", "--set", f"images.dataplane={IMAGE}")
KUBERNETES = ("--kube-version", "1.34.4")  # without a cluster to ask, helm guesses
Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def helm() -> Path:
    found = binaries.present("helm")
    if found is None:
        pytest.skip("helm is not compiled yet: `meridian up` does it")
    return found


@pytest.fixture(scope="module")
def render(helm: Path) -> Render:
    def rendered(*arguments: str) -> list[dict[str, Any]]:
        command = [helm, "template", "meridian", CHART, "--namespace", "meridian", *KUBERNETES, *IMAGES, *arguments]
        answer = subprocess.run(command, check=True, capture_output=True, text=True)
        return [document for document in yaml.safe_load_all(answer.stdout) if document]

    return rendered


def of_kind(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] == kind]


def pod_of(documents: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = (d for d in of_kind(documents, "Deployment") if d["metadata"]["name"] == name)
    return found["spec"]["template"]["spec"]


def test_lint_is_clean(helm: Path) -> None:
    done = subprocess.run([helm, "lint", CHART, *IMAGES], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("kind", ["Role", "ClusterRole"])
def test_the_operators_rights_are_the_golden_ones(render: Render, kind: str) -> None:
    """T-49: no `*`, no secrets, exec, escalate, bind, impersonate or token creation."""
    golden = yaml.safe_load((Path(__file__).parent / "golden" / "operator-rights.yaml").read_text())
    (role,) = of_kind(render(), kind)
    rights = [{"groups": r["apiGroups"], "resources": r["resources"], "verbs": r["verbs"]} for r in role["rules"]]
    assert rights == golden[kind]
    everything = yaml.safe_dump(rights)
    for word in ("*", "secrets", "exec", "escalate", "bind", "impersonate", "serviceaccounts/token"):
        assert word not in everything


def test_only_the_operator_has_rights(render: Render) -> None:
    documents = render()
    bindings = [*of_kind(documents, "RoleBinding"), *of_kind(documents, "ClusterRoleBinding")]
    assert {subject["name"] for binding in bindings for subject in binding["subjects"]} == {"meridian-operator"}


@pytest.mark.parametrize("name", ["meridian-operator", "meridian-dataplane"])
def test_pods_fit_the_restricted_profile(render: Render, name: str) -> None:
    """T-46."""
    pod = pod_of(render(), name)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["image"] == IMAGE
    assert {"startupProbe", "livenessProbe", "readinessProbe", "resources"} <= container.keys()


def environment(pod: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "from-elsewhere") for entry in pod["containers"][0]["env"]}


ISSUERS = ("--set-json", 'identity.issuers=[{"issuer":"http://i.test","jwksUrl":"http://i.test/keys"}]')


def test_the_operator_starts_from_what_the_chart_sets(render: Render) -> None:
    settings = from_environment(environment(pod_of(render(), "meridian-operator")))
    assert settings.namespace == "meridian"
    assert settings.dataplane_image == IMAGE
    assert settings.job_service_account == "meridian-job"


def test_the_data_plane_starts_from_what_the_chart_sets(render: Render) -> None:
    documents = render(*ISSUERS, "--set", "endpoints.orders=http://orders.test", "--set", "orders.tokenSecretName=o")
    pod = pod_of(documents, "meridian-dataplane")
    settings = read_settings(environment(pod))
    assert settings.issuers[0].jwks_url == "http://i.test/keys"
    assert settings.endpoints == {"orders": "http://orders.test"}
    assert settings.config_url == "http://meridian-operator.meridian.svc:8090"
    mounted = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert {str(settings.config_mount), str(settings.state_dir), str(settings.public_keys_dir)} <= mounted
    assert pod["terminationGracePeriodSeconds"] > settings.grace_seconds + settings.beat_seconds


def test_the_data_plane_boots_without_the_config_map_and_holds_no_api_token(render: Render) -> None:
    """F-12, S-30."""
    pod = pod_of(render(), "meridian-dataplane")
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["config"]["configMap"] == {"name": "meridian-config-support", "optional": True}
    assert pod["automountServiceAccountToken"] is False
    (token,) = volumes["config-token"]["projected"]["sources"]
    assert token["serviceAccountToken"]["audience"] == "meridian-config"


@pytest.mark.parametrize(
    "wrong",
    [
        ("--set", "images.operator=docker.io/meridian/operator:latest"),
        ("--set", "operator.replicas=3"),
        ("--set", "surprise=1"),
        ("--set", "dataplane.surprise=1"),
        ("--set", "prometheusUrl=http://user:pass@host"),
    ],
)
def test_values_that_do_not_fit_are_refused(render: Render, wrong: tuple[str, ...]) -> None:
    with pytest.raises(subprocess.CalledProcessError) as raised:
        render(*wrong)
    assert "don't meet the specifications of the schema" in raised.value.stderr


def test_policies_come_along_or_stay_away(render: Render) -> None:
    names = {d["metadata"]["name"] for d in of_kind(render(), "ValidatingAdmissionPolicy")}
    declared = {
        d["metadata"]["name"]
        for path in (ROOT / "policies" / "admission").glob("*.yaml")
        for d in yaml.safe_load_all(path.read_text())
        if d["kind"] == "ValidatingAdmissionPolicy"
    }
    assert names == declared
    assert not of_kind(render("--set", "admissionPolicies=false"), "ValidatingAdmissionPolicy")
