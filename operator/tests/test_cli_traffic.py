"""`meridian traffic`: the rate is kept, every request is accounted for, right means right."""

import argparse
import asyncio
import json

import httpx
import pytest

from meridian_cli import traffic
from meridian_cli.identity import NoToken
from meridian_cli.load import TrafficSettings, run_traffic
from meridian_cli.traffic_report import (
    Question,
    Record,
    TrafficReport,
    as_json,
    as_table,
    is_right,
    percentile,
)

URL = "http://dataplane.test"
REFUND = Question("Do we refund?", "acme-eu", ("g",), ("r",), ("refunded within 3 days",))
UNKNOWN = Question("Who is the king?", "acme-eu", abstain=True)
ANSWER = "Refunded  [1]\nwithin 3 days. [1]"


def stream(text: str = ANSWER, end: str | None = "done", **fields: object) -> bytes:
    meta = {"requestId": "req_1", "release": "support-3", "arm": "serving", "generation": 4}
    events = [("meta", meta), ("token", {"text": text})]
    if end:
        events.append((end, {"degraded": "full", "abstained": False, "code": "x", **fields}))
    return "".join(f"event: {n}\ndata: {json.dumps(d)}\n\n" for n, d in events).encode()


class Plane:
    """A data plane that answers each request with what `answer` gives, and keeps what it saw."""

    def __init__(self, answer) -> None:
        self.answer, self.asked, self.feedback = answer, [], []
        self.transport = httpx.MockTransport(self.handle)

    async def handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/token":
            return httpx.Response(200, json={"access_token": json.loads(request.content)["tenant"]})
        kept = self.feedback if request.url.path == "/v1/feedback" else self.asked
        kept.append(json.loads(request.content))
        if kept is self.feedback:
            return httpx.Response(202)
        given = self.answer(len(self.asked))
        if isinstance(given, Exception):
            raise given
        return given if isinstance(given, httpx.Response) else httpx.Response(200, content=given)


async def drive(answer, *, questions=(REFUND,), count: int = 5, **given):
    plane = Plane(answer)
    settings = TrafficSettings(URL, rps=200.0, seconds=count / 200, **given)
    return plane, await run_traffic(settings, questions, transport=plane.transport)


async def test_right_answers_are_counted_per_release_and_fed_back():
    plane, report = await drive(lambda _: stream())
    assert (report.sent, report.answered, report.lost, report.errors) == (5, 5, 0, 0)
    (count,) = report.releases()
    assert (count.release, count.arm, count.right, count.success_rate) == (
        "support-3",
        "serving",
        5,
        1.0,
    )
    assert plane.feedback == [{"requestId": "req_1", "outcome": "resolved"}] * 5


async def test_wrong_answers_are_fed_back_as_unresolved():
    plane, report = await drive(lambda _: stream("The canteen opens at noon. [1]"))
    assert report.releases()[0].success_rate == 0.0
    assert {f["outcome"] for f in plane.feedback} == {"unresolved"}


@pytest.mark.parametrize(
    ("given", "outcome", "code"),
    [
        (lambda: stream(degraded="snippets_only"), "degraded", "degraded snippets_only"),
        (lambda: stream(end="error", code="upstream_failed"), "error", "upstream_failed"),
        (lambda: stream(end=None), "lost", "no_terminal_event"),
        (lambda: b"", "lost", "no_terminal_event"),
        (lambda: httpx.Response(429, json={"code": "admission"}), "error", "429 admission"),
        (lambda: httpx.Response(502), "error", "502"),
        (lambda: httpx.ConnectError("refused"), "error", "ConnectError"),
        (lambda: httpx.ReadTimeout("late"), "error", "timeout"),
        (lambda: b"data: {\n\n", "error", "BadStream"),
    ],
)
async def test_every_end_of_a_request_is_told_apart(given, outcome, code):
    plane, report = await drive(lambda _: given(), count=1)
    (record,) = report.records
    assert (record.outcome, record.code) == (outcome, code)
    assert len(plane.feedback) == (outcome == "degraded")


async def test_a_stream_that_is_silent_past_the_time_out_is_lost(monkeypatch):
    monkeypatch.setattr("meridian_cli.load.REQUEST_TIMEOUT_S", 0.05)

    async def silent():
        yield stream(end=None)
        await asyncio.sleep(5)

    _, report = await drive(lambda _: httpx.Response(200, content=silent()), count=1)
    assert (report.lost, report.records[0].code) == (1, "timeout")


async def test_the_loop_is_open_and_each_request_has_its_own_conversation():
    async def slow():
        await asyncio.sleep(0.3)
        yield stream()

    plane, report = await drive(lambda _: httpx.Response(200, content=slow()), count=20)
    assert report.sent == 20
    assert max(r.at_s for r in report.records) < 0.3  # none waited for an answer before it
    assert len({a["conversationId"] for a in plane.asked}) == 20


async def test_conversations_can_be_shared():
    plane, _ = await drive(lambda _: stream(), count=10, conversations=3)
    assert len({a["conversationId"] for a in plane.asked}) == 3


async def test_stop_ends_the_sending_and_open_answers_are_read_to_their_end():
    stop, plane = asyncio.Event(), Plane(lambda n: stream())
    plane.answer = lambda n: (stop.set() if n == 3 else None, stream())[1]
    settings = TrafficSettings(URL, rps=50.0, seconds=60.0)
    report = await run_traffic(settings, [REFUND], stop=stop, transport=plane.transport)
    assert 3 <= report.sent <= 5
    assert report.answered == report.sent


async def test_without_an_issuer_no_traffic_starts():
    refused = httpx.MockTransport(lambda request: httpx.Response(500))
    with pytest.raises(NoToken):
        await run_traffic(TrafficSettings(URL, seconds=1), [REFUND], transport=refused)
    with pytest.raises(ValueError, match="questions"):
        await run_traffic(TrafficSettings(URL), [])


@pytest.mark.parametrize(
    ("question", "text", "abstained", "right"),
    [
        (REFUND, "REFUNDED [2] within\n3 days", False, True),
        (REFUND, "refunded within 30 days", False, False),
        (REFUND, "refunded within 3 days", True, False),
        (UNKNOWN, "I could not find this", True, True),
        (UNKNOWN, "The king is Bob", False, False),
    ],
)
def test_right_is_every_fact_or_the_abstention_that_is_due(question, text, abstained, right):
    assert is_right(question, text, abstained) is right


def test_questions_are_read_by_tenant_and_a_bad_line_is_named(tmp_path):
    file = tmp_path / "questions.jsonl"
    rows = [
        {"question": "A?", "tenant": "acme-eu", "groups": ["g"], "facts": ["x"]},
        {"question": "B?", "tenant": "globex", "abstain": True},
    ]
    file.write_text("\n".join(json.dumps(r) for r in rows) + "\n\n")
    assert len(traffic.read_questions(file)) == 2
    assert [q.question for q in traffic.read_questions(file, ["globex"])] == ["B?"]
    file.write_text(json.dumps(rows[0]) + '\n{"question": "C?", "tenant": "globex"}\n')
    with pytest.raises(ValueError, match="line 2.*facts"):
        traffic.read_questions(file)


def test_report_adds_up_and_reads_well():
    records = (
        Record(0.0, "q", "t", "answered", "r1", "s-1", "serving", right=True, ttft_ms=40.0),
        Record(0.1, "q", "t", "answered", "r2", "s-2", "candidate", right=False, ttft_ms=60.0),
        Record(0.2, "q", "t", "lost", "r3", "s-2", "candidate", code="timeout"),
        Record(0.3, "q", "t", "error", code="429 admission"),
    )
    report = TrafficReport(records)
    table = as_table(report).splitlines()
    assert table[0] == "sent 4  answered 2  degraded 0  errors 1  lost 1"
    assert "s-2      candidate  2         0/1    0.0%" in table
    assert as_json(report)["ttftMs"] == {"p50": 40.0, "p95": 60.0}
    assert percentile([], 0.5) is None


def test_the_command_says_what_is_wrong_and_ends_non_zero(tmp_path, capsys):
    parser = argparse.ArgumentParser()
    traffic.add_arguments(parser)
    missing = ["--questions", str(tmp_path / "none.jsonl"), "--url", URL]
    assert traffic.run(parser.parse_args(missing)) == 1
    assert "none.jsonl" in capsys.readouterr().err
