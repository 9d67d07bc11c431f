"""The operator as a process, on a real kube-apiserver and a real PostgreSQL: started, killed, stopped, doubled."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from operator_servers import NS, install_kserve_crd, real_server  # noqa: F401
from operator_world import pool_wire
from serving_rig import write_key
from serving_world import EPOCH, manifest, release_wire, tenant_wire

from meridian_api.digest import configmap_digest
from meridian_operator import kube
from meridian_operator.cluster import Conflict

pytestmark = pytest.mark.timeout(600)
DOCS = {"documents.jsonl": "{}\n"}
GOLDEN = {"golden.jsonl": '{"id": "1"}\n'}


@dataclass
class Installation:
    kubeconfig: str
    env: dict[str, str]
    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, replica: str, port: int) -> subprocess.Popen[bytes]:
        env = {**self.env, "MERIDIAN_REPLICA": replica, "MERIDIAN_PORT": str(port)}
        with (self.folder / f"{replica}.log").open("ab") as log:
            process = subprocess.Popen([sys.executable, "-m", "meridian_operator"], env=env, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def events(self, replica: str) -> list[dict[str, Any]]:
        """Its log lines."""
        lines = (self.folder / f"{replica}.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.fixture(scope="module")
def installation(real_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:  # noqa: F811
    postgres = pytest.importorskip("meridian_cluster.postgres")
    folder = tmp_path_factory.mktemp("operator")
    write_key(folder)
    asyncio.run(install_kserve_crd(real_server))
    with postgres.temporary() as dsns:
        env = {k: v for k, v in os.environ.items() if not k.startswith("MERIDIAN_")} | {
            "MERIDIAN_OWNER_DSN": dsns.owner,
            "MERIDIAN_EVIDENCE_DSN": dsns.evidence,
            "MERIDIAN_DATAPLANE_IMAGE": "docker.io/meridian/dataplane@sha256:" + "d" * 64,
            "MERIDIAN_KUBECONFIG": real_server,
            "MERIDIAN_SIGNING_DIR": str(folder),
        }
        found = Installation(real_server, env, folder)
        try:
            yield found
        finally:
            for process in found.processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()


async def until(what: str, holds: Callable[[], Awaitable[object]], seconds: float = 150) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        found = await holds()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.3)


def get(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
            return int(answer.status)
    except OSError:
        return 0


async def apply_everything(cluster: kube.Kube) -> None:
    for name, data in (("docs", DOCS), ("golden", GOLDEN)):
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NS}, "data": data}
        await cluster.create(body)
    source = {"name": "docs", "tenant": "acme", "configMap": {"name": "docs", "digest": configmap_digest(DOCS)}}
    await cluster.create(manifest("TenantPolicy", "acme", tenant_wire("acme")))
    await cluster.create(manifest("IndexEpoch", "epoch-1", {**EPOCH, "sources": [source]}))
    await cluster.create(manifest("InferencePool", "kpool", pool_wire(provider="KServe")))
    await cluster.create(manifest("InferencePool", "qwen", pool_wire()))
    for name, pool in (("r-kserve", "kpool"), ("r-plain", "qwen")):
        spec = release_wire(
            service=name,
            models={"primary": {"pool": pool, "version": "v1", "region": "eu-1"}},
            eval={"goldenSet": {"name": "golden", "digest": configmap_digest(GOLDEN)}},
        )
        await cluster.create(manifest("Release", name, spec))


async def status(cluster: kube.Kube, kind: str, name: str) -> dict[str, Any]:
    return (await cluster.get(kind, NS, name)).get("status") or {}


async def lease(cluster: kube.Kube) -> tuple[str, int]:
    spec = (await cluster.get("Lease", NS, "meridian-operator"))["spec"]
    return spec["holderIdentity"], spec["leaseTransitions"]


async def test_the_life_of_an_operator(installation: Installation) -> None:
    """K-06, K-09, K-15, K-18, K-19: one story, since each start costs seconds."""
    cluster = await kube.connect(installation.kubeconfig)
    try:
        await _works_from_nothing(installation, cluster)
        await _is_killed_and_started_again(installation, cluster)
        await _is_stopped_past_its_lease(installation, cluster)
        await _is_quiet_and_leaves_cleanly(installation, cluster)
    finally:
        await cluster.close()


async def _works_from_nothing(installation: Installation, cluster: kube.Kube) -> None:
    first = installation.start("op-0", 18190)
    await until("ready", lambda: _true(get(18190, "/readyz") == 200))
    await apply_everything(cluster)

    async def onboarded() -> bool:
        return (await status(cluster, "TenantPolicy", "acme")).get("phase") == "Onboarded"

    async def building() -> bool:
        return (await status(cluster, "IndexEpoch", "epoch-1")).get("phase") == "Building"

    await until("the tenant is onboarded", onboarded)
    await until("the epoch is building", building)
    assert len(await cluster.list("Job", NS)) == 1
    assert get(18190, "/healthz") == 200 and get(18190, "/metrics") == 200
    with Path(f"/proc/{first.pid}/status").open() as lines:
        resident = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    assert resident < 200 * 1024, f"{resident} KiB"


async def _is_killed_and_started_again(installation: Installation, cluster: kube.Kube) -> None:
    """K-15, K-19: what came while it was down is handled once."""
    holder, epoch = await lease(cluster)
    installation.processes[-1].kill()
    installation.processes[-1].wait()
    await cluster.create(manifest("TenantPolicy", "late", tenant_wire("late")))
    installation.start("op-1", 18191)

    async def onboarded() -> bool:
        return (await status(cluster, "TenantPolicy", "late")).get("phase") == "Onboarded"

    await until("the late tenant is onboarded", onboarded)
    assert (await lease(cluster)) == ("op-1", epoch + 1) and holder == "op-0"
    assert len(await cluster.list("Job", NS)) == 1


async def _is_stopped_past_its_lease(installation: Installation, cluster: kube.Kube) -> None:
    """K-06: what the stopped one would still write, it does not; it exits."""
    stopped = installation.processes[-1]
    installation.start("op-2", 18192)
    await until("the second is ready without leading", lambda: _true(get(18192, "/readyz") == 200))
    os.kill(stopped.pid, signal.SIGSTOP)
    try:

        async def taken() -> bool:
            return (await lease(cluster))[0] == "op-2"

        await until("the second leads", taken)
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    began = len(installation.events("op-1"))
    await until("the first has exited", lambda: _true(stopped.poll() is not None))
    assert stopped.returncode == 1
    assert not [e for e in installation.events("op-1")[began:] if e["event"] in ("status", "switch")]


async def _is_quiet_and_leaves_cleanly(installation: Installation, cluster: kube.Kube) -> None:
    """K-18, K-27: converged means no write; a deleted child is back; SIGTERM gives the Lease up."""
    (job,) = await cluster.list("Job", NS)

    async def again() -> bool:
        jobs = await cluster.list("Job", NS)
        return bool(jobs) and jobs[0]["metadata"]["uid"] != job["metadata"]["uid"]

    await cluster._call(
        "DELETE",
        f"/apis/batch/v1/namespaces/{NS}/jobs/{job['metadata']['name']}",
        {},
        {"propagationPolicy": "Background"},
    )
    await until("the Job is back", again)
    await asyncio.sleep(5)
    before = {o["metadata"]["uid"]: o["metadata"]["resourceVersion"] for o in await _all(cluster)}
    await asyncio.sleep(8)
    assert {o["metadata"]["uid"]: o["metadata"]["resourceVersion"] for o in await _all(cluster)} == before
    last = installation.processes[-1]
    last.terminate()
    await until("it has exited", lambda: _true(last.poll() is not None))
    assert last.returncode == 0
    assert (await lease(cluster))[0] == ""


async def _all(cluster: kube.Kube) -> list[dict[str, Any]]:
    return [o for kind in ("TenantPolicy", "InferencePool", "IndexEpoch", "Job") for o in await cluster.list(kind, NS)]


async def _true(value: bool) -> bool:
    return value


async def test_manifests_are_accepted_strictly_by_a_real_api_server(installation: Installation) -> None:
    """K-36: no field of ours is unknown to the schema, KServe's included."""
    from test_operator_objects import built

    cluster = await kube.connect(installation.kubeconfig)
    try:
        for name in ("kserve", "deployment", "job"):
            for child in built(name):
                path = kube._path(child["kind"], NS)
                try:
                    await cluster._call("POST", path, {"dryRun": "All", "fieldValidation": "Strict"}, child)
                except Conflict:
                    continue  # it is there already; it was valid
    finally:
        await cluster.close()
