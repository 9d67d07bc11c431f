"""Keys of issuers, the order service's adapter, settings, logs: what comes from outside is bounded and cannot lead."""

import json
import logging
import time

import httpx
import pytest
from dataplane_world import EC_KEY, GET_ORDER, ISSUER, OTHER_RSA_KEY, RSA_KEY, a_snapshot
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from meridian_api.serving import ServingTool
from meridian_dataplane import telemetry
from meridian_dataplane.adapters.jwks import HARD_EXPIRY_S, JwksKeys, parse_keys
from meridian_dataplane.adapters.orders import MAX_RESULT_BYTES, HttpTools, tools_client
from meridian_dataplane.settings import Issuer, SettingsError, read_settings
from meridian_dataplane.stages.identify import caller_of
from meridian_dataplane.telemetry import Metrics

ISSUERS = (Issuer(ISSUER, "https://idp.example/jwks"),)


def public(key, kid, **more):
    algorithm = RSAAlgorithm if key is not EC_KEY else ECAlgorithm
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid, **more}


def a_key_set(*keys):
    return httpx.Response(200, json={"keys": list(keys)})


async def refreshed(tmp_path, *answers):
    """Keys after each of the issuer's answers."""
    left = list(answers)

    async def issuer(_):
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with httpx.AsyncClient(transport=httpx.MockTransport(issuer)) as client:
        keys = JwksKeys(ISSUERS, client, tmp_path, Metrics())
        await keys.load()
        for _ in answers:
            await keys.refresh(ISSUERS[0])
    return keys


async def test_a_good_set_replaces_the_old_one_whole(tmp_path):
    """T-08: the retired key ends."""
    keys = await refreshed(
        tmp_path, a_key_set(public(RSA_KEY, "a"), public(EC_KEY, "b")), a_key_set(public(RSA_KEY, "c"))
    )
    assert keys.find(ISSUER, "c")
    assert keys.find(ISSUER, "a") is None
    assert keys.find("https://other", "c") is None


@pytest.mark.parametrize(
    "bad",
    [
        httpx.ConnectError("down"),
        httpx.Response(500),
        httpx.Response(302, headers={"location": "https://evil.example"}),
        httpx.Response(200, content=b"<html>"),
        httpx.Response(200, content=b"[" * 100_000),
        httpx.Response(200, json={"keys": []}),
        httpx.Response(200, json={"keys": "all"}),
        httpx.Response(200, json=[1]),
        httpx.Response(200, content=b" " * 300_000),
        a_key_set({"kty": "oct", "kid": "a", "k": "c2VjcmV0"}),
    ],
)
async def test_a_bad_answer_keeps_the_last_good_keys(bad, tmp_path):
    """T-09: checking is never switched off, also after a restart."""
    keys = await refreshed(tmp_path, a_key_set(public(RSA_KEY, "a")), bad)
    assert keys.find(ISSUER, "a")
    again = await refreshed(tmp_path)
    assert again.ready
    assert again.find(ISSUER, "a")


async def test_keys_on_disk_end_at_hard_expiry(tmp_path):
    old = {ISSUER: {"fetched": time.time() - HARD_EXPIRY_S - 1, "keys": [public(RSA_KEY, "a")]}}
    (tmp_path / "jwks.json").write_text(json.dumps(old))
    assert not (await refreshed(tmp_path)).ready


@pytest.mark.parametrize(
    "damaged",
    [
        json.dumps({ISSUER: {"fetched": 2e9, "keys": {}}}),
        json.dumps({ISSUER: {"fetched": 2e9, "keys": None}}),
        json.dumps({ISSUER: {"fetched": "now", "keys": []}}),
        json.dumps({ISSUER: [1]}),
        "[" * 100_000,
        "",
    ],
    ids=["keys object", "keys null", "time text", "list", "deep", "empty"],
)
async def test_a_damaged_file_of_keys_is_no_reason_to_end(damaged, tmp_path):
    """T-09: the issuer is asked, as if nothing had been kept."""
    (tmp_path / "jwks.json").write_text(damaged)
    assert not (await refreshed(tmp_path)).ready
    assert (await refreshed(tmp_path, a_key_set(public(RSA_KEY, "a")))).ready


async def test_keys_on_disk_survive_a_clock_that_stepped_back(tmp_path):
    """F-27, F-12: a start without the issuer, two hours before the keys were fetched."""
    ahead = {ISSUER: {"fetched": time.time() + 7200, "keys": [public(RSA_KEY, "a")]}}
    (tmp_path / "jwks.json").write_text(json.dumps(ahead))
    keys = await refreshed(tmp_path)
    assert keys.ready and keys._raw[ISSUER]["fetched"] <= time.time()


async def test_an_unknown_kid_asks_for_a_refresh_and_waits_for_none(tmp_path):
    """T-03: one event, however many tokens."""
    keys = await refreshed(tmp_path, a_key_set(public(RSA_KEY, "a")))
    assert not keys._wanted[ISSUER].is_set()
    assert keys.find(ISSUER, "nope") is None
    assert keys._wanted[ISSUER].is_set()


def test_only_public_signing_keys_of_allowed_kinds_are_taken():
    """T-02: no symmetric key, no other curve, no encryption key, no private part."""
    odd = [
        public(RSA_KEY, "enc", use="enc"),
        public(RSA_KEY, "ps", alg="PS256"),
        public(EC_KEY, "curve", crv="P-384"),
        {"kty": "oct", "kid": "oct", "k": "AA"},
        {"kty": "RSA", "kid": "broken", "n": "!", "e": "AQAB"},
        {"kty": "RSA", "kid": 7},
        "text",
        None,
    ]
    assert list(parse_keys({"keys": [*odd, public(OTHER_RSA_KEY, "good", jku="https://evil.example")]})) == ["good"]


# Orders

TOOL = ServingTool.from_wire(GET_ORDER)


def on_the_wire(answer: httpx.Response) -> httpx.Response:
    """`answer` as it comes from a socket: not read yet."""

    async def body():
        yield answer.content

    return httpx.Response(answer.status_code, headers=answer.headers, content=body())


async def called(handler, *, tool=TOOL, order="A-77120", timeout_s=1.0, endpoints=None, token=None):
    async with httpx.AsyncClient(transport=httpx.MockTransport(handler)) as client:
        tools = HttpTools(client, {"orders": "http://orders.test"} if endpoints is None else endpoints, token)
        caller = caller_of(a_snapshot().tenants[0], "u_1", (), ())
        return await tools.call(tool, {"order_id": order}, caller, request_id="r", traceparent="t", timeout_s=timeout_s)


async def test_the_tenant_and_the_service_token_travel_and_ids_are_quoted(tmp_path):
    """S-91, H-26: the tenant is ours, the path cannot be left."""
    seen = []

    async def handler(request):
        seen.append(request)
        return on_the_wire(httpx.Response(200, json={"orderId": "x"}))

    (tmp_path / "token").write_text("secret\n")
    found = await called(handler, order="../admin?x=1#", token=tmp_path / "token")
    assert found.outcome == "ok"
    assert seen[0].headers["x-tenant"] == "acme-eu"
    assert seen[0].headers["authorization"] == "Bearer secret"
    assert seen[0].url.raw_path == b"/orders/..%2Fadmin%3Fx%3D1%23"


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (httpx.Response(404), "not_found"),
        (httpx.Response(403), "not_found"),
        (httpx.Response(500), "unavailable"),
        (httpx.Response(302, headers={"location": "http://evil"}), "unavailable"),
        (httpx.Response(200, content=b"garbage"), "unavailable"),
        (httpx.Response(200, json=[1]), "unavailable"),
        (httpx.Response(200, content=b"[" * 50_000), "unavailable"),
        (httpx.Response(200, content=b" " * (MAX_RESULT_BYTES + 1)), "unavailable"),
        (httpx.ConnectError("down"), "unavailable"),
    ],
)
async def test_whatever_the_order_service_does_becomes_an_outcome(answer, outcome):
    """S-22: never invented, never an exception."""

    async def handler(_):
        if isinstance(answer, Exception):
            raise answer
        return on_the_wire(answer)

    assert (await called(handler)).outcome == outcome


async def test_no_cookie_of_one_tenant_is_sent_for_another(tmp_path):
    """T-13, T-33: nor one of the order service to an issuer, which the same client asks."""
    seen = []

    async def handler(request):
        seen.append(request.headers.get("cookie"))
        cookie = {"set-cookie": f"session={request.headers.get('x-tenant')}; Domain=orders.test; Path=/"}
        return on_the_wire(httpx.Response(200, json={"keys": []}, headers=cookie))

    async with tools_client() as client:
        client._transport = httpx.MockTransport(handler)
        tools = HttpTools(client, {"orders": "http://orders.test"}, None)
        for tenant in a_snapshot().tenants * 2:
            caller = caller_of(tenant, "u_1", (), ())
            await tools.call(TOOL, {"order_id": "A-1000"}, caller, request_id="r", traceparent="t", timeout_s=1.0)
        keys = JwksKeys((Issuer(ISSUER, "http://orders.test/jwks"),), client, tmp_path, Metrics())
        await keys.refresh(Issuer(ISSUER, "http://orders.test/jwks"))
    assert seen == [None] * 5


async def test_a_hanging_order_service_ends_at_the_timeout_and_unknown_endpoints_are_never_called():
    """S-80, T-44."""
    import asyncio

    async def hang(_):
        await asyncio.sleep(60)

    assert (await called(hang, timeout_s=0.05)).outcome == "timeout"
    assert (await called(hang, endpoints={})).outcome == "unavailable"


# Settings and logs

GOOD = {
    "MERIDIAN_SERVICE": "support",
    "MERIDIAN_REGION": "eu-1",
    "MERIDIAN_REPLICA": "pod-1",
    "MERIDIAN_DATABASE_DSN": "postgresql://user:secret@host/db",
}


def test_settings_are_read_once_and_hide_the_dsn():
    """T-53."""
    settings = read_settings(
        {**GOOD, "MERIDIAN_ISSUERS": '[{"issuer": "https://a", "jwksUrl": "https://a/jwks"}]', "HOME": "/"}
    )
    assert settings.issuers == (Issuer("https://a", "https://a/jwks"),)
    assert "secret" not in repr(settings)


def test_links_of_services_and_variables_of_jobs_are_no_fault():
    links = {
        "MERIDIAN_DATAPLANE_SERVICE_HOST": "10.0.0.1",
        "MERIDIAN_DATAPLANE_SERVICE_PORT": "80",
        "MERIDIAN_DATAPLANE_PORT": "tcp://10.0.0.1:80",
        "MERIDIAN_DATAPLANE_PORT_80_TCP_ADDR": "10.0.0.1",
        "MERIDIAN_EVALUATION": "{}",
    }
    assert read_settings({**GOOD, **links}).service == "support"


@pytest.mark.parametrize(
    "wrong",
    [
        {"MERIDIAN_SERVCE": "x"},
        {"MERIDIAN_PUBLIK_PORT": "8080"},
        {"MERIDIAN_PUBLIC_PORT": "99999"},
        {"MERIDIAN_ISSUERS": "{"},
        {"MERIDIAN_ISSUERS": '[{"issuer": "x"}]'},
        {"MERIDIAN_ENDPOINTS": '{"orders": "file:///etc/passwd"}'},
        {"MERIDIAN_ENDPOINTS": '{"orders": "http://user:pw@host"}'},
        {"MERIDIAN_CONFIG_URL": "operator:8090"},
        {"MERIDIAN_GRACE_SECONDS": "-1"},
        {"MERIDIAN_SERVICE": ""},
    ],
)
def test_a_wrong_variable_is_named(wrong):
    with pytest.raises(SettingsError) as faults:
        read_settings({**GOOD, **wrong})
    assert next(iter(wrong)) in str(faults.value)


def test_a_log_line_is_one_line_of_allowed_fields(capsys):
    """T-52, T-53: no message of an exception, no unknown field, no forged line."""
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        telemetry.configure_logging()
        telemetry.log("tried", reason='a\n{"event": "forged"}\x1b[31m', question="private", tenant="acme")
        try:
            raise RuntimeError("postgres://user:pass@host token=abc")
        except RuntimeError as failure:
            telemetry.log_failure("failed", failure)
            logging.getLogger("uvicorn.error").exception("boom %s", "postgres://user:pass@host")
        lines = capsys.readouterr().out.splitlines()
    finally:
        logging.getLogger().handlers[:] = handlers
        logging.getLogger().setLevel(level)
    assert len(lines) == 3
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert not any(word in "".join(lines) for word in ("private", "acme", "pass@host", "abc", "\x1b"))
    assert json.loads(lines[1])["kind"] == "RuntimeError"


async def test_a_tool_whose_path_names_an_argument_that_is_not_there_is_unavailable():
    """S-14: a failure is an outcome; a slip in a tool's declaration must not break every question with an order in it."""
    tool = TOOL.model_copy(update={"path": "/orders/{orderId}"})
    outcome = await called(lambda request: httpx.Response(200, json={}), tool=tool)
    assert outcome.outcome == "unavailable"
