"""Whatever the operator can compile and sign, a data-plane replica accepts: the two sides of the one crossing agree."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from serving_rig import Rig
from serving_world import NAMESPACE, tenant_wire

from meridian_dataplane.configuration.verify import Accepted, Receiver, Refused, read_keys, verify
from meridian_operator.plan import EvaluationRequest
from meridian_operator.release.evaluate import start
from meridian_operator.serving import shrinkage
from meridian_operator.serving.commit import commit
from meridian_operator.serving.sign import load_key


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    shrinkage.LOOKS.since.clear()
    return Rig(tmp_path)


def receiver(rig: Rig) -> Receiver:
    key = load_key(rig.folder)
    public = key.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    keys = rig.folder / "keys"
    keys.mkdir(exist_ok=True)
    (keys / f"{key.key_id}.pem").write_bytes(public)
    return Receiver("support", "eu-1", read_keys(keys))


def received(rig: Rig, current: Any = None) -> Accepted | Refused:
    raw = rig.copy["data"]["envelope.json"].encode()
    return verify(raw, receiver(rig), current=current, least_generation=1)


async def switch(rig: Rig, *arguments: Any) -> None:
    await commit(rig.switch(*arguments), rig.world, NAMESPACE)


async def test_what_is_committed_is_accepted(rig: Rig) -> None:
    """F-06, F-08."""
    await switch(rig, "support-1")
    first = received(rig)
    assert isinstance(first, Accepted)
    await switch(rig, "support-1", "support-2", 50)
    second = received(rig, first.snapshot)
    assert isinstance(second, Accepted)
    assert second.snapshot == rig.snapshot


async def test_one_altered_byte_is_refused(rig: Rig) -> None:
    await switch(rig, "support-1")
    body = json.loads(rig.copy["data"]["envelope.json"])
    body["payload"] = "B" + body["payload"][1:]
    answer = verify(json.dumps(body).encode(), receiver(rig), current=None, least_generation=1)
    assert isinstance(answer, Refused)


@pytest.mark.parametrize(
    "wire",
    [
        {**tenant_wire("b"), "notAfter": "whenever"},
        {**tenant_wire("b"), "notAfter": "2030-01-01T00:00:00"},
        {**tenant_wire("acme"), "tenantId": "b"},
        {**tenant_wire("b"), "allowedRegions": ["global"]},
        {**tenant_wire("b"), "roles": []},
    ],
)
async def test_a_wrong_tenant_policy_never_makes_a_configuration_that_replicas_refuse(
    rig: Rig, wire: dict[str, Any]
) -> None:
    """IV-08, K-35."""
    rig.put("TenantPolicy", "b", wire)
    await switch(rig, "support-1")
    answer = received(rig)
    assert isinstance(answer, Accepted)
    assert [tenant.tenant_id for tenant in answer.snapshot.tenants] == ["acme"]


async def test_a_confirmed_shrink_is_accepted_also_by_one_that_missed_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-04."""
    names = [f"t{number}" for number in range(10)]
    rig.tenants(*names)
    await switch(rig, "support-1")
    old = received(rig)
    assert isinstance(old, Accepted)
    rig.status(replicas=[{"replica": "dp-1", "generation": 1}], highestAccepted=1)
    rig.tenants(*names[:3])
    at = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: at[0])
    for _ in range(3):
        await rig.look()
        at[0] += 30
    await switch(rig, "support-1", "support-2", 5)
    assert rig.snapshot.generation == 3
    answer = received(rig, old.snapshot)
    assert isinstance(answer, Accepted), answer


async def test_the_snapshot_of_an_evaluation_is_accepted_by_its_job_and_by_no_replica(rig: Rig) -> None:
    """F-06, IV-02, kind: not meant for this receiver. It is signed like one that serves, of a release that nothing proved yet."""
    owner = rig.cluster.objects["Release", NAMESPACE, "support-2"]
    await start(EvaluationRequest("support-2", "uid", 1, "support", "golden", "eval-1"), rig.world, owner)
    raw = rig.cluster.objects["ConfigMap", NAMESPACE, "eval-1"]["data"]["envelope.json"].encode()
    assert verify(raw, receiver(rig), current=None, least_generation=1) == Refused("other_service", 1)
    (container,) = rig.cluster.objects["Job", NAMESPACE, "eval-1"]["spec"]["template"]["spec"]["containers"]
    service = next(e["value"] for e in container["env"] if e["name"] == "MERIDIAN_SERVICE")
    job = replace(receiver(rig), service=service)
    assert isinstance(verify(raw, job, current=None, least_generation=1), Accepted)
