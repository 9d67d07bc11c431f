"""Snapshots: every damaged one is refused and replaces nothing; the last good ones survive restarts; the poll reports."""

import asyncio
import base64
import gzip
import json
import random
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from dataplane_world import (
    SIGNING,
    a_candidate,
    a_snapshot,
    a_tenant,
    an_envelope,
    write_key,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from meridian_api.digest import canonical_json, sha256_hex
from meridian_dataplane.configuration import keep, poll
from meridian_dataplane.configuration.live import Live, Source
from meridian_dataplane.configuration.verify import Accepted, Receiver, Refused, verify
from meridian_dataplane.doubles import ManualClock
from meridian_dataplane.telemetry import Metrics

RECEIVER = Receiver("support", "eu-1", {"key-1": SIGNING.public_key()})
OTHER = Ed25519PrivateKey.generate()


def judged(raw, current=None, least=1, receiver=RECEIVER):
    return verify(raw, receiver, current=current, least_generation=least)


def signed(packed: bytes, generation: int = 1, **changed) -> bytes:
    """An envelope over any bytes."""
    wire = {
        "generation": generation,
        "payload": base64.b64encode(packed).decode(),
        "signature": base64.b64encode(SIGNING.sign(packed)).decode(),
        "keyId": "key-1",
        "digest": sha256_hex(packed),
        **changed,
    }
    return json.dumps(wire).encode()


def of_wire(change) -> bytes:
    """A well-signed envelope over a changed wire form."""
    wire = a_snapshot().to_wire()
    change(wire)
    return signed(gzip.compress(canonical_json(wire)))


def set_in(*path):
    *parents, last, value = path

    def change(wire):
        for name in parents:
            wire = wire[name]
        wire[last] = value

    return change


def test_a_good_snapshot_is_accepted():
    accepted = judged(an_envelope(a_snapshot(7, candidate=a_candidate())), least=7)
    assert isinstance(accepted, Accepted)
    assert accepted.snapshot.generation == 7


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        pytest.param(b"", "envelope", id="empty"),
        pytest.param(b"[" * 100_000, "envelope", id="deep"),
        pytest.param(b"null", "envelope", id="null"),
        pytest.param(b"\xff" * 100, "envelope", id="not utf-8"),
        pytest.param(an_envelope(a_snapshot())[:-40], "envelope", id="F-05 cut off"),
        pytest.param(b"x" * 2_000_000, "too_large", id="F-02 envelope too large"),
        pytest.param(signed(b"x" * 900_000), "too_large", id="F-02 payload too large"),
        pytest.param(signed(gzip.compress(b" " * 20_000_000)), "schema", id="F-02 bomb"),
        pytest.param(an_envelope(a_snapshot(), extra=1), "envelope", id="unknown field of the envelope"),
        pytest.param(an_envelope(a_snapshot(), payload="%%%"), "encoding", id="not base64"),
        pytest.param(an_envelope(a_snapshot(), signature=""), "signature", id="F-06 unsigned"),
        pytest.param(an_envelope(a_snapshot(), key=OTHER), "signature", id="F-06 wrong key"),
        pytest.param(an_envelope(a_snapshot(), key_id="staging"), "unknown_key", id="F-06 unknown key"),
        pytest.param(an_envelope(a_snapshot(), key_id="../key-1"), "unknown_key", id="F-06 path as key"),
        pytest.param(an_envelope(a_snapshot(), digest="sha256:" + "0" * 64), "digest", id="digest"),
        pytest.param(signed(b"not gzip"), "schema", id="not gzip"),
        pytest.param(signed(gzip.compress(b"{}")[:-5]), "schema", id="gzip cut off"),
        pytest.param(signed(gzip.compress(b"[" * 200_000)), "schema", id="deep payload"),
        pytest.param(signed(gzip.compress(b"{}")), "schema", id="F-03 empty"),
        pytest.param(an_envelope(a_snapshot(2), generation=3), "generation_mismatch", id="generation differs"),
        pytest.param(an_envelope(a_snapshot(service="billing")), "other_service", id="other service"),
        pytest.param(an_envelope(a_snapshot(region="us-1")), "other_region", id="other region"),
        pytest.param(an_envelope(a_snapshot(tenants=[])), "blank", id="F-03 no tenants"),
        pytest.param(of_wire(set_in("serving", "systemPrompt", " ")), "blank", id="F-01 blank prompt"),
        pytest.param(of_wire(set_in("serving", "systemPrompt", "")), "schema", id="F-01 no prompt"),
        pytest.param(of_wire(set_in("serving", "primary", "region", "")), "blank", id="F-01 blank region"),
        pytest.param(of_wire(set_in("tenants", 0, "allowedRegions", [""])), "blank", id="F-01 blank allowed region"),
        pytest.param(of_wire(set_in("tenants", 0, "roles", [])), "blank", id="F-01 no roles"),
        pytest.param(of_wire(set_in("tenants", 0, "allowedRegions", ["global"])), "region", id="T-40 global"),
        pytest.param(of_wire(set_in("tenants", 0, "notAfter", "tomorrow")), "time", id="unreadable time"),
        pytest.param(of_wire(set_in("tenants", 0, "notAfter", "2026-01-01T00:00:00")), "time", id="time without zone"),
        pytest.param(of_wire(set_in("serving", "primary", "baseUrl", "file:///etc")), "target", id="target scheme"),
        pytest.param(of_wire(set_in("serving", "primary", "provider", "Magic")), "schema", id="F-08 unknown enum"),
        pytest.param(of_wire(set_in("serving", "primary", "colour", "red")), "schema", id="F-08 unknown field"),
        pytest.param(of_wire(set_in("generation", "1")), "schema", id="text for a number"),
        pytest.param(
            of_wire(set_in("serving", "tools", 0, "parameters", {"type": 7})), "tool_schema", id="tool schema"
        ),
        *(
            pytest.param(
                of_wire(set_in("serving", "tools", 0, "parameters", {"properties": {"order_id": {"$ref": reference}}})),
                "tool_schema",
                id=f"T-44 {reference}",
            )
            for reference in ("http://169.254.169.254/latest", "file:///etc/hostname", "#/nowhere", "other.json")
        ),
        pytest.param(
            an_envelope(a_snapshot(tenants=[a_tenant(), a_tenant()])), "ambiguous_tenant", id="a tenant twice"
        ),
    ],
)
def test_a_bad_snapshot_is_refused_with_its_reason(raw, reason):
    """F-01 to F-08, IV-08."""
    refused = judged(raw)
    assert isinstance(refused, Refused)
    assert refused.reason == reason


def test_an_older_or_equal_generation_is_refused():
    """F-07."""
    assert judged(an_envelope(a_snapshot(41)), least=43) == Refused("old_generation", 41)


@pytest.mark.parametrize(("gone", "confirmed", "accepted"), [(3, False, True), (4, False, False), (4, True, True)])
def test_a_large_shrink_needs_to_be_confirmed(gone, confirmed, accepted):
    """F-04: over 20 % and over 3 tenants."""
    current = a_snapshot(tenants=[a_tenant(f"t{n}") for n in range(10)])
    smaller = a_snapshot(2, tenants=[a_tenant(f"t{n}") for n in range(10 - gone)], shrinkConfirmed=confirmed)
    assert isinstance(judged(an_envelope(smaller), current), Accepted) is accepted


def test_renaming_all_tenants_is_a_shrink_too():
    current = a_snapshot(tenants=[a_tenant(f"t{n}") for n in range(5)])
    assert (
        judged(an_envelope(a_snapshot(2, tenants=[a_tenant(f"u{n}") for n in range(5)])), current).reason == "shrunken"
    )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_damage_to_the_bytes_crashes_or_is_accepted(data):
    """IV-08: flipped, cut, doubled, replaced bytes."""
    good = an_envelope(a_snapshot())
    raw = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "drop", "insert"])):
            case "flip":
                raw[at] ^= data.draw(st.integers(1, 255))
            case "cut":
                del raw[max(at, 1) :]
            case "drop":
                del raw[at : at + 1]
            case _:
                raw[at:at] = data.draw(st.binary(min_size=1, max_size=8))
        if not raw:
            break
    judgement = judged(bytes(raw))
    if isinstance(judgement, Accepted):
        # Only damage outside the signed bytes that leaves the same JSON may pass: then the snapshot is the same.
        assert judgement.snapshot == a_snapshot()


@settings(max_examples=40, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda c: st.lists(c, max_size=3) | st.dictionaries(st.text(max_size=8), c, max_size=3),
        max_leaves=8,
    )
)
def test_any_well_signed_json_is_judged(value):
    assert isinstance(judged(signed(gzip.compress(json.dumps(value).encode()))), Refused)


# Disk


def test_two_generations_are_kept_newest_first(tmp_path):
    for generation in (1, 2, 10):
        keep.keep(tmp_path, generation, b"g%d" % generation)
    assert keep.kept(tmp_path) == [b"g10", b"g2"]
    assert keep.highest(tmp_path) == 10


def test_half_written_files_are_passed_over(tmp_path):
    """F-14: SIGKILL between writing and renaming."""
    keep.keep(tmp_path, 1, b"good")
    (tmp_path / ".generation-2.json.77.aside").write_bytes(b"ha")
    assert keep.kept(tmp_path) == [b"good"]
    assert keep.kept(tmp_path / "missing") == []


def test_the_highest_generation_outlives_its_file(tmp_path):
    """F-07, IV-07."""
    keep.keep(tmp_path, 42, b"x")
    (tmp_path / "generation-42.json").unlink()
    assert keep.highest(tmp_path) == 42


# Live


def a_live(tmp_path: Path, clock=None, **source) -> Live:
    write_key(tmp_path / "keys")
    paths = {"state_dir": tmp_path / "state", "mount": tmp_path / "mount", "keys_dir": tmp_path / "keys"}
    return Live(Source("support", "eu-1", **{**paths, **source}), clock or ManualClock(), Metrics())


def mount(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "mount").mkdir(exist_ok=True)
    (tmp_path / "mount" / "envelope.json").write_bytes(raw)


async def test_a_start_takes_the_newest_valid_of_disk_and_mount(tmp_path):
    """F-12, S-30: without any control plane."""
    keep.keep(tmp_path / "state", 3, an_envelope(a_snapshot(3)))
    mount(tmp_path, an_envelope(a_snapshot(5)))
    live = a_live(tmp_path)
    await live.start()
    assert live.snapshot.generation == 5
    mount(tmp_path, an_envelope(a_snapshot(4)))
    again = a_live(tmp_path)
    await again.start()
    assert again.snapshot.generation == 5
    assert again.highest == 5


async def test_a_damaged_newest_file_lets_the_older_one_serve_but_nothing_older_from_outside(tmp_path):
    """F-07, F-14."""
    keep.keep(tmp_path / "state", 41, an_envelope(a_snapshot(41)))
    keep.keep(tmp_path / "state", 42, an_envelope(a_snapshot(42))[:-9])
    live = a_live(tmp_path)
    await live.start()
    assert (live.snapshot.generation, live.highest) == (41, 42)
    assert (await live.offer(an_envelope(a_snapshot(41)), source="poll")).reason == "old_generation"
    assert isinstance(await live.offer(an_envelope(a_snapshot(42)), source="poll"), Accepted)
    assert (await live.offer(an_envelope(a_snapshot(42)), source="poll")).reason == "old_generation"
    assert isinstance(await live.offer(an_envelope(a_snapshot(43)), source="poll"), Accepted)


async def test_nothing_stored_is_not_a_reason_to_end_and_not_a_configuration(tmp_path):
    """F-05: no start on a part."""
    mount(tmp_path, an_envelope(a_snapshot())[:100])
    live = a_live(tmp_path)
    await live.start()
    assert live.snapshot is None


async def test_a_refused_snapshot_leaves_the_good_one_and_is_reported(tmp_path):
    """IV-08, F-03."""
    live = a_live(tmp_path)
    await live.offer(an_envelope(a_snapshot(1)), source="poll")
    for raw in (an_envelope(a_snapshot(2, tenants=[])), b"garbage", an_envelope(a_snapshot(2), key=OTHER)):
        assert isinstance(await live.offer(raw, source="poll"), Refused)
        assert live.snapshot.generation == 1
    assert live.refused == Refused("signature", 2)
    await live.offer(an_envelope(a_snapshot(3)), source="poll")
    assert (live.snapshot.generation, live.refused) == (3, None)


async def test_a_full_disk_costs_only_the_copy_on_disk(tmp_path, monkeypatch):
    """F-14: memory serves."""

    def full(*_):
        raise OSError(28, "No space left on device")

    live = a_live(tmp_path)
    monkeypatch.setattr(keep, "keep", full)
    await live.offer(an_envelope(a_snapshot(2)), source="poll")
    assert live.snapshot.generation == 2


async def test_a_rotated_key_is_known_without_a_restart_and_the_old_one_ends_with_its_file(tmp_path):
    """F-10."""
    live = a_live(tmp_path)
    await live.offer(an_envelope(a_snapshot(1)), source="poll")
    write_key(tmp_path / "keys", OTHER, "key-2")
    assert isinstance(await live.offer(an_envelope(a_snapshot(2), OTHER, "key-2"), source="poll"), Accepted)
    assert isinstance(await live.offer(an_envelope(a_snapshot(3)), source="poll"), Accepted)
    (tmp_path / "keys" / "key-1.pem").unlink()
    assert (await live.offer(an_envelope(a_snapshot(4)), source="poll")).reason == "unknown_key"


async def test_an_odd_file_among_the_keys_is_passed_over(tmp_path):
    """F-10: a key of an algorithm that nobody knows, a certificate that was put there by mistake, a folder."""
    unknown = base64.b64encode(bytes.fromhex("3013300c06082a03040506070809050003030001 02")).decode()
    live = a_live(tmp_path)
    (tmp_path / "keys" / "a.pem").write_text(f"-----BEGIN PUBLIC KEY-----\n{unknown}\n-----END PUBLIC KEY-----\n")
    (tmp_path / "keys" / "b.pem").write_text("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n")
    (tmp_path / "keys" / "c.pem").mkdir()
    assert isinstance(await live.offer(an_envelope(a_snapshot(1)), source="poll"), Accepted)


async def test_past_the_soft_expiry_it_serves_and_says_so(tmp_path):
    """S-31, F-11."""
    clock = ManualClock()
    live = a_live(tmp_path, clock)
    await live.offer(an_envelope(a_snapshot(1, softExpirySeconds=60)), source="poll")
    assert not live.stale
    clock.seconds += 61
    assert live.stale and live.snapshot is not None
    live.heard()
    assert not live.stale


# Poll


class Control:
    """A control plane that answers from a list and remembers what it was told."""

    def __init__(self, *answers) -> None:
        self.answers, self.asked, self.tokens = list(answers), [], []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(dict(request.url.params))
        self.tokens.append(request.headers.get("authorization"))
        if not self.answers:
            await asyncio.sleep(3600)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, content=answer)


async def polled(tmp_path, control, asks, monkeypatch):
    monkeypatch.setattr(random, "uniform", lambda low, high: 0.0)
    (tmp_path / "token").write_text("t1\n")
    live = a_live(tmp_path, url="http://operator.test", token_file=tmp_path / "token")
    async with httpx.AsyncClient(transport=httpx.MockTransport(control)) as client:
        task = asyncio.create_task(poll.poll(live, live._source, "pod-1", client))
        async with asyncio.timeout(3):
            while len(control.asked) < asks:
                await asyncio.sleep(0.005)
                assert not task.done()
        task.cancel()
    return live


async def test_the_poll_applies_and_acknowledges(tmp_path, monkeypatch):
    """The poll after an application says so at once."""
    control = Control(an_envelope(a_snapshot(1)), httpx.Response(204), an_envelope(a_snapshot(2)))
    live = await polled(tmp_path, control, 4, monkeypatch)
    assert live.snapshot.generation == 2
    assert [(a["have"], a["applied"]) for a in control.asked] == [("0", "0"), ("1", "1"), ("1", "1"), ("2", "2")]
    assert control.asked[0]["replica"] == "pod-1"
    assert control.tokens[0] == "Bearer t1"


async def test_the_poll_reports_refusals_and_goes_on_after_any_failure(tmp_path, monkeypatch):
    """F-01, F-18, IV-08: no storm, no crash."""
    first = an_envelope(a_snapshot(1))
    control = Control(
        first,
        an_envelope(a_snapshot(2, tenants=[])),
        httpx.ConnectError("x"),
        httpx.Response(401),
        httpx.Response(500),
        httpx.Response(200, content=b"garbage"),
        an_envelope(a_snapshot(3)),
    )
    live = await polled(tmp_path, control, 8, monkeypatch)
    assert control.asked[2] | {} == {
        "have": "1",
        "replica": "pod-1",
        "applied": "1",
        "digest": json.loads(first)["digest"],
        "wait": "20",
        "refused": "2",
        "reason": "blank",
    }
    assert live.snapshot.generation == 3
    assert "refused" not in control.asked[7]


async def test_a_replica_that_refuses_what_is_newer_is_out_of_contact(tmp_path, monkeypatch):
    """R-31: what it refuses may be a rollback. As long as it cannot follow, nothing new goes to the candidate it still knows."""
    control = Control(*(an_envelope(a_snapshot(2, tenants=[])) for _ in range(9)))
    heard = []
    monkeypatch.setattr(Live, "heard", lambda self: heard.append(self.snapshot))
    await polled(tmp_path, control, 3, monkeypatch)
    assert heard == []


async def test_the_token_file_is_read_each_time(tmp_path, monkeypatch):
    """F-19."""
    control = Control(httpx.Response(204), httpx.Response(204))
    original = control.__call__

    async def rotating(request):
        answer = await original(request)
        (tmp_path / "token").write_text("t2")
        return answer

    monkeypatch.setattr(random, "uniform", lambda low, high: 0.0)
    (tmp_path / "token").write_text("t1")
    live = a_live(tmp_path, url="http://operator.test", token_file=tmp_path / "token")
    async with httpx.AsyncClient(transport=httpx.MockTransport(rotating)) as client:
        task = asyncio.create_task(poll.poll(live, live._source, "pod-1", client))
        async with asyncio.timeout(3):
            while len(control.tokens) < 2:
                await asyncio.sleep(0.005)
        task.cancel()
    assert control.tokens[:2] == ["Bearer t1", "Bearer t2"]


async def test_a_mounted_file_alone_is_enough_to_serve(tmp_path):
    """S-125: one signed file, no operator."""
    mount(tmp_path, an_envelope(a_snapshot(1)))
    live = a_live(tmp_path)
    task = asyncio.create_task(poll.watch_mount(live, is_contact=True))
    async with asyncio.timeout(3):
        while live.snapshot is None:
            await asyncio.sleep(0.005)
    task.cancel()
