"""Records, audit, outcomes and documents on the real database (S-18, S-19, S-63)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from store_writing import GROUPS, a_document, announce, open_pool, put

from meridian_cluster.postgres_roles import Dsns
from meridian_dataplane.adapters.postgres import Pool, tenant_transaction
from meridian_dataplane.adapters.postgres_documents import PostgresDocuments
from meridian_dataplane.adapters.postgres_records import PostgresRecords
from meridian_dataplane.calls import CitedChunk, RequestRecord, ToolAudit
from meridian_dataplane.ports import RowRefused, StoreUnavailable

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module", autouse=True)
def content(store: Dsns, make_epoch: Callable[[str, str], None]) -> None:
    for tenant in ("a", "b"):
        make_epoch(tenant, "e1")
    announce(store, "e1")
    put(store, "a", "e1", [a_document("d1", 1, "One."), a_document("d1", 2, "Two.")])
    put(store, "a", "e1", [a_document("secret", 1, "Secret.", acl_groups=("legal",))])
    put(store, "b", "e1", [a_document("d1", 2, "Of the other tenant."), a_document("only-b", 1, "Of b.")])


def use(store: Dsns, work: Callable[[Pool], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with open_pool(store.app) as connections:
            return await work(connections)

    return asyncio.run(run())


def a_record(request_id: str = "q1", **changed: Any) -> RequestRecord:
    record = RequestRecord(
        request_id=request_id, tenant_id="a", subject="u1", traceparent="00-1-1-01", conversation_hash="c", service="support",
        created_time=datetime.now(UTC), region="eu-1", generation=3, release="r1", arm="candidate", canary_eligible=True,
        app_version="1", prompt="p1", model="llm@v1", model_region="eu-1", epoch="e1", embedding="w@1",
        tools={"get_order": "2"}, tool_outcome="ok", input_tokens=100, output_tokens=20, cached_input_tokens=0,
        usage_estimated=False, cost_usd=0.0042, ttft_ms=12.5, total_ms=40.0, stage_ms={"retrieve": 4.5},
        retrieved=(CitedChunk("d1", 2, "d1.0"),), cited=(CitedChunk("d1", 2, "d1.0"),), citations_valid=1, citations_invalid=2,
        uncited_claims=False, abstained=False, degraded="full", state="terminal", outcome="answered", error_code=None,
        stale_config=False,
    )  # fmt: skip
    return replace(record, **changed)


def evidence(store: Dsns, query: str, *parameters: object) -> list[tuple]:
    with psycopg.connect(store.evidence) as connection:
        return connection.execute(query.encode(), parameters).fetchall()


def test_a_record_explains_its_answer_and_is_written_once(store: Dsns) -> None:
    """S-19, S-42: every version; the same id again changes nothing; no name of a person is kept."""
    use(store, lambda pool: PostgresRecords(pool).write(a_record("once")))
    use(store, lambda pool: PostgresRecords(pool).write(a_record("once", outcome="error", release="other")))
    rows = evidence(
        store,
        "select release, arm, generation, prompt, model, target_region, epoch, tools, state, citations, citations_total,"
        " citations_invalid, cost_usd::float8, subject_hash like '%%u1%%', finished_at >= started_at"
        " from meridian.request_records where request_id = %s",
        "once",
    )
    assert rows == [
        (
            "r1",
            "candidate",
            3,
            "p1",
            "llm@v1",
            "eu-1",
            "e1",
            {"get_order": "2"},
            "answered",
            ["d1@2#d1.0"],
            3,
            2,
            0.0042,
            False,
            True,
        )
    ]


def test_a_record_never_begins_in_the_databases_future(store: Dsns) -> None:
    """A data plane whose clock runs ahead does not push its requests into a later look (R-16)."""
    ahead = datetime.now(UTC) + timedelta(hours=1)
    use(store, lambda pool: PostgresRecords(pool).write(a_record("ahead", created_time=ahead)))
    assert evidence(store, "select started_at <= now() from meridian.request_records where request_id = 'ahead'") == [
        (True,)
    ]


def test_records_of_two_tenants_go_each_to_its_own(store: Dsns) -> None:
    async def write(pool: Pool) -> None:
        records = PostgresRecords(pool)
        await asyncio.gather(*(records.write(a_record(f"batch-{n}", tenant_id="ab"[n % 2])) for n in range(20)))

    use(store, write)
    found = (
        "select tenant_id, count(*) from meridian.request_records where request_id like 'batch%%' group by 1 order by 1"
    )
    assert evidence(store, found) == [("a", 10), ("b", 10)]


@pytest.mark.parametrize(
    "record",
    [a_record("nul\x00"), a_record("arm", arm="no such arm"), a_record("state", outcome="no such outcome")],
    ids=lambda record: record.request_id[:5],
)
def test_a_row_that_cannot_be_stored_is_refused_for_ever(store: Dsns, record: RequestRecord) -> None:
    """Q-49: else it would go round in the spool and be tried for ever."""
    with pytest.raises(RowRefused):
        use(store, lambda pool: PostgresRecords(pool).write(record))


def judge(store: Dsns, request_id: str, outcome: str, *, tenant: str = "a", subject: str = "u1") -> bool:
    return use(
        store,
        lambda pool: PostgresRecords(pool).outcome(
            tenant=tenant, subject=subject, request_id=request_id, outcome=outcome, at=datetime.now(UTC)
        ),
    )


@pytest.mark.parametrize(
    ("signals", "success", "kept"),
    [
        (("resolved",), True, "resolved"),
        (("thumbs_up", "thumbs_up"), True, "thumbs_up"),
        (("resolved", "reopened"), False, "reopened"),
        (("resolved", "escalated", "resolved"), False, "escalated"),
        (("thumbs_down", "thumbs_up"), False, "thumbs_down"),
        (("unresolved", "escalated"), False, "unresolved"),
    ],
)
def test_a_request_is_judged_once_and_only_a_success_can_be_overturned(
    store: Dsns, signals: tuple[str, ...], success: bool, kept: str
) -> None:
    """S-37: judged outcomes are counted once per request id."""
    request_id = "judged-" + "-".join(signals)
    use(store, lambda pool: PostgresRecords(pool).write(a_record(request_id)))
    assert all(judge(store, request_id, signal) for signal in signals)
    found = evidence(store, "select success, signal from meridian.outcomes where request_id = %s", request_id)
    assert found == [(success, kept)]


@pytest.mark.parametrize(
    ("request_id", "changed"),
    [
        ("unknown", {}),
        ("mine", {"tenant": "b"}),
        ("mine", {"subject": "u2"}),
        ("mi\x00ne", {}),
        ("", {}),
        ("' or true --", {}),
    ],
)
def test_no_one_else_can_judge_a_request(store: Dsns, request_id: str, changed: dict[str, str]) -> None:
    """T-32, T-34, T-37: foreign and unknown look the same."""
    use(store, lambda pool: PostgresRecords(pool).write(a_record("mine")))
    assert judge(store, request_id, "resolved", **changed) is False
    assert evidence(store, "select 1 from meridian.outcomes where request_id = 'mine'") == []


def test_an_audit_row_is_appended_without_argument_values(store: Dsns) -> None:
    """S-14."""
    row = ToolAudit("q1", "a", "u1", "get_order", "2", "0" * 64, "ok", datetime.now(UTC), 3.5)
    use(store, lambda pool: PostgresRecords(pool).audit(row))
    with psycopg.connect(store.app) as connection:
        connection.execute("select set_config('app.tenant', 'a', true)")
        rows = connection.execute(
            "select tool, outcome, arguments_hash, subject_hash <> 'u1' from meridian.tool_audit"
        ).fetchall()
    assert rows == [("get_order", "ok", "0" * 64, True)]


def test_a_lock_that_does_not_come_is_unavailable_in_time_and_the_pool_goes_on(store: Dsns) -> None:
    """T-31, S-80."""
    with psycopg.connect(store.owner) as blocker:
        blocker.execute("lock table meridian.request_records in access exclusive mode")
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            use(store, lambda pool: PostgresRecords(pool, timeout_s=0.3).write(a_record("blocked")))
        assert time.monotonic() - began < 3
    use(store, lambda pool: PostgresRecords(pool).write(a_record("blocked")))


def test_a_database_that_is_away_is_unavailable_in_time(store: Dsns) -> None:
    away = store.app.replace(store.app.rpartition("@")[2].partition("/")[0], "127.0.0.1:1")

    async def run() -> None:
        async with open_pool(away) as connections, tenant_transaction(connections, "a", 0.3):
            pass

    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        asyncio.run(run())
    assert time.monotonic() - began < 8


def current(
    store: Dsns, chunks: list[CitedChunk], *, tenant: str = "a", groups: tuple[str, ...] = GROUPS
) -> frozenset[CitedChunk]:
    return use(
        store,
        lambda pool: PostgresDocuments(pool).current(
            tenant=tenant, groups=groups, epoch="e1", chunks=chunks, timeout_s=5.0
        ),
    )


def test_a_citation_holds_only_while_current_and_visible(store: Dsns) -> None:
    """S-18, Q-61: superseded, hidden, of another tenant, unknown chunk, no groups: not valid."""
    good = CitedChunk("d1", 2, "d1.0")
    others = [
        CitedChunk("d1", 1, "d1.0"), CitedChunk("d1", 3, "d1.0"), CitedChunk("d1", 2, "d1.9"), CitedChunk("secret", 1, "secret.0"),
        CitedChunk("only-b", 1, "only-b.0"), CitedChunk("unknown", 1, "x"),
    ]  # fmt: skip
    assert current(store, [*others, good]) == {good}
    assert current(store, [good], groups=()) == frozenset()
    assert current(store, [good], tenant="b") == {good}  # its own d1, not a's
    assert current(store, []) == frozenset()


def read(store: Dsns, doc_id: str, version: int | None = None, **changed: Any) -> Any:
    asked = {"tenant": "a", "groups": GROUPS, "epoch": "e1", **changed}
    return use(store, lambda pool: PostgresDocuments(pool).read(doc_id=doc_id, version=version, timeout_s=5.0, **asked))


def test_a_citation_opens_its_source_at_its_version(store: Dsns) -> None:
    """S-63."""
    assert (read(store, "d1").text, read(store, "d1").current) == ("Two.", True)
    assert (read(store, "d1", 1).text, read(store, "d1", 1).current) == ("One.", False)


@pytest.mark.parametrize(
    ("doc_id", "version", "changed"),
    [
        ("d1", 3, {}), ("d1", -1, {}), ("d1", 2**70, {}), ("only-b", None, {}), ("secret", None, {}), ("unknown", None, {}),
        ("d1", None, {"groups": ()}), ("d1", None, {"epoch": "e2"}), ("d\x001", None, {}), ("d1", None, {"tenant": "c"}),
    ],
)  # fmt: skip
def test_what_a_caller_may_not_see_is_what_does_not_exist(
    store: Dsns, doc_id: str, version: int | None, changed: dict[str, Any]
) -> None:
    """T-32, T-37."""
    assert read(store, doc_id, version, **changed) is None
