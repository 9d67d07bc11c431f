"""The public API on a real socket: slow clients, bodies that nobody wants, and bytes that are no request."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from dataplane_world import a_token, a_world

from meridian_dataplane import server
from meridian_dataplane.app import public_app

NOTHING = b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n"


@asynccontextmanager
async def connected():
    """(reader, writer) of one connection to a server of its own."""
    serving = server.server(public_app(a_world().plane), "127.0.0.1", 0, 1)
    running = asyncio.create_task(serving.serve())
    while not serving.started:
        await asyncio.sleep(0.01)
    port = serving.servers[0].sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        serving.should_exit = True
        await running


async def answered(reader) -> tuple[int, dict[str, str], dict]:
    """One response, its body whole."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
    return int(head[0].split()[1]), headers, json.loads(await reader.readexactly(int(headers["content-length"])))


async def drip(writer) -> None:
    """A byte now and then, until nobody takes it."""
    try:
        while True:
            writer.write(b"a")
            await writer.drain()
            await asyncio.sleep(0.05)
    except OSError:
        pass


@pytest.mark.parametrize("before", [b"", NOTHING])
async def test_the_head_of_every_request_has_its_time(monkeypatch, before):
    """H-23: of the first and of those after it; single bytes prolong nothing."""
    monkeypatch.setattr(server, "REQUEST_S", 0.4)
    async with connected() as (reader, writer):
        writer.write(before)
        if before:
            assert (await answered(reader))[0] == 404
        writer.write(b"GET /v1/answers HTTP/1.1\r\nx: ")
        dripping = asyncio.create_task(drip(writer))
        async with asyncio.timeout(2):
            with pytest.raises((asyncio.IncompleteReadError, OSError)):
                await reader.readexactly(1)
        dripping.cancel()


async def test_a_connection_in_use_outlives_the_time_of_one_head(monkeypatch):
    """H-23 closes none that sends whole requests, pipelined or after a pause."""
    monkeypatch.setattr(server, "REQUEST_S", 0.2)
    async with connected() as (reader, writer):
        for _ in range(3):
            writer.write(NOTHING * 2)
            assert [(await answered(reader))[0] for _ in range(2)] == [404, 404]
            await asyncio.sleep(0.3)


async def test_a_body_that_nobody_wants_ends_its_connection(monkeypatch):
    """H-23: the refusal is read whole and says so; then the client may drip as it likes."""
    monkeypatch.setattr(server, "LINGER_S", 0.4)
    for headers, status in ((b"", 401), (b"authorization: Bearer %s\r\n" % a_token().encode(), 413)):
        async with connected() as (reader, writer):
            writer.write(
                b"POST /v1/answers HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                b"content-length: 1000000000\r\n" + headers + b"\r\n" + b"x" * 200_000
            )
            got, said, problem = await answered(reader)
            assert (got, problem["status"], said["connection"]) == (status, status, "close")
            async with asyncio.timeout(2):
                assert await reader.read() == b""
                await drip(writer)


async def test_headers_that_are_too_large_get_an_answer_that_can_be_read():
    """H-21: in one write or in many, and however much more is sent."""
    for pause in (0, 0.001):
        async with connected() as (reader, writer):
            writer.write(b"GET /v1/documents/x HTTP/1.1\r\nhost: x\r\n")
            for number in range(200):
                writer.write(b"x-%d: " % number + b"a" * 990 + b"\r\n")
                await asyncio.sleep(pause) if pause else None
            writer.write(b"\r\n")
            status, headers, problem = await answered(reader)
            assert (status, problem["code"]) == (431, "headers_too_large")
            assert headers["content-type"] == "application/problem+json"
            assert headers["x-request-id"] == problem["requestId"]


@pytest.mark.parametrize(
    "lines",
    [
        b"x a: b\r\n",
        b"a: b\r\n folded\r\n",
        b"a: b\n\tfolded\r\n",
        b"content-length: 17\r\ncontent-length: 17\r\n",
        b"content-length: 17, 17\r\n",
        b"Content-Length: 17\nCONTENT-LENGTH: 17\r\n",
        b"host: y\r\n",
    ],
)
@pytest.mark.parametrize("before", [b"", NOTHING])
async def test_a_head_that_can_be_read_in_two_ways_is_a_problem_and_the_end(before, lines):
    """H-32: alone or behind another request, and what follows is no request."""
    async with connected() as (reader, writer):
        writer.write(before + b"POST /v1/answers HTTP/1.1\r\nhost: x\r\n" + lines + b'\r\n{"question": "x"}' + NOTHING)
        if before:
            assert (await answered(reader))[0] == 404
        status, headers, problem = await answered(reader)
        assert (status, problem["code"], headers["connection"]) == (400, "malformed", "close")
        assert await reader.read() == b""


async def test_a_bad_chunk_ends_a_request_whose_body_is_awaited():
    """H-28."""
    async with connected() as (reader, writer):
        writer.write(
            b"POST /v1/answers HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n"
            b"authorization: Bearer %s\r\n\r\n" % a_token().encode()
        )
        await asyncio.sleep(0.1)
        writer.write(b"zz\r\n\r\n")
        assert (await answered(reader))[0] == 400
        assert await reader.read() == b""
