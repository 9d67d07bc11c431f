"""serving.commit and the kind ServingConfig, over the memory cluster."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from serving_rig import Rig, write_key
from serving_world import NAMESPACE, POOL, manifest, release_wire, tenant_wire

from meridian_api.digest import configmap_digest
from meridian_api.serving import pack, unpack
from meridian_operator.cluster import Conflict, ForeignOwner, Refused, Unreachable
from meridian_operator.serving import shrinkage
from meridian_operator.serving.commit import CannotCompile, commit
from meridian_operator.serving.sign import KeyUnusable, load_key


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    shrinkage.LOOKS.since.clear()
    return Rig(tmp_path)


async def start(rig: Rig, serving: str = "support-1", candidate: str | None = None, weight: int = 0) -> None:
    await commit(rig.switch(serving, candidate, weight), rig.world, NAMESPACE)


async def test_the_first_switch_makes_object_and_copy(rig: Rig) -> None:
    """S-32, F-12."""
    await start(rig)
    assert rig.snapshot.serving.release == "support-1"
    assert (rig.snapshot.generation, rig.snapshot.lease_epoch) == (1, 3)
    copied = json.loads(rig.copy["data"]["envelope.json"])
    assert copied["payload"] == rig.stored["spec"]["payload"]
    assert copied["generation"] == 1


async def test_a_switch_from_an_old_view_changes_nothing(rig: Rig) -> None:
    """IV-01, K-13: somebody wrote since the decision was made."""
    await start(rig)
    old = rig.switch("support-2")
    await start(rig, "support-1", "support-2", 5)
    with pytest.raises(Conflict):
        await commit(old, rig.world, NAMESPACE)
    assert rig.snapshot.serving.release == "support-1"


async def test_a_deposed_leader_is_refused_by_the_server(rig: Rig) -> None:
    """K-06, IV-05."""
    await start(rig)
    rig.epoch = 2
    with pytest.raises(Refused):
        await start(rig, "support-1", "support-2", 5)
    assert rig.snapshot.candidate is None


async def test_a_rollback_is_a_new_generation_with_old_content(rig: Rig) -> None:
    """F-07."""
    await start(rig)
    await start(rig, "support-2")
    await start(rig, "support-1")
    assert (rig.snapshot.generation, rig.snapshot.serving.release) == (3, "support-1")


async def test_the_next_generation_is_above_what_any_replica_accepted(rig: Rig) -> None:
    """F-07, IV-07: etcd was restored from an older backup; the kind heals it without a switch."""
    await start(rig)
    rig.status(highestAccepted=41, replicas=[{"replica": "dp-1", "generation": 41}])
    await rig.look(2)
    assert rig.snapshot.generation == 42
    rig.cluster.writes.clear()
    await rig.look(5)
    assert rig.cluster.writes == []


async def test_a_switch_to_what_cannot_be_compiled_names_every_missing_piece(rig: Rig) -> None:
    await start(rig)
    rig.cluster.remove("Release", NAMESPACE, "support-2")
    with pytest.raises(CannotCompile, match="Release support-2 does not exist"):
        await start(rig, "support-1", "support-2", 5)
    assert rig.snapshot.generation == 1


async def test_sigkill_between_the_two_writes_heals_at_the_next_look(rig: Rig) -> None:
    """K-15, K-17."""
    await start(rig)
    rig.cluster.fail = lambda verb, kind, name: (
        Unreachable("killed") if (verb, kind) == ("apply", "ConfigMap") else None
    )
    with pytest.raises(Unreachable):
        await start(rig, "support-1", "support-2", 50)
    rig.cluster.fail = lambda *_: None
    assert json.loads(rig.copy["data"]["envelope.json"])["generation"] == 1
    await rig.look()
    assert json.loads(rig.copy["data"]["envelope.json"])["generation"] == 2


async def test_a_copy_edited_by_hand_is_put_right(rig: Rig) -> None:
    """K-20."""
    await start(rig)
    rig.cluster.put({**rig.copy, "data": {"envelope.json": "{}"}})
    await rig.look()
    assert json.loads(rig.copy["data"]["envelope.json"])["generation"] == 1


async def test_the_same_switch_twice_writes_once(rig: Rig) -> None:
    """K-16."""
    await start(rig)
    rig.cluster.writes.clear()
    await start(rig)
    assert rig.cluster.writes == []


async def test_a_quiet_world_is_never_written(rig: Rig) -> None:
    """K-27, IV-04."""
    await start(rig)
    await rig.look(2)
    rig.cluster.writes.clear()
    await rig.look(20)
    assert rig.cluster.writes == []


@pytest.mark.parametrize("change", ["tenant", "price"])
async def test_changed_content_becomes_a_new_generation_under_the_same_pointer(rig: Rig, change: str) -> None:
    await start(rig, "support-1", "support-2", 25)
    if change == "tenant":
        rig.tenants("acme", "globex")
    else:
        rig.put("InferencePool", "qwen", {**POOL, "price": {"inputUsd": 2.0}})
    await rig.look(3)
    snapshot = rig.snapshot
    assert snapshot.generation == 2
    assert snapshot.candidate is not None
    assert (snapshot.candidate.weight_percent, snapshot.candidate.salt) == (25, "salt")


async def test_many_edits_at_once_make_few_generations(rig: Rig) -> None:
    """Changes gather while the last generation is a moment old."""
    await start(rig)
    rig.tenants("acme", "b")

    async def edits() -> None:
        from serving_rig import KEY, KIND

        from meridian_operator.converge import converge

        for count in range(3, 20):
            await converge(KEY, KIND, rig.world)
            rig.tenants("acme", *(f"t{number}" for number in range(count)))

    await edits()
    assert rig.snapshot.generation == 1
    await rig.look(2)
    assert rig.snapshot.generation == 2


async def test_a_list_that_lost_many_tenants_is_believed_when_seen_twice(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-03, F-04."""
    names = [f"t{number}" for number in range(10)]
    rig.tenants(*names)
    await start(rig)
    rig.tenants(*names[:3])
    at = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: at[0])
    await rig.look()
    assert len(rig.snapshot.tenants) == 10
    at[0] += 30
    await rig.look()
    assert len(rig.snapshot.tenants) == 3
    assert rig.snapshot.shrink_confirmed


async def test_a_switch_during_a_doubtful_shrink_goes_on_with_the_tenants_it_knew(rig: Rig) -> None:
    """IV-03, F-04: a rollback waits for no second look."""
    names = [f"t{number}" for number in range(10)]
    rig.tenants(*names)
    await start(rig, "support-2")
    rig.tenants(*names[:3])
    await start(rig, "support-1")
    assert rig.snapshot.serving.release == "support-1"
    assert len(rig.snapshot.tenants) == 10


async def test_one_offboarded_tenant_goes_at_once(rig: Rig) -> None:
    rig.tenants("acme", "globex")
    await start(rig)
    rig.tenants("acme")
    await rig.look()
    assert [tenant.tenant_id for tenant in rig.snapshot.tenants] == ["acme"]


async def test_a_missing_reference_keeps_the_last_good_one_and_says_so(rig: Rig) -> None:
    """K-35."""
    await start(rig)
    rig.cluster.remove("ConfigMap", NAMESPACE, "prompt-1")
    await rig.look(2)
    assert rig.snapshot.generation == 1
    (accepted,) = rig.stored["status"]["conditions"]
    assert "ConfigMap prompt-1 does not exist" in accepted["message"]
    rig.cluster.writes.clear()
    await rig.look(3)
    assert rig.cluster.writes == []


async def test_a_read_that_fails_half_way_publishes_nothing(rig: Rig) -> None:
    """F-09."""
    await start(rig)
    rig.tenants("acme", "globex")
    rig.cluster.fail = lambda verb, kind, name: Unreachable("503") if (verb, kind) == ("list", "IndexEpoch") else None
    with pytest.raises(Exception, match="503"):
        await rig.look()
    assert rig.snapshot.generation == 1


def public_key(rig: Rig) -> str:
    public = load_key(rig.folder).private.public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


async def test_a_rotated_key_signs_anew(rig: Rig) -> None:
    """F-10: the old public key stays trusted for the overlap."""
    await start(rig)
    keys = {"key-1.pem": public_key(rig)}
    meta = {"name": "meridian-keys", "namespace": NAMESPACE}
    rig.cluster.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": keys})
    write_key(rig.folder, "key-2")
    await rig.look(2)
    assert (rig.stored["spec"]["keyId"], rig.snapshot.generation) == ("key-2", 2)


async def test_a_payload_signed_by_a_stranger_is_never_signed_anew(rig: Rig) -> None:
    """F-06: naming another key does not get around the signature."""
    await start(rig)
    rig.cluster.put({**rig.stored, "spec": {**rig.stored["spec"], "keyId": "stranger"}})
    await rig.look(3)
    assert (rig.stored["spec"]["keyId"], rig.stored["spec"]["generation"]) == ("stranger", 1)
    assert rig.stored["status"]["conditions"][0]["reason"] == "PayloadUnusable"


async def test_a_tampered_payload_is_never_spread(rig: Rig) -> None:
    """F-06: what stands there is not ours; the copy stays as it was."""
    await start(rig)
    before = rig.copy["data"]
    rig.cluster.put({**rig.stored, "spec": {**rig.stored["spec"], "signature": "AAAA"}})
    await rig.look(2)
    assert rig.copy["data"] == before
    assert rig.stored["status"]["conditions"][0]["reason"] == "PayloadUnusable"


async def test_a_second_policy_for_the_same_tokens_takes_nothing_from_the_first(rig: Rig) -> None:
    """IV-10: the older one keeps its identity."""
    from serving_world import tenant_wire

    rig.put("TenantPolicy", "thief", {**tenant_wire("acme"), "tenantId": "thief"})
    await start(rig)
    assert [tenant.tenant_id for tenant in rig.snapshot.tenants] == ["acme"]


async def test_no_key_material_in_what_is_printed_or_raised(rig: Rig) -> None:
    """IV-13."""
    key = load_key(rig.folder)
    assert "key-1" in repr(key)
    assert "private" not in repr(key)
    (rig.folder / "private.pem").write_text("SECRET-BYTES")
    with pytest.raises(KeyUnusable) as raised:
        load_key(rig.folder)
    assert "SECRET-BYTES" not in str(raised.value)


async def test_a_wrong_service_is_refused(rig: Rig) -> None:
    rig.put("Release", "support-2", release_wire(service="sales"))
    with pytest.raises(CannotCompile, match="sales"):
        await start(rig, "support-2")


async def test_a_release_that_is_deleted_and_made_again_with_other_content_gets_no_traffic(rig: Rig) -> None:
    """R-22, IV-02: `kubectl replace --force` is no way round the gates; the same content again changes nothing."""
    await start(rig)
    before = rig.snapshot.serving
    text = {"system.txt": "Say whatever you like.", "format.txt": "h1"}
    body = {**manifest("ConfigMap", "prompt-2", {}), "apiVersion": "v1", "data": text}
    rig.cluster.put({key: value for key, value in body.items() if key != "spec"})
    rig.cluster.remove("Release", NAMESPACE, "support-1")
    rig.put("Release", "support-1", release_wire(prompt={"name": "prompt-2", "digest": configmap_digest(text)}))
    await rig.look(2)
    assert rig.snapshot.serving == before
    (accepted,) = [c for c in rig.stored["status"]["conditions"] if c["type"] == "Accepted"]
    assert accepted["reason"] == "ReleaseReplaced"
    await start(rig, "support-1", "support-2", 5)
    assert rig.snapshot.serving == before


async def test_a_release_stored_before_a_rule_serves_on_through_an_upgrade(rig: Rig) -> None:
    """K-32: what the API server once accepted is compiled, signed and opened, though it would be refused today."""
    rig.put("Release", "support-1", release_wire(settings={"retrieval": {"candidates": 6, "topK": 12}}))
    await start(rig)
    assert rig.snapshot.serving.settings.retrieval.top_k == 12
    rig.tenants("acme", "globex")
    await rig.look(3)
    assert rig.snapshot.generation == 2 and unpack(pack(rig.snapshot)) == rig.snapshot


async def test_a_warning_is_taken_back_when_its_cause_is_gone(rig: Rig) -> None:
    """R-50: status is of this generation, not of a tenant that left long ago."""
    await start(rig)
    rig.tenants("acme")
    rig.put("TenantPolicy", "mars", tenant_wire("mars", ("mars-1",)))
    await rig.look(3)
    (accepted,) = [c for c in rig.stored["status"]["conditions"] if c["type"] == "Accepted"]
    assert (accepted["status"], accepted["reason"]) == ("True", "NoEligibleTarget")
    rig.tenants("acme")
    await rig.look(3)
    (accepted,) = [c for c in rig.stored["status"]["conditions"] if c["type"] == "Accepted"]
    assert (accepted["status"], accepted["reason"], accepted.get("message", "")) == ("True", "InStep", "")


async def test_what_a_pool_says_of_itself_still_follows(rig: Rig) -> None:
    """The price is the pool's, not the release's."""
    await start(rig)
    rig.put("InferencePool", "qwen", {**POOL, "price": {"inputUsd": 7.0, "outputUsd": 9.0}})
    await rig.look(2)
    assert rig.snapshot.serving.primary.price.input_usd == 7.0


async def test_a_candidate_whose_release_is_gone_loses_its_traffic_whoever_else_is_gone(rig: Rig) -> None:
    """R-17, R-31: both Release objects were deleted in a canary; nobody was left to guard it or to take its traffic back."""
    await start(rig, "support-1", None)
    await start(rig, "support-1", "support-2", 5)
    rig.cluster.remove("Release", NAMESPACE, "support-1")
    rig.cluster.remove("Release", NAMESPACE, "support-2")
    await rig.look(3)
    assert rig.snapshot.candidate is None
    assert rig.snapshot.serving.release == "support-1"
    rig.cluster.writes.clear()
    await rig.look(3)
    assert rig.cluster.writes == []


async def test_a_copy_that_somebody_else_owns_does_not_keep_a_change_back(rig: Rig) -> None:
    """K-35, T-23: a ConfigMap restored from a backup without owner; an offboarded tenant must leave all the same."""
    rig.tenants("acme", "globex")
    await start(rig)
    rig.cluster.remove("ConfigMap", NAMESPACE, "meridian-config-support")
    foreign = {"name": "meridian-config-support", "namespace": NAMESPACE}
    rig.cluster.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": foreign, "data": {}})
    rig.tenants("acme")
    for _ in range(3):
        with contextlib.suppress(ForeignOwner):
            await rig.look()
    assert [t.tenant_id for t in rig.snapshot.tenants] == ["acme"]


async def test_the_last_tenant_of_a_service_can_be_offboarded(rig: Rig) -> None:
    """T-23, F-03: no replica takes a configuration for nobody; the tenant stays in it with its time ended, and nothing is stuck."""
    await start(rig)
    rig.tenants()
    await rig.look()
    shrinkage.LOOKS.since["support"]["acme"] -= 60
    await rig.look(2)
    (tenant,) = rig.snapshot.tenants
    assert (tenant.tenant_id, tenant.not_after) == ("acme", shrinkage.ENDED)
    await start(rig, "support-1", "support-2", 5)
    await start(rig, "support-1")
    assert rig.snapshot.candidate is None
    shrinkage.LOOKS.since.clear()
    await rig.look(2)
    assert [t.not_after for t in rig.snapshot.tenants] == [shrinkage.ENDED], "a new leader gives nobody back"
    rig.cluster.writes.clear()
    await rig.look(3)
    assert rig.cluster.writes == []
    rig.tenants("acme")
    await rig.look(2)
    assert [t.not_after for t in rig.snapshot.tenants] == [None]


async def test_a_switch_to_a_release_that_declares_something_else_by_now_is_refused(rig: Rig) -> None:
    """R-22, K-12: the guard is read again at the write itself."""
    await start(rig)
    promised = rig.stored["spec"]["served"][0]["digest"]
    await start(rig, "support-2")
    rig.put("Release", "support-1", release_wire(settings={"model": {"maxOutputTokens": 77}}))
    with pytest.raises(CannotCompile, match="made again with other content"):
        await commit(replace(rig.switch("support-1"), content=promised), rig.world, NAMESPACE)
    rig.put("Release", "support-1", release_wire())
    await commit(replace(rig.switch("support-1"), content=promised), rig.world, NAMESPACE)
    assert rig.snapshot.serving.release == "support-1"


async def test_the_stored_content_digest_is_of_what_serves_not_of_what_bears_its_name(rig: Rig) -> None:
    """R-22: a Release made again under a serving name changes neither the manifest nor its digest."""
    await start(rig, "support-1", "support-2", 25)
    before = (rig.stored["spec"]["served"], rig.stored["spec"]["candidateDigest"])
    rig.put("Release", "support-1", release_wire(settings={"model": {"maxOutputTokens": 77}}))
    rig.tenants("acme", "globex")
    await rig.look(3)
    assert rig.snapshot.generation == 2
    assert (rig.stored["spec"]["served"], rig.stored["spec"]["candidateDigest"]) == before


async def test_a_candidate_whose_spec_cannot_be_read_any_more_loses_its_traffic(rig: Rig) -> None:
    """R-17, K-35: no release guards it, whatever the schema let in."""
    await start(rig, "support-1", "support-2", 25)
    rig.put("Release", "support-2", {**release_wire(rollbackTo="support-1"), "models": {}})
    await rig.look()
    assert rig.snapshot.candidate is None and rig.snapshot.serving.release == "support-1"
