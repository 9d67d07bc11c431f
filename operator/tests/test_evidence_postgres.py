"""The counting query on a real PostgreSQL: each request once, in its arm, in its window, old enough, as meridian_evidence."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from meridian_cluster import postgres
from meridian_cluster.postgres_roles import Dsns
from meridian_operator.evidence.evaluation import REPORT, report_of
from meridian_operator.evidence.outcomes import COUNTS, Tally, Window, parameters, tally

SCHEMA = Path(__file__).parents[1] / "meridian_operator" / "store" / "schema.sql"
NOW = datetime.now(UTC)
START, STEP = NOW - timedelta(minutes=10), NOW - timedelta(minutes=4)
DELAY = timedelta(seconds=30)
ASKED = Window("support", "new", "candidate", "old", START, STEP, DELAY, eligible_only=True)


@pytest.fixture(scope="module")
def dsns() -> Iterator[Dsns]:
    with postgres.temporary() as made:
        with psycopg.connect(made.owner) as connection:
            connection.execute(SCHEMA.read_bytes())
        yield made


def write(
    dsns: Dsns, tenant: str, request: str, *, success: bool | None = None, again: bool | None = None, **changes: Any
) -> None:
    """A record as the data plane writes it, and its judgements."""
    row: dict[str, Any] = {
        "tenant_id": tenant, "request_id": request, "service": "support", "release": "new", "arm": "candidate", "generation": 2,
        "canary_eligible": True, "state": "answered", "citations_total": 2, "cost_usd": 0.003,
        "started_at": NOW - timedelta(minutes=2), **changes,
    }  # fmt: skip
    with psycopg.connect(dsns.app) as connection:
        connection.execute("select set_config('app.tenant', %s, true)", [tenant])
        names = ", ".join(row)
        connection.execute(
            f"insert into meridian.request_records ({names}) values ({', '.join(['%s'] * len(row))})",
            list(row.values()),
        )
        for verdict in (success, again):
            if verdict is not None:
                connection.execute(
                    "insert into meridian.outcomes (tenant_id, request_id, success, signal) values (%s, %s, %s, 'judge')"
                    " on conflict (tenant_id, request_id) do update set success = excluded.success",
                    [tenant, request, verdict],
                )


def count(dsns: Dsns, asked: Window = ASKED) -> Tally:
    with psycopg.connect(dsns.evidence, row_factory=dict_row) as connection:
        counted = tally(connection.execute(COUNTS, parameters(asked, NOW)).fetchall(), asked)
    assert counted is not None
    return counted


def test_only_what_the_look_asks_for_is_counted_and_each_request_once(dsns: Dsns):
    """R-05, R-11, R-16; the same request id of two tenants is two requests."""
    write(dsns, "acme-eu", "r1", success=True, again=False)
    write(dsns, "globex", "r1", success=True)
    write(dsns, "acme-eu", "r2", state="error", citations_total=0)
    write(dsns, "acme-eu", "early", success=True, started_at=NOW - timedelta(minutes=8))
    write(dsns, "acme-eu", "young", success=False, started_at=NOW - timedelta(seconds=5))
    write(dsns, "acme-eu", "control", success=True, release="old", arm="serving", citations_invalid=1)
    for request, changes in {
        "last-attempt": {"started_at": NOW - timedelta(minutes=20)},
        "not-eligible": {"canary_eligible": False},
        "cache": {"cache_hit": True},
        "refused": {"state": "refused"},
        "gone": {"state": "cancelled"},
        "other-service": {"service": "sales"},
        "evaluation": {"arm": "evaluation"},
        "other-release": {"release": "older", "arm": "serving"},
    }.items():
        write(dsns, "acme-eu", request, success=True, **changes)
    counted = count(dsns)
    one, two = counted.candidate, counted.control
    assert (one.requests, one.judged, one.successes, one.errors) == (5, 3, 2, 1)
    assert (one.step_requests, one.step_judged, one.step_successes) == (4, 2, 1)
    assert (one.citations, one.citations_invalid) == (8, 0)
    assert one.judged_cost_usd == pytest.approx(0.009)
    assert (two.requests, two.judged, two.successes, two.citations_invalid) == (1, 1, 1, 1)


def test_in_bake_every_tenant_counts_and_there_is_no_control(dsns: Dsns):
    write(dsns, "acme-eu", "b1", success=True, release="baking", arm="serving", canary_eligible=False)
    counted = count(dsns, Window("support", "baking", "serving", None, START, START, timedelta(0), eligible_only=False))
    assert (counted.candidate.requests, counted.candidate.judged, counted.control.requests) == (1, 1, 0)


def test_a_degraded_answer_is_an_error_of_its_release(dsns: Dsns):
    """R-17, R-02: its primary fails; what the fallback model or the passages alone say proves nothing of it."""
    write(dsns, "acme-eu", "s1", release="dead", arm="serving", state="degraded", degraded="snippets_only")
    write(dsns, "acme-eu", "s2", release="dead", arm="serving", state="degraded", degraded="fallback_model")
    counted = count(dsns, Window("support", "dead", "serving", None, START, START, timedelta(0), eligible_only=False))
    assert (counted.candidate.requests, counted.candidate.errors) == (2, 2)


def test_a_report_belongs_to_one_uid_and_one_attempt(dsns: Dsns):
    """R-05."""
    with psycopg.connect(dsns.ingest) as connection:
        connection.execute(
            "insert into meridian.evaluation_reports (release_uid, attempt, kind, release, report) values"
            " ('uid', 1, 'offline', 'new', '{\"cases\": 1}')"
        )
    with psycopg.connect(dsns.evidence, row_factory=dict_row) as connection:
        assert report_of(connection.execute(REPORT, ("uid", 1)).fetchall()) == {"cases": 1}
        assert report_of(connection.execute(REPORT, ("uid", 2)).fetchall()) is None
