"""The long poll: who gets what, how soon, and what is never told to whom."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from serving_rig import Rig
from serving_world import NAMESPACE

from meridian_operator.cluster import Subject, Unreachable
from meridian_operator.serving import distribute
from meridian_operator.serving.callers import Callers
from meridian_operator.serving.commit import commit

TOKEN = "good-token"


@dataclass
class Served:
    rig: Rig
    url: str
    session: aiohttp.ClientSession
    writing: asyncio.Task[None]

    async def poll(self, token: str | None = TOKEN, **query: Any) -> tuple[int, dict[str, Any]]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        asked = {"replica": "dp-1", **{name: str(value) for name, value in query.items()}}
        async with self.session.get(f"{self.url}/v1/config/support", params=asked, headers=headers) as answer:
            return answer.status, await answer.json() if answer.status != 204 else {}

    async def switch(self, *arguments: Any) -> None:
        await commit(self.rig.switch(*arguments), self.rig.world, NAMESPACE)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    rig = Rig(tmp_path)
    rig.cluster.tokens[TOKEN, "meridian-config"] = Subject("system:serviceaccount:meridian:meridian-dataplane")
    rig.cluster.tokens["other", "meridian-config"] = Subject("system:serviceaccount:meridian:default")
    rig.cluster.tokens["wrong-audience", "vault"] = Subject("system:serviceaccount:meridian:meridian-dataplane")
    distributor = distribute.distributor(rig.world, rig.cluster)
    app = web.Application()
    app.add_routes(distributor.routes())
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    writing = asyncio.create_task(distributor.run())
    async with aiohttp.ClientSession() as session:
        yield Served(rig, f"http://127.0.0.1:{port}", session, writing)
    writing.cancel()
    await runner.cleanup()


async def test_a_poll_gets_exactly_what_is_stored(served: Served) -> None:
    await served.switch("support-1")
    code, body = await served.poll(have=0)
    assert code == 200
    assert body.keys() == {"generation", "payload", "signature", "keyId", "digest"}
    assert body["payload"] == served.rig.stored["spec"]["payload"]


async def test_a_replica_reports_for_itself_only(served: Served) -> None:
    """R-30: a token that is bound to one pod cannot acknowledge for another."""
    await served.switch("support-1")
    account = "system:serviceaccount:meridian:meridian-dataplane"
    served.rig.cluster.tokens["bound", "meridian-config"] = Subject(account, pod="dp-2")
    code, body = await served.poll(token="bound", replica="dp-1", applied=1)
    assert code == 403
    assert "another pod" in body["error"]
    assert (await served.poll(token="bound", replica="dp-2"))[0] == 200


async def test_nothing_newer_is_204_after_the_wait(served: Served) -> None:
    await served.switch("support-1")
    assert (await served.poll(have=1, wait=0))[0] == 204
    started = time.monotonic()
    assert (await served.poll(have=1, wait=0.3))[0] == 204
    assert time.monotonic() - started >= 0.3


@pytest.mark.parametrize(("token", "code"), [(None, 401), ("forged", 401), ("wrong-audience", 401), ("other", 403)])
async def test_only_the_data_planes_account_with_our_audience_is_answered(
    served: Served, token: str | None, code: int
) -> None:
    await served.switch("support-1")
    status, body = await served.poll(token=token)
    assert status == code
    assert "payload" not in body


async def test_a_commit_wakes_a_waiting_poll_at_once(served: Served) -> None:
    await served.switch("support-1")
    waiting = asyncio.create_task(served.poll(have=1, wait=20))
    await asyncio.sleep(0.2)
    started = time.monotonic()
    await served.switch("support-1", "support-2", 5)
    code, body = await waiting
    assert (code, body["generation"]) == (200, 2)
    assert time.monotonic() - started < 0.5


async def test_a_change_without_any_event_is_noticed_within_about_a_second(served: Served) -> None:
    """K-01: the watch is an optimisation."""
    await served.switch("support-1")
    waiting = asyncio.create_task(served.poll(have=1, wait=20))
    await asyncio.sleep(0.1)
    served.rig.cluster.put({**served.rig.stored, "spec": {**served.rig.stored["spec"], "generation": 2}})
    code, body = await asyncio.wait_for(waiting, 3)
    assert (code, body["generation"]) == (200, 2)


async def test_a_report_reaches_status(served: Served) -> None:
    await served.switch("support-1")
    await served.poll(have=1, applied=1, wait=0)
    for _ in range(50):
        await asyncio.sleep(0.02)
        if served.rig.stored.get("status"):
            break
    assert served.rig.stored["status"]["highestAccepted"] == 1
    assert served.rig.stored["status"]["replicas"][0]["replica"] == "dp-1"


async def test_a_silent_api_server_is_503_and_not_204(served: Served) -> None:
    """S-30: the replica must know that it has no contact."""
    await served.switch("support-1")
    await served.poll(have=1)
    served.rig.cluster.fail = lambda verb, kind, name: Unreachable("down")
    assert (await served.poll(have=1, wait=0.2))[0] == 503
    assert (await served.poll(have=0, wait=0.2))[0] == 503


async def test_shutting_down_ends_waiting_polls_at_once(served: Served) -> None:
    """K-09."""
    await served.switch("support-1")
    waiting = asyncio.create_task(served.poll(have=1, wait=20))
    await asyncio.sleep(0.1)
    served.writing.cancel()
    code, _ = await asyncio.wait_for(waiting, 1)
    assert code == 503


async def test_before_the_first_switch_a_poll_waits_in_peace(served: Served) -> None:
    assert (await served.poll(have=0, wait=0.1))[0] == 204


@pytest.mark.parametrize(
    "query", [{"have": "-1"}, {"have": "9" * 30}, {"applied": "x"}, {"wait": "nan"}, {"replica": "../etc"}]
)
async def test_malformed_polls_are_400(served: Served, query: dict[str, str]) -> None:
    assert (await served.poll(**query))[0] == 400


async def test_reviews_are_remembered_bounded_and_expire() -> None:
    asked: list[str] = []
    at = [0.0]

    class Reviewer:
        async def review_token(self, token: str, audience: str) -> Subject | None:
            asked.append(token)
            return Subject("user")

    callers = Callers(Reviewer(), "aud", frozenset({"user"}), lambda: at[0])
    for _ in range(3):
        assert await callers.user("Bearer t") == Subject("user")
    assert len(asked) == 1
    at[0] = 61
    await callers.user("Bearer t")
    assert len(asked) == 2
    for number in range(3000):
        await callers.user(f"Bearer t{number}")
    assert len(callers._answers) == 1024
    assert await callers.user("Basic t") is None
    assert await callers.user("Bearer " + "x" * 9000) is None


async def test_a_waiting_replica_that_holds_more_than_a_config_stored_anew_is_followed_up_at_once(
    served: Served,
) -> None:
    """F-07, K-18: what it said before is not in the new object's status, and it will not say it again by itself."""
    await served.switch("support-1")
    held = served.rig.stored["spec"]["digest"]
    await served.poll(have=1, applied=1, digest=held, wait=0)
    waiting = asyncio.create_task(served.poll(have=1, applied=1, digest=held, wait=20))
    await asyncio.sleep(0.3)
    assert served.rig.stored["status"]["highestAccepted"] == 1
    served.rig.cluster.remove("ServingConfig", NAMESPACE, "support")
    await served.switch("support-2")
    await asyncio.sleep(0.3)
    assert served.rig.stored["status"]["replicas"][0]["digest"] == held
    await served.rig.look(2)
    code, body = await waiting
    assert (code, body["generation"]) == (200, 2)
    assert served.rig.snapshot.serving.release == "support-2"
