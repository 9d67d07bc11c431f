"""Built manifests: golden files for people's eyes, and a real kube-apiserver with KServe's CRD for their truth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_world import EPOCH, NAMESPACE, SETTINGS, pool_wire
from serving_world import manifest

from meridian_api.v1alpha1.indexepoch import IndexEpochSpec
from meridian_api.v1alpha1.inferencepool import InferencePoolSpec
from meridian_operator.indexepoch.objects import index_job
from meridian_operator.inferencepool.objects import PROBE, manifests, pod_spec

GOLDEN = Path(__file__).parent / "golden"
POOL = manifest("InferencePool", "qwen", {}, uid="uid-pool")
EPOCH_OBJECT = manifest("IndexEpoch", "2026.06", {}, uid="uid-epoch")
FULL = pool_wire(
    engine={
        "image": "docker.io/meridian/predictor@sha256:" + "a" * 64,
        "args": ["--slots=24"],
        "env": [{"name": "LOG", "value": "info"}],
        "port": 8081,
        "resources": {"cpu": "2", "memory": "4Gi", "gpus": 1},
        "placement": {"nodeSelector": {"gpu": "l40s"}, "spreadOverZones": True},
        "weightsClaim": "weights",
        "imagePullSecrets": ["registry"],
    },
    versions=[{"name": "v1", "digest": "sha256:" + "1" * 64, "args": ["--version=v1"]}],
    drainSeconds=45,
)


def pool(**changes: Any) -> InferencePoolSpec:
    return InferencePoolSpec.from_wire({**FULL, **changes})


def built(name: str) -> list[dict[str, Any]]:
    if name == "job":
        golden_set = {"name": "golden", "digest": "sha256:" + "0" * 64}
        spec = IndexEpochSpec.from_wire({**EPOCH, "goldenSet": golden_set, "shards": 2})
        return [index_job(EPOCH_OBJECT, spec, SETTINGS)]
    spec = pool(provider={"kserve": "KServe", "deployment": "Deployment"}[name])
    return list(manifests(POOL, spec, spec.versions[0]))


@pytest.mark.parametrize("name", ["kserve", "deployment", "job"])
def test_manifests_are_as_they_were(name: str) -> None:
    """K-31: an operator upgrade changes no pod by accident. MERIDIAN_UPDATE_GOLDEN=1 writes them anew."""
    file = GOLDEN / f"{name}.yaml"
    if os.environ.get("MERIDIAN_UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(yaml.safe_dump_all(built(name), sort_keys=True))
    assert built(name) == list(yaml.safe_load_all(file.read_text()))


def test_a_kserve_pod_is_the_deployments_pod() -> None:
    """One description of a pod for both providers."""
    inference = built("kserve")[1]["spec"]["predictor"]
    deployment = built("deployment")[1]["spec"]["template"]
    assert inference["containers"] == deployment["spec"]["containers"]
    assert inference["volumes"] == deployment["spec"]["volumes"]
    assert inference["labels"] == deployment["metadata"]["labels"]
    assert inference["annotations"] == deployment["metadata"]["annotations"]
    assert inference["terminationGracePeriodSeconds"] == 45


def test_nothing_is_edited_by_a_version_that_is_not_its_own() -> None:
    """A new version in the pool leaves the old one's pod template alone: no restart."""
    one = pool()
    two = pool(versions=[*FULL["versions"], {"name": "v2", "digest": "sha256:" + "2" * 64}])
    assert manifests(POOL, one, one.versions[0]) == manifests(POOL, two, two.versions[0])


def test_the_sdk_is_loaded_without_its_model_server() -> None:
    """The whole `import kserve` takes longer than the Lease lasts on a small machine."""
    script = (
        "import sys; from meridian_operator.inferencepool import kserve_types; kserve_types.load(); "
        "print([m for m in ('fastapi', 'grpc', 'pandas', 'numpy', 'uvicorn') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


ENGINE = """
import http.server, json, sys
class Engine(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["model"] == "qwen" and body["max_tokens"] == 4 and body["stream"] is False, body
        answer = json.dumps({"choices": [{"message": {"content": sys.argv[1]}}]}).encode()
        self.send_response(int(sys.argv[2])); self.end_headers(); self.wfile.write(answer)
    def log_message(self, *a): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Engine)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.mark.parametrize(("content", "status", "ready"), [("Ready.", 200, True), ("  ", 200, False), ("x", 503, False)])
def test_the_startup_probe_passes_only_on_a_real_answer(content: str, status: int, ready: bool) -> None:
    """S-52: the command of the manifest itself, run against an engine."""
    engine = subprocess.Popen([sys.executable, "-c", ENGINE, content, str(status)], stdout=subprocess.PIPE, text=True)
    try:
        assert engine.stdout is not None
        spec = pool()
        command = pod_spec(spec, spec.versions[0])["containers"][0]["startupProbe"]["exec"]["command"]
        asked = json.loads(command[3])
        asked[0] = int(engine.stdout.readline())
        assert command[:3] == ["python3", "-c", PROBE]
        run = subprocess.run([sys.executable, "-c", PROBE, json.dumps(asked)], capture_output=True, timeout=30)
        assert (run.returncode == 0) is ready
    finally:
        engine.kill()
        engine.wait()


def test_a_probe_without_an_engine_fails() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps([9, "m", "p", 1, 2])], capture_output=True, timeout=30
    )
    assert run.returncode != 0


@pytest.mark.parametrize("name", ["kserve", "deployment", "job"])
def test_pods_are_restricted(name: str) -> None:
    """T-46: what Pod Security's `restricted` asks for, and no API token."""
    last = built(name)[-1]["spec"]
    pod = last["predictor"] if name == "kserve" else last["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False and pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert "@sha256:" in container["image"]
        assert container["resources"]["limits"]["memory"]


def test_children_carry_their_owner_and_no_finalizer() -> None:
    """K-21."""
    for name, uid in (("kserve", "uid-pool"), ("deployment", "uid-pool"), ("job", "uid-epoch")):
        for child in built(name):
            (owner,) = child["metadata"]["ownerReferences"]
            assert owner["uid"] == uid and owner["controller"] is True
            assert "finalizers" not in child["metadata"] and child["metadata"]["namespace"] == NAMESPACE
