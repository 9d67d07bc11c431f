"""The real process on real sockets, store, engine, orders and issuer, with no control plane: start, answer, leave."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg
import pytest
import store_sample

from meridian_cluster.postgres_roles import Dsns
from meridian_dataplane.configuration import keep
from meridian_dataplane.ingestion.__main__ import run, shard_from

pytestmark = pytest.mark.timeout(180)
ISSUER = "http://10.200.0.1:8600"
ORDER_QUESTION = "Customer on order A-77120 was charged twice. Do we refund automatically?"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_for(url: str, status: int = 200, seconds: float = 90) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if httpx.get(url, timeout=1).status_code == status:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.05)
    raise TimeoutError(url)


@contextmanager
def process(*command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("MERIDIAN_")}
    started = subprocess.Popen([sys.executable, "-m", *command], env={**own, **environment})
    try:
        yield started
    finally:
        started.kill()
        started.wait()


@dataclass(frozen=True)
class Site:
    """Everything around a data plane."""

    environment: dict[str, str]
    token_url: str
    store: Dsns

    def token(self, tenant: str = "acme-eu", roles: tuple[str, ...] = ("support_agent",)) -> dict[str, str]:
        body = {"tenant": tenant, "sub": "u_8841", "groups": list(roles), "roles": list(roles)}
        answer = httpx.post(self.token_url, json=body).json()
        return {"authorization": f"Bearer {answer['access_token']}"}


@pytest.fixture(scope="module")
def site(
    store: Dsns, make_epoch: Callable[[str, str], None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    for tenant in store_sample.TENANTS:
        make_epoch(tenant, "e1")
    environment = {"MERIDIAN_EPOCH": store_sample.epoch_value("e1", "uid-1")}
    environment["MERIDIAN_SOURCES_DIR"] = str(store_sample.mount_sources(folder / "sources"))
    assert run(shard_from(environment), store.ingest, folder / "no-golden.jsonl") == 0
    engine, orders, issuer = free_port(), free_port(), free_port()
    token = folder / "token"
    token.write_text("a-token")
    mount, keys = store_sample.mount_snapshot(folder, store_sample.snapshot("e1", f"http://localhost:{engine}"))
    slow = ("--prefill-ms", "50", "--inter-token-ms", "25")
    own = ("--host", "127.0.0.1")
    with (
        process("meridian_predictor", *own, "--port", str(engine), *slow),
        process("meridian_orders", *own, "--port", str(orders), "--token-file", str(token)),
        process(
            *("meridian_orders.issuer", *own, "--port", str(issuer)),
            *("--key-file", str(folder / "key.pem"), "--issuer", ISSUER),
        ),
    ):
        wait_for(f"http://127.0.0.1:{engine}/health")
        wait_for(f"http://127.0.0.1:{issuer}/.well-known/jwks.json")
        jwks = f"http://127.0.0.1:{issuer}/.well-known/jwks.json"
        yield Site(
            {
                "MERIDIAN_SERVICE": "support",
                "MERIDIAN_REGION": "eu-1",
                "MERIDIAN_REPLICA": "pod-1",
                "MERIDIAN_DATABASE_DSN": store.app,
                "MERIDIAN_ISSUERS": json.dumps([{"issuer": ISSUER, "jwksUrl": jwks}]),
                "MERIDIAN_ENDPOINTS": json.dumps({"orders": f"http://127.0.0.1:{orders}"}),
                "MERIDIAN_ORDERS_TOKEN_FILE": str(token),
                # Nobody listens there: the control plane is down.
                "MERIDIAN_CONFIG_URL": f"http://127.0.0.1:{free_port()}",
                "MERIDIAN_CONFIG_MOUNT": str(mount),
                "MERIDIAN_PUBLIC_KEYS_DIR": str(keys),
            },
            f"http://127.0.0.1:{issuer}/token",
            store,
        )


@contextmanager
def serving(site: Site, state: Path, **changed: str) -> Iterator[tuple[subprocess.Popen[bytes], str, str]]:
    """(process, public address, admin address), ready."""
    public, admin = free_port(), free_port()
    environment = {
        **site.environment,
        "MERIDIAN_HOST": "127.0.0.1",
        "MERIDIAN_STATE_DIR": str(state),
        "MERIDIAN_PUBLIC_PORT": str(public),
        "MERIDIAN_ADMIN_PORT": str(admin),
        "MERIDIAN_BEAT_SECONDS": "1",
        **changed,
    }
    with process("meridian_dataplane", **environment) as started:
        wait_for(f"http://127.0.0.1:{admin}/readyz")
        yield started, f"http://127.0.0.1:{public}", f"http://127.0.0.1:{admin}"


def events_of(body: str) -> list[tuple[str, dict]]:
    frames = [frame.split("\n") for frame in body.split("\n\n") if frame and not frame.startswith(":")]
    return [(f[0].removeprefix("event: "), json.loads(f[1].removeprefix("data: "))) for f in frames]


def ask(base: str, headers: dict[str, str], question: str = ORDER_QUESTION) -> list[tuple[str, dict]]:
    response = httpx.post(f"{base}/v1/answers", json={"question": question}, headers=headers, timeout=15)
    assert response.status_code == 200, response.text
    return events_of(response.text)


@pytest.fixture(scope="module")
def plane(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """(public address, admin address) of a data plane without a control plane."""
    with serving(site, tmp_path_factory.mktemp("plane")) as (_, public, admin):
        yield public, admin


def test_it_starts_without_a_control_plane_and_answers_with_citations_and_live_data(
    site: Site, plane: tuple[str, str]
) -> None:
    """S-10 to S-20, S-30, F-12, S-63: the reference's question, end to end; then feedback and the cited document."""
    base, admin = plane
    headers = site.token()
    events = ask(base, headers)
    text = "".join(data["text"] for name, data in events if name == "token")
    (citations,) = [data["citations"] for name, data in events if name == "citations"]
    assert "A-77120" in text
    assert "[1]" in text
    assert "POL-EU-009" in {one["docId"] for one in citations}
    done = events[-1][1]
    assert (events[-1][0], done["degraded"], done["abstained"]) == ("done", "full", False)
    assert done["costUsd"] > 0
    assert done["usage"]["inputTokens"] > 500
    document = httpx.get(f"{base}{citations[0]['url']}", headers=headers)
    assert (document.status_code, document.json()["docId"]) == (200, citations[0]["docId"])
    given = {"requestId": done["requestId"], "outcome": "resolved"}
    assert httpx.post(f"{base}/v1/feedback", json=given, headers=headers).status_code == 202
    other = site.token("globex")
    assert httpx.post(f"{base}/v1/feedback", json=given, headers=other).status_code == 404
    assert httpx.get(f"{base}{citations[0]['url']}", headers=other).status_code == 404
    assert "meridian_config_generation 1.0" in httpx.get(f"{admin}/metrics").text
    with psycopg.connect(site.store.evidence) as connection:
        assert connection.execute("select count(*) from meridian.outcomes").fetchone() == (1,)


def test_it_abstains_when_no_document_answers(site: Site, plane: tuple[str, str]) -> None:
    events = ask(plane[0], site.token(), "What is the airspeed velocity of an unladen swallow?")
    assert events[-1][1]["abstained"]


def opened(site: Site) -> Counter[str]:
    """The role's connections by name."""
    with psycopg.connect(site.store.app) as own:
        names = "select application_name, count(*) from pg_stat_activity where usename = current_user group by 1"
        return Counter(dict(own.execute(names).fetchall()))


def test_citations_are_checked_while_searches_hold_every_connection_of_theirs(site: Site, tmp_path: Path) -> None:
    """S-18: a burst of searches makes searches wait, never the checks of answers that are nearly done."""
    before = opened(site)
    with (
        serving(site, tmp_path, MERIDIAN_RETRIEVAL_PERMITS="1") as (_, base, _),
        psycopg.connect(site.store.owner) as busy,
    ):
        new = opened(site) - before
        assert (new["meridian-searches"], new["meridian-checks"]) == (1, 3)
        headers = site.token()
        cited = next(data["citations"] for name, data in ask(base, headers) if name == "citations")
        busy.execute("lock table meridian.epochs in access exclusive mode")  # only searches read it

        def search() -> int:
            question = {"question": "How long do refunds take?"}
            return httpx.post(f"{base}/v1/answers", json=question, headers=headers, timeout=15).status_code

        with ThreadPoolExecutor(3) as asking:
            waiting = [asking.submit(search) for _ in range(3)]
            time.sleep(0.1)
            began = time.monotonic()
            assert httpx.get(f"{base}{cited[0]['url']}", headers=headers).status_code == 200
            assert time.monotonic() - began < 0.8  # less than a search holds its connection
            busy.rollback()
            assert {one.result() for one in waiting} <= {200, 429, 503}


def test_it_starts_from_its_disk_when_mount_and_issuer_are_gone(site: Site, tmp_path: Path) -> None:
    """S-30, T-09, F-12: last good configuration and last good keys."""
    envelope = Path(site.environment["MERIDIAN_CONFIG_MOUNT"], "envelope.json").read_bytes()
    keep.keep(tmp_path, 1, envelope)
    (issuer,) = json.loads(site.environment["MERIDIAN_ISSUERS"])
    keys = {ISSUER: {"fetched": time.time() - 3600, "keys": httpx.get(issuer["jwksUrl"]).json()["keys"]}}
    (tmp_path / "jwks.json").write_text(json.dumps(keys))
    nobody = json.dumps([{"issuer": ISSUER, "jwksUrl": f"http://127.0.0.1:{free_port()}/jwks"}])
    gone = {"MERIDIAN_CONFIG_MOUNT": str(tmp_path / "none"), "MERIDIAN_ISSUERS": nobody}
    with serving(site, tmp_path, **gone) as (_, base, _):
        assert ask(base, site.token(), "Within how many days may a consumer withdraw?")[-1][0] == "done"


async def test_at_sigterm_running_streams_end_whole_and_readiness_goes_first(site: Site, tmp_path: Path) -> None:
    """H-35, IV-28."""
    with serving(site, tmp_path) as (started, base, admin):
        headers = site.token()
        async with httpx.AsyncClient(timeout=20) as client:

            async def one() -> str:
                body = {"question": ORDER_QUESTION}
                return (await client.post(f"{base}/v1/answers", json=body, headers=headers)).text

            streams = [asyncio.create_task(one()) for _ in range(8)]
            await asyncio.sleep(0.6)
            started.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.2)
            assert (await client.get(f"{admin}/readyz")).status_code == 503
            assert (await client.get(f"{admin}/healthz")).status_code == 200
            late = await one()
            bodies = [*await asyncio.gather(*streams), late]
        assert [events_of(body)[-1][0] for body in bodies] == ["done"] * 9
        assert await asyncio.to_thread(started.wait, 15) == 0


async def test_a_stream_that_cannot_end_in_time_is_told_so(site: Site, tmp_path: Path) -> None:
    """H-35: an explicit end, never a reset."""
    with serving(site, tmp_path, MERIDIAN_BEAT_SECONDS="0", MERIDIAN_GRACE_SECONDS="2") as (started, base, _):
        headers = site.token()
        async with httpx.AsyncClient(timeout=20) as client:
            body = {"question": ORDER_QUESTION}
            async with client.stream("POST", f"{base}/v1/answers", json=body, headers=headers) as response:
                started.send_signal(signal.SIGTERM)
                text = (await response.aread()).decode()
        name, data = events_of(text)[-1]
        assert (name, data.get("code")) == ("error", "shutting_down")
        assert await asyncio.to_thread(started.wait, 10) == 0


def raw(base: str, request: bytes) -> bytes:
    host, port = base.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        parts = []
        while part := connection.recv(65_536):
            parts.append(part)
    return b"".join(parts)


def test_requests_that_can_be_read_in_two_ways_are_refused_on_the_wire(plane: tuple[str, str]) -> None:
    """H-21, H-28, H-29, H-32: never a second request."""
    line = b"POST /v1/answers HTTP/1.1\r\nhost: x\r\n"
    base, _ = plane
    for headers in (
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\n\r\n",
        b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"transfer-encoding: chunked\r\n\r\nzz\r\n\r\n",
        b"a: b\r\n c: folded\x00\r\n\r\n",
        b"x: " + b"y" * 100_000 + b"\r\n\r\n",
    ):
        answer = raw(base, line + headers)
        assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 401")), headers[:40]
        assert answer.count(b"HTTP/1.1") == 1
    upgrade = b"GET /v1/answers HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    assert raw(base, upgrade).startswith(b"HTTP/1.1 405")


def test_a_wrong_environment_ends_with_every_fault_and_no_value(site: Site, tmp_path: Path) -> None:
    own = {n: v for n, v in os.environ.items() if not n.startswith("MERIDIAN_")}
    environment = {**own, **site.environment, "MERIDIAN_PUBLIK_PORT": "1", "MERIDIAN_ADMIN_PORT": "secret"}
    ended = subprocess.run(
        [sys.executable, "-m", "meridian_dataplane"], env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert "MERIDIAN_PUBLIK_PORT: unknown" in ended.stderr and "MERIDIAN_ADMIN_PORT" in ended.stderr
    assert "secret" not in ended.stderr


def test_a_role_that_row_security_does_not_hold_ends_the_process(site: Site, tmp_path: Path) -> None:
    """T-26."""
    environment = {**site.environment, "MERIDIAN_DATABASE_DSN": site.store.owner, "MERIDIAN_STATE_DIR": str(tmp_path)}
    environment |= {"MERIDIAN_PUBLIC_PORT": str(free_port()), "MERIDIAN_ADMIN_PORT": str(free_port())}
    with process("meridian_dataplane", **environment) as started:
        assert started.wait(60) == 1
