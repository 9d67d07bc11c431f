"""What surrounds the passes: settings, kopf's settings, probes, wake-ups, the list that is the truth."""

from __future__ import annotations

import asyncio
import itertools
from datetime import datetime, timedelta
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from operator_world import NAMESPACE, Place, key
from serving_world import manifest, release_wire

from meridian_operator import handlers, probes
from meridian_operator.cluster import Key, Manifest, Unreachable
from meridian_operator.converge import Kind, World
from meridian_operator.leading import Leading
from meridian_operator.lease import Lease, Terms
from meridian_operator.plan import Plan
from meridian_operator.settings import BadSettings, from_environment
from meridian_operator.waking import READ_BY, woken_by

REQUIRED = {
    "MERIDIAN_REPLICA": "op-0",
    "MERIDIAN_OWNER_DSN": "postgresql://u:hunter2@h/db",
    "MERIDIAN_EVIDENCE_DSN": "e",
    "MERIDIAN_DATAPLANE_IMAGE": "i",
}


def test_settings_come_from_the_environment_with_their_types() -> None:
    settings = from_environment({**REQUIRED, "MERIDIAN_PORT": "9000", "MERIDIAN_RESYNC_SECONDS": "5", "HOME": "/x"})
    assert (settings.port, settings.resync_seconds, settings.namespace) == (9000, 5.0, "meridian")


def test_every_wrong_setting_is_named_at_once_and_no_value_is_shown() -> None:
    wrong = {**REQUIRED, "MERIDIAN_PORT": "many", "MERIDIAN_TYPO": "1"}
    del wrong["MERIDIAN_REPLICA"]
    with pytest.raises(BadSettings) as caught:
        from_environment(wrong)
    text = str(caught.value)
    assert all(name in text for name in ("MERIDIAN_PORT", "MERIDIAN_TYPO", "MERIDIAN_REPLICA"))
    assert "hunter2" not in text and "many" not in text


def test_what_the_kubelet_injects_for_services_is_no_setting() -> None:
    injected = {
        "MERIDIAN_OPERATOR_SERVICE_HOST": "10.0.0.1",
        "MERIDIAN_OPERATOR_SERVICE_PORT_HTTP": "8090",
        "MERIDIAN_DATAPLANE_PORT": "tcp://10.0.0.2:80",
        "MERIDIAN_DATAPLANE_PORT_80_TCP_ADDR": "10.0.0.2",
    }
    from_environment({**REQUIRED, **injected})


def test_kopf_has_the_settings_of_the_table() -> None:
    """K-01 to K-05, K-24 to K-26, K-29."""
    s = handlers.settings()
    backoffs = s.networking.error_backoffs
    first = list(itertools.islice(iter(backoffs), 1000))  # type: ignore[arg-type]
    assert len(first) == 1000 and max(first) <= 15 and len(set(first)) > 900
    assert len(list(itertools.islice(iter(backoffs), 10))) == 10  # type: ignore[arg-type]
    assert (s.networking.request_timeout, s.networking.connect_timeout) == (10, 3)
    assert s.networking.enforce_retry_after is True
    watching = s.watching
    assert (watching.server_timeout, watching.client_timeout, watching.connect_timeout) == (240, 270, 5)
    assert (watching.inactivity_timeout, watching.chunk_size) == (70, None)
    assert isinstance(watching.server_timeout, int)
    assert (s.queueing.worker_limit, tuple(s.queueing.error_delays)) == (None, (1, 1, 2, 5, 10))
    assert s.execution.default_backoff == 2
    assert s.peering.standalone and s.scanning.disabled and not s.posting.enabled
    assert s.persistence.finalizer == "meridian.dev/kopf"
    assert s.process.ultimate_exiting_timeout == 20


def test_kopf_gets_a_login_and_event_handlers_and_nothing_that_adds_a_finalizer() -> None:
    """K-21, K-26: no change handlers, timers or daemons; all handlers async."""
    registry = handlers.registry(["Release", "Deployment"], NAMESPACE, "", lambda changed: None)
    assert [h.id for h in registry._activities.get_all_handlers()] == ["login"]
    assert {h.id for h in registry._watching.get_all_handlers()} == {"wake-releases", "wake-deployments"}
    for unused in (registry._changing, registry._spawning, registry._indexing, registry._webhooks):
        assert list(unused.get_all_handlers()) == []
    found = [*registry._activities.get_all_handlers(), *registry._watching.get_all_handlers()]
    assert all(asyncio.iscoroutinefunction(h.fn) for h in found)


def test_a_change_wakes_its_object_and_its_readers() -> None:
    known = {key(kind, "x") for kind in READ_BY} | {Key("Release", "elsewhere", "y")}
    woken = woken_by(manifest("InferencePool", "qwen", {}), known)
    assert woken == {key("InferencePool", "qwen"), key("Release", "x"), key("ServingConfig", "x")}


def test_an_owned_workload_wakes_its_owner() -> None:
    """K-18."""
    owner = {"apiVersion": "meridian.dev/v1alpha1", "kind": "IndexEpoch", "name": "e1", "uid": "u", "controller": True}
    job = {"kind": "Job", "metadata": {"name": "j", "namespace": NAMESPACE, "ownerReferences": [owner]}}
    assert woken_by(job, ()) == {key("IndexEpoch", "e1")}
    foreign = {**owner, "apiVersion": "apps/v1", "kind": "ReplicaSet"}
    labelled = {
        "kind": "Deployment",
        "metadata": {
            "name": "d",
            "namespace": NAMESPACE,
            "ownerReferences": [foreign],
            "labels": {"meridian.dev/pool": "qwen"},
        },
    }
    assert woken_by(labelled, ()) == {key("InferencePool", "qwen")}


async def test_probes_tell_a_hung_list_from_a_healthy_one_and_never_who_leads() -> None:
    age: list[float | None] = [None]
    ready = [False]
    app = probes.application(lambda: age[0], lambda: ready[0], period=30)
    async with TestClient(TestServer(app)) as client:
        assert (await client.get("/healthz")).status == 200
        assert (await client.get("/readyz")).status == 503
        ready[0] = True
        assert (await client.get("/readyz")).status == 200
        age[0] = 89.0
        assert (await client.get("/healthz")).status == 200
        age[0] = 91.0
        assert (await client.get("/healthz")).status == 503
        assert "meridian_operator_resync_age_seconds 91.0" in await (await client.get("/metrics")).text()


class Rig:
    """A leader over a memory cluster whose only kind records its passes."""

    def __init__(self) -> None:
        self.place = Place()
        self.passes: list[str] = []
        self.began = 0
        loop = asyncio.get_running_loop()
        self.lease = Lease(self.place.cluster, Terms(NAMESPACE, "lease", "op-0"), loop.time)
        world = World(
            self.place.cluster, self.place.store, self.place.world.settings, self.place.world.clock, self.lease.fence
        )
        self.leading = Leading(world, {"Release": Kind("Release", self._observe, self._decide)}, loop.time, self._begin)

    async def _begin(self) -> None:
        self.began += 1

    async def _observe(self, at: Key, world: World) -> Any:
        live = self.place.cluster.objects.get(tuple(at))
        return None if live is None else type("Seen", (), {"object": live})()

    def _decide(self, seen: Any, now: datetime) -> Plan:
        self.passes.append(seen.object["metadata"]["name"])
        return Plan("test", look_again=timedelta(hours=1))


@pytest.mark.looptime
async def test_what_no_watch_told_is_seen_within_one_period() -> None:
    """K-01 to K-04, K-19: the list is the truth; a deaf watch costs 30 s."""
    rig = Rig()
    leading = asyncio.create_task(rig.leading.lead(rig.lease))
    await asyncio.sleep(1)
    rig.place.put("Release", "silent", release_wire())
    await asyncio.sleep(30)
    assert rig.passes == ["silent"] and rig.began == 1
    leading.cancel()


@pytest.mark.looptime
async def test_a_wake_up_needs_no_list() -> None:
    rig = Rig()
    leading = asyncio.create_task(rig.leading.lead(rig.lease))
    await asyncio.sleep(1)
    live = rig.place.put("Release", "quick", release_wire())
    rig.leading.wake(live)
    await asyncio.sleep(0.1)
    assert rig.passes == ["quick"]
    leading.cancel()


@pytest.mark.looptime
async def test_what_vanished_in_a_gap_is_forgotten_within_one_period() -> None:
    """K-03, K-30."""
    rig = Rig()
    rig.place.put("Release", "gone", release_wire())
    leading = asyncio.create_task(rig.leading.lead(rig.lease))
    await asyncio.sleep(1)
    rig.place.cluster.remove("Release", NAMESPACE, "gone")
    await asyncio.sleep(31)
    assert rig.leading._queue is not None and rig.leading._queue.keys() == set()
    leading.cancel()


@pytest.mark.looptime
async def test_what_is_created_while_the_list_is_on_its_way_is_not_forgotten() -> None:
    """The list is older than the event: it must not undo it."""
    rig = Rig()
    rig.place.put("Release", "known", release_wire())
    plain = rig.place.cluster.list

    async def slow(kind: str, namespace: str, labels: Any = None) -> list[Manifest]:
        found = await plain(kind, namespace, labels)
        await asyncio.sleep(5 if kind == "Release" else 0)  # the Lease lists ServingConfigs before it is taken
        return found

    rig.place.cluster.list = slow  # type: ignore[method-assign]
    leading = asyncio.create_task(rig.leading.lead(rig.lease))
    await asyncio.sleep(1)
    rig.leading.wake(rig.place.put("Release", "new", release_wire()))
    await asyncio.sleep(9)
    assert rig.leading._queue is not None
    assert "new" in rig.passes and rig.leading._queue.keys("Release") == {
        key("Release", "known"),
        key("Release", "new"),
    }
    leading.cancel()


@pytest.mark.looptime
async def test_a_silent_api_server_is_survived_and_its_age_is_told() -> None:
    """K-01: while the Lease holds; beyond it the process exits and starts again."""
    rig = Rig()
    leading = asyncio.create_task(rig.leading.lead(rig.lease))
    await asyncio.sleep(1)
    rig.place.cluster.fail = lambda verb, kind, name: Unreachable("503") if kind == "Release" else None
    await asyncio.sleep(300)
    rig.place.put("Release", "late", release_wire())
    rig.place.cluster.fail = lambda verb, kind, name: None
    await asyncio.sleep(3)
    assert rig.passes == ["late"]
    leading.cancel()


@pytest.mark.looptime
async def test_losing_the_lease_ends_everything_at_once() -> None:
    """K-07."""
    rig = Rig()
    rig.place.put("Release", "r", release_wire())
    leading = asyncio.create_task(rig.leading.lead(rig.lease))
    await asyncio.sleep(1)
    lease: Manifest = rig.place.cluster.objects["Lease", NAMESPACE, "lease"]
    rig.place.cluster.put({**lease, "spec": {**lease["spec"], "holderIdentity": "op-1", "leaseTransitions": 2}})
    await asyncio.wait_for(leading, timeout=3)
    before = list(rig.passes)
    rig.leading.wake(rig.place.live("Release", "r"))
    await asyncio.sleep(60)
    assert rig.passes == before


@pytest.mark.looptime
async def test_a_clean_exit_gives_the_lease_up() -> None:
    """K-09: the next replica need not wait."""
    rig = Rig()
    leading = asyncio.create_task(rig.leading.lead(rig.lease))
    await asyncio.sleep(1)
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
    assert rig.place.cluster.objects["Lease", NAMESPACE, "lease"]["spec"]["holderIdentity"] == ""
