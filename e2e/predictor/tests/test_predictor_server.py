"""The engine over HTTP: framing, usage, pacing, queue, clients that leave, faults on the wire,
metrics."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn

from meridian_predictor.__main__ import DrainingServer, build_parser, settings_from
from meridian_predictor.app import build_app
from meridian_predictor.engine import Engine, EngineSettings, new_engine
from meridian_predictor.faults import parse_fault
from meridian_predictor.slots import Slots

USER = (
    '<passage id="p7f3a">Invoices\nInvoices are kept for ten years. They are printed.</passage>\n'
    "<question>How long are invoices kept?</question>"
)
QUICK = {"model_name": "support-llm", "prefill_ms": 5.0, "inter_token_ms": 0.5}


@asynccontextmanager
async def serving(**settings: object) -> AsyncIterator[tuple[httpx.AsyncClient, Engine]]:
    engine = new_engine(EngineSettings(**{**QUICK, **settings}))  # pyright: ignore[reportArgumentType]
    config = uvicorn.Config(build_app(engine), host="127.0.0.1", port=0, log_level="critical")
    server = DrainingServer(config, engine, lame_duck_s=0.0)
    task = asyncio.create_task(server._serve())  # without the process's signal handlers
    while not server.started:
        await asyncio.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
        yield client, engine
    server.should_exit = True
    await task


def body(**fields: object) -> dict:
    return {"model": "support-llm", "messages": [{"role": "user", "content": USER}], **fields}


async def post(client: httpx.AsyncClient, **fields: object) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=body(**fields))


def events(text: str) -> list[str]:
    assert text.endswith("\n\n")
    blocks = text[:-2].split("\n\n")
    assert all(b.startswith("data: ") and "\n" not in b for b in blocks)
    return [b.removeprefix("data: ") for b in blocks]


def said(chunks: list[dict]) -> str:
    return "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])


async def test_stream_is_chunks_then_finish_then_usage_then_done():
    async with serving() as (client, _):
        response = await post(client, stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    *frames, done = events(response.text)
    chunks = [json.loads(f) for f in frames]
    assert done == "[DONE]"
    assert said(chunks) == "Invoices are kept for ten years. [p7f3a]"
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]][-1] == "stop"
    used = chunks[-1]["usage"]
    assert chunks[-1]["choices"] == []
    assert used["completion_tokens"] == len(chunks) - 3 > 0
    assert used["total_tokens"] == used["prompt_tokens"] + used["completion_tokens"]
    assert len({c["id"] for c in chunks}) == 1


async def test_usage_is_not_sent_to_those_who_did_not_ask():
    async with serving() as (client, _):
        response = await post(client, stream=True)
    assert not any("usage" in json.loads(f) for f in events(response.text)[:-1])


async def test_whole_answer_has_the_same_text_and_usage():
    async with serving(version="v7") as (client, _):
        answered = (await post(client)).json()
    assert answered["choices"][0]["message"]["content"] == "Invoices are kept for ten years. [p7f3a]"
    assert answered["choices"][0]["finish_reason"] == "stop"
    assert answered["system_fingerprint"] == "v7"
    assert answered["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("stream", [True, False])
async def test_max_tokens_cuts_with_reason_length(stream):
    async with serving() as (client, _):
        response = await post(client, max_tokens=3, stream=stream)
    if stream:
        reasons = [json.loads(f)["choices"][0]["finish_reason"] for f in events(response.text)[:-1]]
        assert len(reasons) == 5 and reasons[-1] == "length"
    else:
        assert response.json()["choices"][0]["finish_reason"] == "length"
        assert response.json()["usage"]["completion_tokens"] == 3


async def test_first_token_comes_after_prefill_and_the_rest_at_the_token_interval():
    async with serving(prefill_ms=80.0, inter_token_ms=10.0) as (client, _):
        sent, seen = time.monotonic(), []
        async with client.stream("POST", "/v1/chat/completions", json=body(stream=True)) as r:
            async for line in r.aiter_lines():
                if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                    seen.append(time.monotonic() - sent)
    assert 0.08 <= seen[0] < 0.6
    assert seen[-1] - seen[0] == pytest.approx(0.010 * (len(seen) - 1), abs=0.15)


async def test_requests_beyond_the_slots_wait_and_beyond_the_queue_are_refused():
    async with serving(slots=1, max_queue=1, prefill_ms=600.0) as (client, engine):
        first = asyncio.create_task(post(client))
        await _until(lambda: engine.slots.running == 1)
        second = asyncio.create_task(post(client))
        await _until(lambda: engine.slots.waiting == 1)
        third = await post(client)
        metrics = (await client.get("/metrics")).text
        assert 'vllm:num_requests_waiting{model_name="support-llm"} 1.0' in metrics
        answers = await asyncio.gather(first, second)
    assert [a.status_code for a in answers] == [200, 200]
    assert third.status_code == 503
    assert third.json()["error"]["code"] == 503
    assert third.headers["retry-after"] == "1"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_slot_and_its_place_in_the_queue(stream):
    """H-01, H-02, H-04."""
    async with serving(slots=1, prefill_ms=60_000.0) as (client, engine):
        running = asyncio.create_task(post(client, stream=stream))
        await _until(lambda: engine.slots.running == 1)
        queued = asyncio.create_task(post(client, stream=stream))
        await _until(lambda: engine.slots.waiting == 1)
        queued.cancel()
        await _until(lambda: engine.slots.waiting == 0)
        assert engine.slots.running == 1
        running.cancel()
        await _until(lambda: engine.slots.running == 0)
        assert engine.cached_tokens == 0
        metrics = (await client.get("/metrics")).text
    assert 'finished_reason="abort",model_name="support-llm"} 1.0' in metrics


async def test_slots_are_given_in_order_of_arrival_and_a_leaver_is_passed_over():
    slots, order = Slots(1), []

    async def hold(n: int) -> None:
        async with slots.hold():
            order.append(n)
            await asyncio.sleep(0)

    async with slots.hold():
        waiters = [asyncio.create_task(hold(n)) for n in range(5)]
        await asyncio.sleep(0)
        waiters[2].cancel()
        assert slots.waiting == 5
    await asyncio.gather(*waiters, return_exceptions=True)
    assert order == [0, 1, 3, 4]
    assert (slots.running, slots.waiting) == (0, 0)


@pytest.mark.parametrize(
    ("sent", "status", "named"),
    [
        (b"{", 400, "JSON"),
        (b"[" * 100_000, 400, "JSON"),
        (b"[]", 400, "object"),
        (json.dumps({"model": "support-llm"}).encode(), 400, "messages"),
        (json.dumps(body(messages=[{"role": "king", "content": ""}])).encode(), 400, "role"),
        (json.dumps(body(max_tokens=0)).encode(), 400, "max_tokens"),
        (json.dumps(body(stream="yes")).encode(), 400, "stream"),
        (json.dumps(body(model="other")).encode(), 404, "other"),
        (b" " * (2 << 20), 413, "bytes"),
    ],
)
async def test_malformed_requests_are_refused_in_openai_shape(sent, status, named):
    """H-21."""
    async with serving() as (client, _):
        response = await client.post("/v1/chat/completions", content=sent)
    assert response.status_code == status
    assert named in response.json()["error"]["message"]


async def test_error_fault_fails_before_the_stream():
    async with serving(faults=(parse_fault("error:1"),)) as (client, engine):
        response = await post(client, stream=True)
        assert engine.slots.running == 0
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "InternalServerError"


async def test_truncate_fault_ends_without_finish_reason_or_terminator():
    async with serving(faults=(parse_fault("truncate:1"),)) as (client, _):
        response = await post(client, stream=True)
    chunks = [json.loads(f) for f in events(response.text)]
    assert said(chunks).startswith("Invoices")
    assert all(c["choices"][0]["finish_reason"] is None for c in chunks)


async def test_stall_fault_goes_silent_until_the_client_gives_up():
    async with serving(faults=(parse_fault("stall:1"),)) as (client, engine):
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/chat/completions", json=body(stream=True), timeout=0.3)
        await _until(lambda: engine.slots.running == 0)


async def test_slow_fault_multiplies_the_times():
    async with serving(faults=(parse_fault("slow:1"),), prefill_ms=40.0, slow_factor=5) as (
        client,
        _,
    ):
        start = time.monotonic()
        await post(client, max_tokens=1)
    assert time.monotonic() - start >= 0.2


async def test_busy_fault_shows_only_under_load():
    async with serving(slots=4, prefill_ms=400.0, faults=(parse_fault("error:1:busy"),)) as (
        client,
        _,
    ):
        assert (await post(client)).status_code == 200
        crowd = await asyncio.gather(*(post(client) for _ in range(4)))
    assert sorted(r.status_code for r in crowd) == [200, 500, 500, 500]


async def test_metrics_have_the_names_and_labels_of_vllm():
    async with serving() as (client, _):
        await post(client)
        text = (await client.get("/metrics")).text
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:time_to_first_token_seconds_count",
        "vllm:e2e_request_latency_seconds_count",
        "vllm:request_queue_time_seconds_count",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
    ):
        assert f'{name}{{model_name="support-llm"}}' in text
    assert 'vllm:request_success_total{finished_reason="stop",model_name="support-llm"} 1.0' in text


async def test_models_health_and_draining():
    async with serving(version="v2") as (client, engine):
        card = (await client.get("/v1/models")).json()["data"][0]
        assert (card["id"], card["version"]) == ("support-llm", "v2")
        assert (await client.get("/health")).status_code == 200
        engine.draining = True
        assert (await client.get("/health")).status_code == 503
        assert (await post(client)).status_code == 200
        assert (await client.get("/nothing")).json()["error"]["code"] == 404


def test_profiles_set_the_pace_and_single_flags_override_it():
    parse = build_parser().parse_args
    assert (settings_from(parse([])).prefill_ms, settings_from(parse([])).slots) == (350.0, 24)
    fast = settings_from(parse(["--profile", "fast", "--inter-token-ms", "3"]))
    assert (fast.prefill_ms, fast.inter_token_ms) == (15.0, 3.0)


async def _until(holds, limit_s: float = 2.0) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, "did not happen in time"
        await asyncio.sleep(0.005)


async def test_the_stream_interval_sets_tokens_per_chunk_and_changes_no_text():
    """As vLLM's option: the first token comes alone and at once; usage counts tokens, not chunks."""
    async with serving() as (client, _):
        one = await post(client, stream=True, stream_options={"include_usage": True})
    async with serving(stream_interval=4) as (client, _):
        four = await post(client, stream=True, stream_options={"include_usage": True})
    singly, together = ([json.loads(e) for e in events(r.text)[:-1]] for r in (one, four))
    assert said(singly) == said(together)
    assert singly[-1]["usage"] == together[-1]["usage"]
    texts = [c["choices"][0]["delta"].get("content") for c in together if c["choices"]]
    tokens = singly[-1]["usage"]["completion_tokens"]
    assert len(list(filter(None, texts))) == 1 + -(-(tokens - 1) // 4)
    assert settings_from(build_parser().parse_args(["--stream-interval", "4"])).stream_interval == 4
    with pytest.raises(SystemExit):
        build_parser().parse_args(["--stream-interval", "0"])
