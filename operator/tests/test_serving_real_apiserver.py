"""Commit, follow and distribute against a real kube-apiserver, with exactly the rights that the chart gives."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from serving_rig import NoStore, write_key
from serving_world import CONFIG_MAPS, EPOCH, POOL, release_wire, tenant_wire

from meridian_api.v1alpha1.servingconfig import ReplicaReport
from meridian_cluster import apiserver, binaries
from meridian_operator import kube
from meridian_operator.cluster import Conflict, Key, Refused
from meridian_operator.converge import Kind, World, converge
from meridian_operator.plan import Switch
from meridian_operator.serving.commit import commit
from meridian_operator.serving.reports import Reports
from meridian_operator.servingconfig.decide import decide
from meridian_operator.servingconfig.observe import observe
from meridian_operator.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "meridian"
CORE = f"/api/v1/namespaces/{NAMESPACE}"
OURS = f"/apis/meridian.dev/v1alpha1/namespaces/{NAMESPACE}"
KIND = Kind("ServingConfig", observe, decide)
KEY = Key("ServingConfig", NAMESPACE, "support")


@dataclass
class Real:
    admin: httpx.Client
    kubeconfig: str
    signing: str
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    epoch: int = 3

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.admin.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def ours(self, kind: str, plural: str, name: str, spec: dict[str, Any]) -> None:
        meta = {"name": name, "namespace": NAMESPACE}
        self.post(
            f"{OURS}/{plural}", {"apiVersion": "meridian.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}
        )

    def token(self, account: str, audience: str | None = None) -> str:
        spec = {"audiences": [audience]} if audience else {}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return self.post(f"{CORE}/serviceaccounts/{account}/token", body)["status"]["token"]

    def stored(self) -> dict[str, Any]:
        return self.admin.get(f"{OURS}/servingconfigs/support").json()

    def world(self, cluster: kube.Kube) -> World:
        settings = Settings(replica="o", owner_dsn="", evidence_dsn="", dataplane_image="", signing_dir=self.signing)
        return World(cluster, NoStore(), settings, lambda: self.now, lambda: self.epoch)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    if binaries.present("kube-apiserver") is None:
        pytest.skip("kube-apiserver is not compiled yet: `meridian up` does it")
    folder = tmp_path_factory.mktemp("real")
    write_key(folder)
    with apiserver.temporary() as server:
        context = ssl.create_default_context(cafile=str(server.ca))
        headers = {"Authorization": f"Bearer {server.token}"}
        with httpx.Client(base_url=server.url, verify=context, headers=headers, timeout=20) as admin:
            made = Real(admin, str(folder / "kubeconfig"), str(folder))
            install(made)
            document = json.loads(Path(server.kubeconfig).read_text())
            document["users"][0]["user"] = {"token": made.token("meridian-operator")}
            Path(made.kubeconfig).write_text(json.dumps(document))
            yield made


def install(made: Real) -> None:
    made.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        made.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", yaml.safe_load(path.read_text()))
    for account in ("meridian-operator", "meridian-dataplane"):
        made.post(f"{CORE}/serviceaccounts", {"metadata": {"name": account}})
    golden = yaml.safe_load((ROOT / "policies" / "tests" / "golden" / "operator-rights.yaml").read_text())
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    subject = {"kind": "ServiceAccount", "name": "meridian-operator", "namespace": NAMESPACE}
    for kind, scope in (("Role", f"{rbac}/namespaces/{NAMESPACE}/"), ("ClusterRole", f"{rbac}/")):
        rules = [{"apiGroups": r["groups"], "resources": r["resources"], "verbs": r["verbs"]} for r in golden[kind]]
        made.post(f"{scope}{kind.lower()}s", {"metadata": {"name": "meridian-operator"}, "rules": rules})
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "meridian-operator"}
        body = {"metadata": {"name": "meridian-operator"}, "roleRef": reference, "subjects": [subject]}
        made.post(f"{scope}{kind.lower()}bindings", body)
    wait_until_served(made)
    made.ours("InferencePool", "inferencepools", "qwen", POOL)
    made.ours("IndexEpoch", "indexepochs", "epoch-1", EPOCH)
    made.ours("TenantPolicy", "tenantpolicies", "acme", tenant_wire("acme"))
    made.ours("Release", "releases", "support-1", release_wire())
    made.ours("Release", "releases", "support-2", release_wire(rollbackTo="support-1"))
    for name, data in CONFIG_MAPS.items():
        made.post(f"{CORE}/configmaps", {"metadata": {"name": name}, "immutable": True, "data": data})


def wait_until_served(made: Real) -> None:
    import time

    for plural in ("releases", "inferencepools", "indexepochs", "tenantpolicies", "servingconfigs"):
        for _ in range(200):
            if made.admin.get(f"{OURS}/{plural}").is_success:
                break
            time.sleep(0.1)


async def test_the_life_of_a_configuration(real: Real) -> None:
    """S-32, K-06, K-13, IV-05, F-07, K-27: one story, as each step needs the one before."""
    cluster = await kube.connect(real.kubeconfig)
    try:
        world = real.world(cluster)
        first = await commit(Switch("support", "support-1", None, 0, "", None, "first"), world, NAMESPACE)
        assert first.generation == 1
        copy = real.admin.get(f"{CORE}/configmaps/meridian-config-support").json()
        assert json.loads(copy["data"]["envelope.json"])["payload"] == first.payload

        stored = real.stored()
        version = stored["metadata"]["resourceVersion"]
        canary = Switch("support", "support-1", "support-2", 50, "salt", version, "canary")
        assert (await commit(canary, world, NAMESPACE)).generation == 2
        with pytest.raises(Conflict):
            await commit(canary, world, NAMESPACE)

        real.epoch = 2  # a deposed leader that still holds the newest resourceVersion
        late = replace(
            canary, expected_resource_version=real.stored()["metadata"]["resourceVersion"], weight_percent=100
        )
        with pytest.raises(Refused, match="leaseEpoch"):
            await commit(late, world, NAMESPACE)
        real.epoch = 3

        reports = Reports(cluster, NAMESPACE, "meridian-dataplane")
        reports.take("support", ReplicaReport(replica="dp-1", generation=9))
        await reports.flush()
        assert real.stored()["status"]["highestAccepted"] == 9

        for _ in range(3):
            real.now += timedelta(minutes=1)
            await converge(KEY, KIND, world)
        assert real.stored()["spec"]["generation"] == 10
        assert real.stored()["spec"]["candidateWeightPercent"] == 50
        copy = real.admin.get(f"{CORE}/configmaps/meridian-config-support").json()
        assert json.loads(copy["data"]["envelope.json"])["generation"] == 10

        quiet = real.stored()["metadata"]["resourceVersion"]
        for _ in range(3):
            real.now += timedelta(minutes=1)
            await converge(KEY, KIND, world)
        assert real.stored()["metadata"]["resourceVersion"] == quiet
    finally:
        await cluster.close()


async def test_only_tokens_for_our_audience_pass_the_review(real: Real) -> None:
    cluster = await kube.connect(real.kubeconfig)
    try:
        good = real.token("meridian-dataplane", "meridian-config")
        user = await cluster.review_token(good, "meridian-config")
        assert user is not None
        assert user.name == f"system:serviceaccount:{NAMESPACE}:meridian-dataplane"
        assert await cluster.review_token(real.token("meridian-dataplane"), "meridian-config") is None
        assert await cluster.review_token(real.token("meridian-dataplane", "vault"), "meridian-config") is None
        assert await cluster.review_token("forged", "meridian-config") is None
    finally:
        await cluster.close()
