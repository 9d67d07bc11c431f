"""One contract for the API server: the in-memory double and a real kube-apiserver answer alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from operator_servers import real_server  # noqa: F401

from meridian_api.meta import API_VERSION
from meridian_operator import kube
from meridian_operator.cluster import (
    AlreadyExists,
    Cluster,
    Conflict,
    ForeignOwner,
    NotFound,
    Refused,
    Unreachable,
    controller_uid,
    owner_reference,
    ref,
)
from meridian_operator.memory_cluster import MemoryCluster

NS = "meridian"
POLICY_SPEC: dict[str, Any] = {
    "tenantId": "acme",
    "identity": {"issuer": "https://issuer.test", "tenantValue": "acme"},
    "allowedRegions": ["eu-1"],
    "roles": [{"name": "customer"}],
}


@pytest.fixture(params=["memory", "real"])
def opened(request: pytest.FixtureRequest) -> Any:
    """A context manager that gives an empty cluster, inside the test's own loop."""
    if request.param == "memory":

        @asynccontextmanager
        async def memory() -> AsyncIterator[Cluster]:
            yield MemoryCluster(absent=("InferenceService",))

        return memory
    kubeconfig = request.getfixturevalue("real_server")

    @asynccontextmanager
    async def real() -> AsyncIterator[Cluster]:
        cluster = await kube.connect(kubeconfig)
        try:
            for kind in ("TenantPolicy", "ServingConfig", "ConfigMap", "Deployment"):
                for item in await cluster.list(kind, NS):
                    await cluster.delete(ref(item))
            yield cluster
        finally:
            await cluster.close()

    return real


def policy(**metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "TenantPolicy",
        "metadata": {"name": "acme", "namespace": NS, **metadata},
        "spec": POLICY_SPEC,
    }


def config_map(owner: dict[str, Any] | None = None, **data: str) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": "child", "namespace": NS, "labels": {"meridian.dev/pool": "p"}}
    if owner is not None:
        meta["ownerReferences"] = [owner_reference(owner)]
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


async def test_what_is_created_is_read_and_listed_with_its_kind(opened: Any) -> None:
    async with opened() as cluster:
        created = await cluster.create(policy())
        assert created["metadata"]["uid"] and created["metadata"]["resourceVersion"]
        live = await cluster.get("TenantPolicy", NS, "acme")
        assert live["spec"]["tenantId"] == "acme"
        (listed,) = await cluster.list("TenantPolicy", NS)
        assert (listed["kind"], listed["apiVersion"]) == ("TenantPolicy", API_VERSION)


async def test_creating_twice_says_so(opened: Any) -> None:
    """K-10."""
    async with opened() as cluster:
        await cluster.create(policy())
        with pytest.raises(AlreadyExists):
            await cluster.create(policy())


async def test_what_is_absent_is_not_found_and_so_is_an_unserved_kind(opened: Any) -> None:
    async with opened() as cluster:
        with pytest.raises(NotFound):
            await cluster.get("TenantPolicy", NS, "nobody")
        with pytest.raises(NotFound):
            await cluster.list("InferenceService", NS)
        assert not await cluster.serves("InferenceService")
        assert await cluster.serves("TenantPolicy")
        assert await cluster.serves("Deployment")


async def test_a_status_write_on_an_old_view_conflicts_and_changes_nothing_else(opened: Any) -> None:
    """K-13: the later write of somebody else survives."""
    async with opened() as cluster:
        old = await cluster.create(policy())
        held = await cluster.replace({**old, "spec": {**POLICY_SPEC, "overflow": True}})
        with pytest.raises(Conflict):
            await cluster.replace_status({**old, "status": {"phase": "Onboarded"}})
        written = await cluster.replace_status({**held, "spec": POLICY_SPEC, "status": {"phase": "Onboarded"}})
        assert written["spec"]["overflow"] is True
        assert written["status"]["phase"] == "Onboarded"


async def test_replacing_the_object_leaves_its_status_alone(opened: Any) -> None:
    async with opened() as cluster:
        first = await cluster.create(policy())
        second = await cluster.replace_status({**first, "status": {"phase": "Onboarded"}})
        third = await cluster.replace({**second, "spec": {**POLICY_SPEC, "overflow": True}, "status": {}})
        assert third["status"]["phase"] == "Onboarded"
        assert third["metadata"]["generation"] == 2


async def test_a_write_needs_a_resource_version(opened: Any) -> None:
    async with opened() as cluster:
        await cluster.create(policy())
        with pytest.raises(Refused):
            await cluster.replace(policy())


async def test_the_same_apply_twice_writes_once(opened: Any) -> None:
    """K-16, K-27."""
    async with opened() as cluster:
        owner = await cluster.create(policy())
        first = await cluster.apply(config_map(owner, a="1"))
        second = await cluster.apply(config_map(owner, a="1"))
        assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


async def test_an_edit_of_our_field_is_corrected_and_other_fields_stay(opened: Any) -> None:
    """K-20."""
    async with opened() as cluster:
        owner = await cluster.create(policy())
        made = await cluster.apply(config_map(owner, a="1"))
        await cluster.replace({**made, "data": {"a": "edited", "theirs": "2"}})
        corrected = await cluster.apply(config_map(owner, a="1"))
        assert corrected["data"] == {"a": "1", "theirs": "2"}


async def test_a_name_that_somebody_else_has_is_left_alone(opened: Any) -> None:
    """K-10, T-51: without a controller, and with another one."""
    async with opened() as cluster:
        owner = await cluster.create(policy())
        await cluster.create(config_map(None, a="theirs"))
        with pytest.raises(ForeignOwner):
            await cluster.apply(config_map(owner, a="ours"))
        assert (await cluster.get("ConfigMap", NS, "child"))["data"] == {"a": "theirs"}
        other = {**owner, "metadata": {**owner["metadata"], "uid": "another"}}
        with pytest.raises(ForeignOwner):
            await cluster.apply(config_map(other, a="ours"))


async def test_a_child_that_was_orphaned_is_adopted(opened: Any) -> None:
    """K-23: `--cascade=orphan` leaves it marked as ours and without controller."""
    async with opened() as cluster:
        orphan = config_map(None, a="1")
        orphan["metadata"]["labels"] = {"app.kubernetes.io/part-of": "meridian"}
        await cluster.create(orphan)
        owner = await cluster.create(policy())
        adopted = await cluster.apply(config_map(owner, a="2"))
        assert controller_uid(adopted) == owner["metadata"]["uid"] and adopted["data"] == {"a": "2"}


async def test_deleting_hits_one_exact_object(opened: Any) -> None:
    """K-21: a namesake made since then stays, and what is gone counts as deleted."""
    async with opened() as cluster:
        old = ref(await cluster.create(config_map(None, a="old")))
        await cluster.delete(old)
        await cluster.delete(old)
        await cluster.create(config_map(None, a="new"))
        await cluster.delete(old)
        assert (await cluster.get("ConfigMap", NS, "child"))["data"] == {"a": "new"}


async def test_listing_by_label(opened: Any) -> None:
    async with opened() as cluster:
        await cluster.create(config_map(None, a="1"))
        assert len(await cluster.list("ConfigMap", NS, {"meridian.dev/pool": "p"})) == 1
        assert await cluster.list("ConfigMap", NS, {"meridian.dev/pool": "q"}) == []


async def test_a_deposed_leaders_serving_config_is_refused_where_it_lands(opened: Any) -> None:
    """K-06: CEL (here: its double) refuses an older lease epoch and an older generation."""
    spec = {
        "service": "support",
        "region": "eu-1",
        "generation": 5,
        "leaseEpoch": 3,
        "payload": "YQ==",
        "signature": "YQ==",
        "keyId": "k1",
        "digest": "sha256:" + "0" * 64,
        "serving": "r1",
    }
    meta = {"name": "support", "namespace": NS}
    async with opened() as cluster:
        body = {"apiVersion": API_VERSION, "kind": "ServingConfig", "metadata": meta, "spec": spec}
        live = await cluster.create(body)
        for older in ({"leaseEpoch": 2, "generation": 6}, {"generation": 4}):
            with pytest.raises(Refused):
                await cluster.replace({**live, "spec": {**spec, **older}})
        newer = await cluster.replace({**live, "spec": {**spec, "generation": 6, "leaseEpoch": 4}})
        assert newer["spec"]["leaseEpoch"] == 4


async def test_a_forged_token_belongs_to_nobody(opened: Any) -> None:
    async with opened() as cluster:
        assert await cluster.review_token("forged", "meridian-config") is None


async def test_a_server_that_does_not_answer_is_unreachable_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K-24: a black hole is given up."""
    monkeypatch.setattr(kube, "TIMEOUT", 0.3)
    silent = await asyncio.start_server(lambda r, w: asyncio.sleep(3600), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    config = tmp_path / "kubeconfig"
    config.write_text(
        f"apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{{name: a, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n"
        "contexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: {token: t}}]\n"
    )
    cluster = await kube.connect(str(config))
    try:
        with pytest.raises(Unreachable):
            await asyncio.wait_for(cluster.get("ConfigMap", NS, "x"), timeout=5)
    finally:
        await cluster.close()
        silent.close()
