"""Throw-away servers for the tests of the operator: a kube-apiserver with our CRDs."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from meridian_operator import kube

NS = "meridian"
ROOT = Path(__file__).resolve().parents[2]
CRDS = ROOT / "crds"
KSERVE_CRD = ROOT.parent / "shared" / "kserve" / "crds" / "serving.kserve.io_inferenceservices.yaml"


@pytest.fixture(scope="module")
def real_server() -> Iterator[str]:
    """Path of a kubeconfig of a throw-away kube-apiserver with our CRDs and the namespace."""
    apiserver = pytest.importorskip("meridian_cluster.apiserver")
    binaries = pytest.importorskip("meridian_cluster.binaries")
    if not binaries.present("kube-apiserver") or not shutil.which("etcd"):
        pytest.skip("kube-apiserver and etcd are not here; `meridian up` compiles them")
    with apiserver.temporary() as server:
        asyncio.run(_prepare(str(server.kubeconfig)))
        yield str(server.kubeconfig)


async def _prepare(kubeconfig: str) -> None:
    cluster = await kube.connect(kubeconfig)
    try:
        await cluster._call("POST", "/api/v1/namespaces", {}, {"metadata": {"name": NS}})
        for file in sorted(CRDS.glob("meridian.dev_*.yaml")):
            crd = yaml.safe_load(file.read_text())
            await cluster._call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", {}, crd)
        for _ in range(100):
            cluster._discovered.clear()
            if await cluster.serves("TenantPolicy") and await cluster.serves("ServingConfig"):
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)  # served by discovery a moment before the storage answers
    finally:
        await cluster.close()


async def install_kserve_crd(kubeconfig: str) -> None:
    """The real InferenceService's schema, without its conversion webhook."""
    if not KSERVE_CRD.exists():
        pytest.skip("KServe's CRD is not beside this checkout")
    crd: dict[str, Any] = yaml.safe_load(KSERVE_CRD.read_text())
    crd["spec"].pop("conversion", None)
    crd["metadata"].pop("annotations", None)
    cluster = await kube.connect(kubeconfig)
    try:
        await cluster._call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", {}, crd)
        path = "/apis/serving.kserve.io/v1beta1/namespaces/meridian/inferenceservices"
        for _ in range(100):
            try:
                await cluster._call("GET", path)
                return
            except kube.ClusterError:
                await asyncio.sleep(0.1)
    finally:
        await cluster.close()
