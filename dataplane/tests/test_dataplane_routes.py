"""The public API over ASGI: events on the wire, one test per refusal, clients that leave, the end of the process."""

import asyncio
import json
import subprocess
import sys

import pytest
from dataplane_world import (
    a_candidate,
    a_manifest,
    a_snapshot,
    a_target,
    a_tenant,
    a_token,
    a_world,
    bearer,
    citing,
    saying,
)

from meridian_dataplane import background, routes
from meridian_dataplane.app import admin_app, public_app
from meridian_dataplane.calls import Event, Piece

QUESTION = {"question": "How long do refunds take?"}


def events_of(body: str) -> list[tuple[str, dict]]:
    frames = [frame for frame in body.split("\n\n") if frame and not frame.startswith(":")]
    return [
        (f.split("\n")[0].removeprefix("event: "), json.loads(f.split("\n")[1].removeprefix("data: "))) for f in frames
    ]


async def ask(world, body=None, headers=None, **options):
    async with world.client() as client:
        return await client.post(
            "/v1/answers", json=QUESTION if body is None else body, headers={**bearer(), **(headers or {})}, **options
        )


async def test_an_answer_is_an_event_stream_with_one_terminal_event():
    """S-11, S-17: request id and trace in the headers and in meta; done is last and the only terminal event."""
    parent = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    response = await ask(a_world(), headers={"traceparent": parent})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    events = events_of(response.text)
    assert [name for name, _ in events][-1] == "done"
    assert sum(name in ("done", "error") for name, _ in events) == 1
    meta = events[0][1]
    assert meta["requestId"] == response.headers["x-request-id"]
    assert meta["traceparent"].split("-")[1] == "a" * 32
    assert meta["traceparent"] != parent


@pytest.mark.parametrize(
    "bad", ["", "00-" + "0" * 32 + "-" + "b" * 16 + "-01", "01-x", "00-" + "A" * 32 + "-" + "b" * 16 + "-01"]
)
async def test_a_wrong_traceparent_starts_a_new_trace(bad):
    response = await ask(a_world(), headers={"traceparent": bad})
    assert response.headers["traceparent"].split("-")[1] not in bad


async def test_text_can_never_become_framing():
    """H-13, H-14: line ends, event names and ids in model text stay text inside one line of JSON."""
    evil = "a\r\nid: 7\n\nevent: done\ndata: {}\n\nb\u2028c"
    body = (await ask(a_world(script=saying(evil)))).text
    assert [name for name, _ in events_of(body)].count("done") == 1
    assert events_of(body)[1] == ("token", {"text": evil})
    assert routes.frame(Event("token", {"text": "\r\n\n"})).count(b"\n") == 3


@pytest.mark.parametrize("field", ["tenant", "tenant_id", "groups", "region", "release", "user", "priority"])
async def test_unknown_fields_are_422_and_named(field):
    """T-14: refused, never read."""
    response = await ask(a_world(), {**QUESTION, field: "globex"})
    assert response.status_code == 422
    problem = response.json()
    assert response.headers["content-type"] == "application/problem+json"
    assert field in problem["detail"] and problem["code"] == "fields"
    assert problem["requestId"] == response.headers["x-request-id"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"question": ""},
        {"question": "  "},
        {"question": 7},
        {"question": None},
        {"question": "x" * 4001},
        {"question": "x", "conversationId": "a b"},
        {"question": "x", "conversationId": "x" * 129},
        {"question": "x", "conversation_id": "c"},
        {"question": "x", "locale": "../../etc"},
    ],
)
async def test_wrong_fields_are_422(body):
    assert (await ask(a_world(), body)).status_code == 422


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 422),
        (b'"x"', 422),
        (b'{"question": "a", "question": "b"}', 400),
        (b"\xff\xfe", 400),
        (b"[" * 30_000, 400),
        (b'{"question":' + b"[" * 9 + b"]" * 9 + b"}", 400),
        (b'{"question": "' + b"x" * 70_000 + b'"}', 413),
        (b"{" + b",".join(b'"k%d":1' % n for n in range(5000)) + b"}", 422),
    ],
)
async def test_bodies_that_cannot_be_read_are_refused(raw, status):
    """H-21: 4xx by size, depth and members, never 5xx."""
    async with a_world().client() as client:
        headers = {**bearer(), "content-type": "application/json"}
        assert (await client.post("/v1/answers", content=raw, headers=headers)).status_code == status


async def test_compressed_and_foreign_bodies_are_415():
    """H-22."""
    for headers in ({"content-type": "application/json", "content-encoding": "gzip"}, {"content-type": "text/plain"}):
        async with a_world().client() as client:
            response = await client.post("/v1/answers", content=b"{}", headers={**bearer(), **headers})
            assert response.status_code == 415


@pytest.mark.parametrize(
    ("status", "sent"),
    [
        (415, [("content-type", "application/json"), ("content-type", "text/plain")]),
        (415, [("content-type", "application/json"), ("content-type", "application/json")]),
        (415, [("content-type", "application/json; charset=utf-16")]),
        (415, [("content-type", "application/json; charset=utf-8; charset=utf-16")]),
        (415, [("content-type", "application/json, application/json")]),
        (415, [("content-type", "application/json"), ("content-encoding", "identity"), ("content-encoding", "gzip")]),
        (415, [("content-type", "application/json"), ("content-encoding", "identity, gzip")]),
        (200, [("content-type", "Application/JSON ;charset=UTF-8"), ("content-encoding", "identity")]),
        (200, [("content-type", 'application/json; charset="utf-8"')]),
    ],
)
async def test_a_body_said_to_be_of_two_kinds_is_415(status, sent):
    """H-32."""
    async with a_world().client() as client:
        body = json.dumps(QUESTION).encode()
        response = await client.post("/v1/answers", content=body, headers=[*bearer().items(), *sent])
        assert response.status_code == status


async def test_requests_without_a_valid_token_are_401():
    """T-01, S-10: also when there is no header, another scheme, or two words."""
    async with a_world().client() as client:
        for headers in ({}, {"authorization": "Basic x"}, {"authorization": "Bearer "}, bearer("a.b.c"), bearer("a b")):
            response = await client.post("/v1/answers", json=QUESTION, headers=headers)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"


async def test_without_a_token_no_body_is_read():
    async with a_world().client() as client:
        response = await client.post("/v1/answers", content=b"x" * 70_000)
        assert response.status_code == 401


@pytest.mark.parametrize("path", ["/v1/answers", "/v1/feedback"])
async def test_with_a_forged_token_no_body_is_read_either(path):
    """H-21: 401 whatever the body is, of the wrong type, too large or slow."""

    async def dripping():
        yield b"{"
        raise AssertionError("read")

    json_ = {"content-type": "application/json"}
    bodies = [(b'{"x": 1}', json_), (b"x", {}), (b"x" * 70_000, json_), (b"{", json_), (dripping(), json_)]
    async with a_world().client() as client:
        for body, headers in bodies:
            response = await client.post(path, content=body, headers={**bearer("a.b.c"), **headers})
            assert response.status_code == 401


async def test_two_authorization_headers_long_ones_and_tokens_in_urls_are_refused():
    """T-11."""
    async with a_world().client() as client:
        two = [("authorization", f"Bearer {a_token()}"), ("authorization", f"Bearer {a_token()}")]
        assert (await client.post("/v1/answers", json=QUESTION, headers=two)).status_code == 400
        long = bearer("x" * 16_384)
        assert (await client.post("/v1/answers", json=QUESTION, headers=long)).status_code == 431
        url = f"/v1/answers?access_token={a_token()}"
        assert (await client.post(url, json=QUESTION, headers=bearer())).status_code == 400


@pytest.mark.parametrize(
    ("query", "named"),
    [("jwt=%s", "jwt"), ("bearer=%s", "bearer"), ("auth=%s", "auth"), ("version=3&tenant=%s", "tenant"), ("%s", None)],
)
async def test_a_query_that_no_route_reads_is_refused_and_its_value_never_told(query, named):
    """T-11: a token by any other name, or by none."""
    token = a_token()
    async with a_world().client() as client:
        for method, path in (("POST", "/v1/answers"), ("POST", "/v1/feedback"), ("GET", "/v1/documents/POL-1")):
            response = await client.request(method, f"{path}?{query % token}", json=QUESTION, headers=bearer())
            assert (response.status_code, response.json()["code"]) == (400, "query")
            assert token[:30] not in response.text
            if path.startswith("/v1/documents"):
                assert (named or "a parameter") in response.json()["detail"]


async def test_identity_headers_of_a_client_have_no_effect():
    """T-13, T-15."""
    world = a_world()
    spoofed = {"X-Tenant-Id": "globex", "X-Roles": "admin", "x-TENANT": "globex", "X-Forwarded-User": "root"}
    assert (await ask(world, headers=spoofed)).status_code == 200
    assert world.index.calls[0]["tenant"] == "acme-eu"


async def test_a_tenant_without_policy_is_403_with_its_reason():
    response = await ask(a_world(), headers=bearer(a_token(tenant="initech")))
    assert (response.status_code, response.json()["code"]) == (403, "tenant_unknown")


async def test_refusals_tell_nothing_about_the_request():
    """T-52, T-53: no echo of token, question or tenant."""
    response = await ask(a_world(), {"question": "secret-word", "zzz": 1}, headers=bearer(a_token(tenant="initech")))
    assert "secret-word" not in response.text and "initech" not in response.text


async def test_no_eligible_target_and_failed_retrieval_are_503_with_a_hint():
    """S-50, S-86."""
    manifest = a_manifest(primary=a_target(region="us-1"), fallback=a_target("large", region="us-1"))
    response = await ask(a_world(a_snapshot(serving=manifest)))
    assert (response.status_code, response.json()["code"]) == (503, "no_eligible_target")
    assert int(response.headers["retry-after"]) > 0
    world = a_world()
    world.index.away = 9
    response = await ask(world)
    assert (response.status_code, response.json()["code"]) == (503, "retrieval_unavailable")


async def test_before_any_configuration_requests_are_503():
    world = a_world()
    world.plane.live.snapshot = None
    assert (await ask(world)).json()["code"] == "no_configuration"


async def test_an_unexpected_fault_is_500_before_the_stream_and_an_error_event_in_it():
    """T-53: neither tells what it was."""

    def broken(call):
        raise RuntimeError("postgres://user:pass@host")

    response = await ask(a_world(script=broken))
    assert events_of(response.text)[-1][1]["code"] == "internal"
    assert "postgres" not in response.text
    world = a_world()
    world.index.retrieve = None  # type: ignore[method-assign]
    response = await ask(world)
    assert response.status_code == 500
    assert world.plane.admission.in_flight == 0


async def test_a_full_replica_refuses_at_once_with_a_hint():
    """S-83, G-20, IV-24: one in flight, nothing may wait."""
    serving = a_manifest(settings={"admission": {"maxInFlight": 1, "maxWaitMs": 100}})
    world = a_world(a_snapshot(serving=serving), script=lambda call: [0.3, *citing(call)])
    first = asyncio.create_task(ask(world))
    await asyncio.sleep(0.1)
    response = await ask(world)
    assert (response.status_code, response.json()["code"]) == (429, "admission_wait")
    assert int(response.headers["retry-after"]) >= 1
    assert (await first).status_code == 200


async def test_one_tenant_cannot_take_more_than_its_cap():
    world = a_world(
        a_snapshot(tenants=[a_tenant(budgets={"concurrentRequests": 1}), a_tenant("globex")]),
        script=lambda call: [0.3, *citing(call)] if "passage" in call.user else [0.3, Piece("x", "stop")],
    )
    first = asyncio.create_task(ask(world))
    await asyncio.sleep(0.1)
    assert (await ask(world)).json()["code"] == "tenant_concurrency"
    assert (await ask(world, headers=bearer(a_token(tenant="globex")))).status_code == 200
    await first


async def test_documents_and_feedback_count_against_the_same_cap_as_answers():
    """G-07, G-23: no route is beside it, nobody waits, and only the tenant's own requests suffer."""
    tenants = [a_tenant(budgets={"concurrentRequests": 1}), a_tenant("globex")]
    world = a_world(a_snapshot(tenants=tenants), script=lambda call: [0.3, *citing(call)])
    given = {"requestId": "f" * 32, "outcome": "resolved"}
    others = bearer(a_token(tenant="globex"))
    first = asyncio.create_task(ask(world))
    await asyncio.sleep(0.1)
    async with world.client() as client:
        for method, path in (("GET", "/v1/documents/POL-1"), ("POST", "/v1/feedback")):
            response = await client.request(method, path, json=given, headers=bearer())
            assert (response.status_code, response.json()["code"]) == (429, "tenant_concurrency")
            assert (await client.request(method, path, json=given, headers=others)).status_code == 404
        await first
        with world.plane.admission.counted(world.plane.live.snapshot.tenants[0]):
            assert (await ask(world)).json()["code"] == "tenant_concurrency"
        assert (await client.get("/v1/documents/POL-1", headers=bearer())).status_code == 200
    assert not world.plane.admission._per_tenant


async def test_feedback_belongs_to_the_subject_that_asked():
    """T-34: another subject, another tenant and an unknown id get the same 404."""
    world = a_world()
    answered = await ask(world)
    await world.settled()
    given = {"requestId": answered.headers["x-request-id"], "outcome": "resolved"}
    async with world.client() as client:
        assert (await client.post("/v1/feedback", json=given, headers=bearer())).status_code == 202
        others = [bearer(a_token(sub="u_2")), bearer(a_token(tenant="globex"))]
        foreign = [await client.post("/v1/feedback", json=given, headers=h) for h in others]
        unknown = await client.post("/v1/feedback", json={**given, "requestId": "f" * 32}, headers=bearer())
        assert {r.status_code for r in [*foreign, unknown]} == {404}
        assert len({r.text.replace(r.headers["x-request-id"], "") for r in [*foreign, unknown]}) == 1
        bad = await client.post("/v1/feedback", json={**given, "outcome": "great"}, headers=bearer())
        assert bad.status_code == 422
        world.records.away = True
        assert (await client.post("/v1/feedback", json=given, headers=bearer())).status_code == 503
    assert world.records.outcomes == [(given["requestId"], "resolved")]


async def test_a_citation_opens_its_source_for_those_who_may_see_it():
    """S-63, T-32, T-36, T-37: foreign and unknown are the same bytes."""
    world = a_world()
    async with world.client() as client:
        found = await client.get("/v1/documents/POL-1?version=3", headers=bearer())
        assert (found.status_code, found.json()["docVersion"]) == (200, 3)
        hidden = [
            await client.get("/v1/documents/POL-1?version=3", headers=bearer(a_token(tenant="globex"))),
            await client.get("/v1/documents/POL-1?version=3", headers=bearer(a_token(roles=[]))),
            await client.get("/v1/documents/NONE", headers=bearer()),
            await client.get("/v1/documents/POL-1?version=4", headers=bearer()),
            await client.get("/v1/documents/%2e%2e%2fx", headers=bearer()),
            await client.get("/tenants/globex/documents", headers=bearer()),
        ]
        assert {r.status_code for r in hidden} == {404}
        assert len({r.text.replace(r.json()["requestId"], "") for r in hidden}) == 1
        assert (await client.get("/v1/documents/POL-1?version=x", headers=bearer())).status_code == 400
        assert (await client.get("/v1/documents/POL-1")).status_code == 401


@pytest.mark.parametrize(
    "path",
    ["/docs", "/redoc", "/openapi.json", "/metrics", "/healthz", "/readyz", "/debug", "//v1/answers", "/v1/answers/"],
)
async def test_nothing_for_debugging_is_public(path):
    """H-33, T-20, T-50."""
    async with a_world().client() as client:
        assert (await client.get(path, headers=bearer())).status_code == 404


def test_the_openapi_document_is_made_offline_and_says_what_is_refused():
    """S-11: no environment, no plane; every refusal is a problem, the answer is an event stream."""
    printed = subprocess.run(
        [sys.executable, "-m", "meridian_dataplane.openapi"], env={}, capture_output=True, check=True, timeout=60
    )
    paths = json.loads(printed.stdout)["paths"]
    assert set(paths) == {"/v1/answers", "/v1/feedback", "/v1/documents/{doc_id}"}
    answer = paths["/v1/answers"]["post"]
    assert set(answer["responses"]["200"]["content"]) == {"text/event-stream"}
    body = answer["requestBody"]["content"]["application/json"]["schema"]
    assert (set(body["properties"]), body["additionalProperties"]) == ({"question", "conversationId", "locale"}, False)
    for method in (answer, paths["/v1/feedback"]["post"], paths["/v1/documents/{doc_id}"]["get"]):
        refused = {status for status in method["responses"] if int(status) >= 400}
        assert {"400", "401", "403", "503"} <= refused
        assert all(set(method["responses"][status]["content"]) == {"application/problem+json"} for status in refused)


async def test_other_methods_are_405():
    """T-20."""
    async with a_world().client() as client:
        for method in ("GET", "PUT", "DELETE", "PATCH"):
            response = await client.request(method, "/v1/answers", headers=bearer())
            assert (response.status_code, response.json()["code"]) == (405, "method")


class Wire:
    """A hand-driven ASGI connection."""

    def __init__(self, body: bytes = json.dumps(QUESTION).encode()) -> None:
        self.sent: list[dict] = []
        self.gone = asyncio.Event()
        self._body = [{"type": "http.request", "body": body, "more_body": False}]
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/v1/answers",
            "raw_path": b"/v1/answers",
            "query_string": b"",
            "headers": [(b"authorization", f"Bearer {a_token()}".encode()), (b"content-type", b"application/json")],
        }

    async def receive(self):
        if self._body:
            return self._body.pop()
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent.append(message)

    @property
    def text(self) -> str:
        return b"".join(m.get("body", b"") for m in self.sent).decode()

    async def until(self, condition) -> None:
        async with asyncio.timeout(3):
            while not condition():
                await asyncio.sleep(0.005)


async def test_a_client_that_leaves_in_mid_stream_frees_everything():
    """H-01: within a second, nothing starts afterwards."""
    world = a_world(script=lambda call: [Piece("Refunds take "), 30.0])
    wire = Wire()
    running = asyncio.create_task(public_app(world.plane)(wire.scope, wire.receive, wire.send))
    await wire.until(lambda: "Refunds" in wire.text)
    wire.gone.set()
    await asyncio.wait_for(running, 1)
    assert (world.model.closed, world.plane.admission.in_flight) == (1, 0)
    await world.settled()
    assert world.records.written[0].state == "cancelled"


async def test_a_client_that_leaves_before_the_response_is_noticed():
    """H-02: retrieval is still running."""
    world = a_world()
    world.index.delay_s = 0.7
    wire = Wire()
    running = asyncio.create_task(public_app(world.plane)(wire.scope, wire.receive, wire.send))
    await wire.until(lambda: world.index.calls)
    wire.gone.set()
    await asyncio.wait_for(running, 0.5)
    assert not wire.sent and not world.model.calls
    assert world.plane.admission.in_flight == 0


async def test_at_the_end_of_the_grace_a_stream_gets_an_explicit_end():
    """H-35, IV-28: error event, exactly one terminal event, the record says why."""
    world = a_world(script=lambda call: [Piece("Refunds take "), 30.0])
    wire = Wire()
    running = asyncio.create_task(public_app(world.plane)(wire.scope, wire.receive, wire.send))
    await wire.until(lambda: "Refunds" in wire.text)
    world.plane.cut.set()
    await asyncio.wait_for(running, 1)
    assert events_of(wire.text)[-1][1]["code"] == "shutting_down"
    assert wire.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    await world.settled()
    assert (world.records.written[0].state, world.records.written[0].error_code) == ("incomplete", "shutting_down")


async def test_nothing_follows_a_terminal_event_that_is_on_its_way():
    """IV-28: the grace ends, or the sending breaks, while the client is slow to read `done`."""
    for broken in (False, True):
        world, wire = a_world(), Wire()

        async def send(message, world=world, wire=wire, broken=broken):
            await wire.send(message)
            if b"event: done" in message.get("body", b""):
                world.plane.cut.set()
                await asyncio.sleep(0.05)
                if broken:
                    raise RuntimeError("the transport")

        await public_app(world.plane)(wire.scope, wire.receive, send)
        names = [name for name, _ in events_of(wire.text)]
        assert (names[-1], names.count("done"), names.count("error")) == ("done", 1, 0)
        assert [m.get("more_body") for m in wire.sent[1:]].count(False) == 1
        await world.settled()
        assert world.records.written[0].outcome == "answered"


async def test_what_is_recorded_as_answered_ends_with_done():
    """H-35: the grace ends while `done` waits for its record to be kept."""
    world, wire = a_world(), Wire()
    spooled = world.plane.spool.record

    def record(row):
        spooled(row)
        world.plane.cut.set()
        return asyncio.get_running_loop().create_future()

    world.plane.spool.record = record
    await public_app(world.plane)(wire.scope, wire.receive, wire.send)
    names = [name for name, _ in events_of(wire.text)]
    assert (names[-1], names.count("error")) == ("done", 0)
    await world.settled()
    assert [row.outcome for row in world.records.written] == ["answered"]


async def test_a_silent_stream_gets_comments_between_events(monkeypatch):
    """H-07."""
    monkeypatch.setattr(routes, "PING_S", 0.06)
    world = a_world(script=lambda call: [0.3, *citing(call)])
    body = (await ask(world)).text
    assert "\n\n: ping\n\n" in body
    assert events_of(body)[-1][0] == "done"


async def test_background_work_that_breaks_begins_again(monkeypatch):
    """The kind of K-02: never ready and deaf. The pauses grow, to a bound; what ends by itself has ended."""
    begun, pauses, beats = 0, [], asyncio.sleep

    async def work():
        nonlocal begun
        begun += 1
        if begun <= 12:
            raise ValueError("no failure that it knows")

    async def pause(seconds):
        pauses.append(seconds)
        await beats(0)

    monkeypatch.setattr(background.asyncio, "sleep", pause)
    await background.kept_alive(work)
    assert (begun, len(pauses)) == (13, 12)
    assert pauses[0] < 0.5 < pauses[3] and max(pauses) <= 15
    forever = asyncio.create_task(background.kept_alive(lambda: beats(30)))
    await beats(0)
    forever.cancel()
    with pytest.raises(asyncio.CancelledError):
        await forever


async def test_probes_and_metrics_live_on_the_admin_application():
    """IV-29: liveness depends on nothing; readiness on snapshot, role and keys, and it goes at SIGTERM."""
    import httpx

    world = a_world(a_snapshot(candidate=a_candidate(weight=0)))
    transport = httpx.ASGITransport(app=admin_app(world.plane))
    async with httpx.AsyncClient(transport=transport, base_url="http://admin.test") as client:
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 503
        world.plane.role_checked = True
        assert (await client.get("/readyz")).status_code == 200
        await ask(world)
        metrics = (await client.get("/metrics")).text
        assert 'meridian_requests_total{arm="serving",outcome="answered",release="r1"} 1.0' in metrics
        assert 'meridian_citations_total{arm="serving",release="r1",valid="true"} 1.0' in metrics
        assert "meridian_time_to_first_token_seconds_bucket" in metrics
        assert "acme" not in metrics
        world.plane.leaving.set()
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.get("/healthz")).status_code == 200
