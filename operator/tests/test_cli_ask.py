"""`meridian ask` and `meridian token`: what a person sees, and what a script can rely on."""

import argparse
import json
import os
import shlex
import subprocess
import sys

import httpx
import pytest

from meridian_cli import address, ask, token
from meridian_cli.event_stream import BadStream, Event, EventReader
from meridian_cli.identity import Identity, ask_command

ISSUER, URL = "http://issuer.test", "http://dataplane.test"
META = {"requestId": "req_1", "release": "support-3", "arm": "serving", "generation": 4}
DONE = {
    "requestId": "req_1",
    "usage": {"inputTokens": 412, "outputTokens": 38, "cachedInputTokens": 0},
    "costUsd": 0.0012,
    "degraded": "full",
    "abstained": False,
    "ttftMs": 45,
    "totalMs": 120,
}
CITED = {
    "marker": 1,
    "docId": "POL-EU-009",
    "docVersion": 4,
    "title": "Duplicate charges",
    "url": "https://example.test/POL-EU-009",
}


def frames(*events: tuple[str, dict]) -> bytes:
    lines = [f"event: {n}\ndata: {json.dumps(d, ensure_ascii=False)}\n\n" for n, d in events]
    return "".join(lines).encode()


GOOD = frames(
    ("meta", {**META, "epoch": "idx-1"}),
    ("token", {"text": "Refunded "}),
    ("token", {"text": "automatically é [1]."}),
    ("citations", {"citations": [CITED]}),
    ("done", DONE),
)


def world(stream: bytes = GOOD, refusal: httpx.Response | None = None, seen: list | None = None):
    def handle(request: httpx.Request) -> httpx.Response:
        if seen is not None:
            seen.append(request)
        if request.url.host == "issuer.test":
            return httpx.Response(200, json={"access_token": "minted"})
        return refusal or httpx.Response(200, content=stream)

    return httpx.MockTransport(handle)


def run_ask(*argv: str, **given) -> int:
    parser = argparse.ArgumentParser()
    ask.add_arguments(parser)
    sent = ["--issuer", ISSUER, "--url", URL, "--tenant", "acme-eu", *argv, "Do we refund?"]
    return ask.run(parser.parse_args(sent), transport=world(**given))


def test_shows_the_answer_its_citations_and_what_it_cost(capsys):
    """S-17."""
    assert run_ask() == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Refunded automatically é [1].")
    assert "[1] Duplicate charges, version 4\n    https://example.test/POL-EU-009" in shown
    assert "release support-3 (serving) | generation 4 | epoch idx-1" in shown
    assert "tokens 412 in, 38 out | 0.001200 USD | first token 45 ms, total 120 ms" in shown
    assert "\033" not in shown


def test_asks_with_a_minted_token_and_only_the_question_in_the_body():
    seen: list[httpx.Request] = []
    run_ask("--group", "support_agent", "--role", "agent", "--sub", "u_1", seen=seen)
    assert json.loads(seen[0].content) == {
        "tenant": "acme-eu",
        "sub": "u_1",
        "groups": ["support_agent"],
        "roles": ["agent"],
        "ttlSeconds": 3600,
    }
    assert seen[1].headers["authorization"] == "Bearer minted"
    assert json.loads(seen[1].content) == {"question": "Do we refund?"}


def test_json_prints_one_event_a_line(capsys):
    assert run_ask("--json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == ["meta", "token", "token", "citations", "done"]


@pytest.mark.parametrize(
    ("given", "hinted"), [((), True), (("--group", "g"), False), (("--role", "r"), False), (("--token", "t"), False)]
)
def test_only_who_asks_without_groups_and_roles_is_told_so_and_beside_the_answer(capsys, given, hinted):
    assert run_ask(*given) == 0
    shown = capsys.readouterr()
    assert ("hint:" in shown.err) == hinted
    assert "hint:" not in shown.out


@pytest.mark.parametrize(
    "identity",
    [
        Identity("acme-eu"),
        Identity("globex", sub="u_7002", groups=("a", "b c"), roles=("support_agent",)),
    ],
)
@pytest.mark.parametrize("question", ["Do we refund?", 'What does "$HOME" cost? It\'s `1`!', "a\\"])
def test_a_printed_command_asks_the_same_as_the_same_user(identity, question):
    parser = argparse.ArgumentParser()
    ask.add_arguments(parser)
    printed = shlex.split(ask_command(identity, question))
    assert printed[:2] == ["meridian", "ask"]
    args = parser.parse_args(printed[2:])
    assert (token.identity_from(args), args.question) == (identity, question)


def test_a_reader_that_has_seen_enough_ends_it_quietly():
    program = (
        "import sys, types, meridian_cli.__main__ as cli\n"
        "many = types.ModuleType('many')\n"
        "many.add_arguments = lambda parser: None\n"
        "many.run = lambda args: [print('x' * 99) for _ in range(99999)] and 0\n"
        "sys.modules['many'] = many\n"
        "cli.COMMANDS['many'] = cli.Command('many', '')\n"
        "sys.exit(cli.main(['many']))\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writer.stdout and writer.stderr
    writer.stdout.readline()
    writer.stdout.close()
    assert (writer.stderr.read(), writer.wait()) == (b"", 141)


def test_degraded_and_abstaining_answers_are_shown_as_such(capsys):
    done = DONE | {"degraded": "snippets_only", "abstained": True}
    assert run_ask(stream=frames(("meta", META), ("done", done))) == 0
    shown = capsys.readouterr().out
    assert "degraded: snippets_only" in shown and "abstained:" in shown


def test_an_error_event_ends_non_zero(capsys):
    error = {"code": "upstream_failed", "message": "the model stopped", "requestId": "req_1"}
    assert run_ask(stream=frames(("meta", META), ("error", error))) == 1
    assert "error upstream_failed: the model stopped (request req_1)" in capsys.readouterr().out


def test_a_stream_without_an_end_is_an_error(capsys):
    assert run_ask(stream=frames(("meta", META), ("token", {"text": "Half"}))) == 1
    assert "without an end" in capsys.readouterr().err


def test_a_refusal_is_told_in_one_line(capsys):
    problem = {"title": "x", "detail": "no policy.", "code": "tenant_unknown", "requestId": "r"}
    refusal = httpx.Response(403, json=problem, headers={"retry-after": "2"})
    assert run_ask(refusal=refusal) == 1
    said = capsys.readouterr().err
    assert said.strip() == ("meridian ask: refused with 403 tenant_unknown: no policy; try again in 2 s (request r)")


def test_text_from_outside_cannot_steer_the_terminal(capsys):
    hostile = {"text": "a\x1b[2J\x9b31m\rb"}
    run_ask(stream=frames(("meta", META), ("token", hostile), ("done", DONE)))
    assert "\x1b" not in (shown := capsys.readouterr().out)
    assert "\x9b" not in shown and "\r" not in shown


def test_without_an_identity_it_says_what_to_give(capsys):
    parser = argparse.ArgumentParser()
    ask.add_arguments(parser)
    assert ask.run(parser.parse_args(["--url", URL, "Do we?"]), transport=world()) == 1
    assert "--tenant" in capsys.readouterr().err


def test_token_prints_the_token_alone_or_says_why_not(capsys):
    parser = argparse.ArgumentParser()
    token.add_arguments(parser)
    args = parser.parse_args(["--issuer", "http://127.0.0.1:9", "--tenant", "acme-eu"])
    assert token.run(args) == 1
    assert "meridian status" in capsys.readouterr().err


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
def test_events_are_the_same_however_the_bytes_are_cut(size):
    """H-11."""
    reader = EventReader()
    cut = [GOOD[at : at + size] for at in range(0, len(GOOD), size)]
    events = [event for part in cut for event in reader.feed(part)]
    assert [e.name for e in events] == ["meta", "token", "token", "citations", "done"]
    assert events[2].data == {"text": "automatically é [1]."}


def test_every_legal_spelling_of_an_event_is_read_alike():
    """H-12."""
    spelled = b': comment\r\nevent:token\r\ndata:{"text":\r\ndata: "x"}\r\n\r\nid: 3\n\n'
    assert EventReader().feed(spelled) == [Event("token", {"text": "x"})]


@pytest.mark.parametrize("sent", [b"data: {\n\n", b"data: []\n\n", b"x" * (2 << 20)])
def test_what_is_no_event_stream_is_refused(sent):
    with pytest.raises(BadStream):
        EventReader().feed(sent)


def test_the_address_is_remembered_for_when_the_api_server_is_down(tmp_path, monkeypatch):
    monkeypatch.delenv(address.URL_VARIABLE, raising=False)
    kubeconfig, cache = tmp_path / "kubeconfig", tmp_path / "address"
    kubeconfig.write_text("")
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\nprintf 10.96.0.9:80\n")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert address.dataplane_url(kubeconfig, cache) == "http://10.96.0.9:80"
    kubectl.write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setattr(address, "_accepts", lambda url: False)
    assert address.dataplane_url(kubeconfig, cache) == "http://10.96.0.9:80"
    cache.unlink()
    with pytest.raises(address.NoAddress, match="--url"):
        address.dataplane_url(kubeconfig, cache)


def test_an_address_from_before_this_cluster_is_not_trusted_first(tmp_path, monkeypatch):
    monkeypatch.delenv(address.URL_VARIABLE, raising=False)
    kubeconfig, cache = tmp_path / "kubeconfig", tmp_path / "address"
    cache.write_text("http://10.96.0.1:80\n")
    os.utime(cache, (1, 1))
    kubeconfig.write_text("")
    monkeypatch.setattr(address, "_accepts", lambda url: True)
    monkeypatch.setattr(address, "_service_address", lambda kubeconfig: "http://10.96.0.2:80")
    assert address.dataplane_url(kubeconfig, cache) == "http://10.96.0.2:80"
