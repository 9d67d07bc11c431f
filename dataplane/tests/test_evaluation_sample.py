"""The sample through the real thing: real index, real engine process, the pipeline itself. Its floors hold (S-02, S-34)."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import store_sample

from meridian_cluster.postgres_roles import Dsns
from meridian_dataplane.evaluation.__main__ import evaluate, job_from, write
from meridian_dataplane.ingestion.__main__ import run, shard_from

pytestmark = pytest.mark.timeout(180)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_for(url: str) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError as answered:
            if hasattr(answered, "code"):
                return
            time.sleep(0.1)
    raise TimeoutError(url)


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Path]]:
    """(engine, orders, token file), each a real process."""
    engine, orders = free_port(), free_port()
    token = tmp_path_factory.mktemp("orders") / "token"
    token.write_text("a-token")
    commands = [
        ["meridian_predictor", "--host", "127.0.0.1", "--port", str(engine), "--profile", "fast"],
        [
            "meridian_orders",
            "--host",
            "127.0.0.1",
            "--port",
            str(orders),
            "--token-file",
            str(token),
            "--latency-ms",
            "1",
        ],
    ]
    running = [subprocess.Popen([sys.executable, "-m", *command]) for command in commands]
    try:
        wait_for(f"http://127.0.0.1:{engine}/health")
        wait_for(f"http://127.0.0.1:{orders}/orders/A-1000")
        yield f"http://127.0.0.1:{engine}", f"http://127.0.0.1:{orders}", token
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def report(
    store: Dsns,
    make_epoch: Callable[[str, str], None],
    services: tuple[str, str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("sample")
    for tenant in store_sample.TENANTS:
        make_epoch(tenant, "e1")
    golden = store_sample.mount_golden(folder / "golden")
    environment = {"MERIDIAN_EPOCH": store_sample.epoch_value("e1", "uid-1")}
    environment["MERIDIAN_SOURCES_DIR"] = str(store_sample.mount_sources(folder / "sources"))
    assert run(shard_from(environment), store.ingest, golden) == 0
    engine, orders, token = services
    mount, keys = store_sample.mount_snapshot(folder, store_sample.snapshot("e1", engine))
    job = job_from(
        {
            "MERIDIAN_EVALUATION": json.dumps({"release": "2026-10-28.1", "uid": "r-1", "attempt": 1}),
            "MERIDIAN_CONFIG_MOUNT": str(mount),
            "MERIDIAN_PUBLIC_KEYS_DIR": str(keys),
            "MERIDIAN_GOLDEN_FILE": str(golden),
            "MERIDIAN_SERVICE": "support",
            "MERIDIAN_REGION": "eu-1",
            "MERIDIAN_DATABASE_DSN": store.app,
            "MERIDIAN_INGEST_DSN": store.ingest,
            "MERIDIAN_ORDERS_URL": orders,
            "MERIDIAN_ORDERS_TOKEN_FILE": str(token),
        },
        folder / "state",
    )
    found = asyncio.run(evaluate(job))
    write(job.ingest_dsn, job.evaluation, found)
    if path := os.environ.get("MERIDIAN_TEST_REPORT"):
        Path(path).write_text(json.dumps(found, indent=1))
    return found


def test_every_case_is_scored_and_the_floors_of_the_sample_hold(report: dict[str, Any]) -> None:
    """S-34, S-02, Q-71: all cases scored; recall 0.8, abstention 0.8, success 0.88, groundedness 0.95, citations 1.0."""
    assert report["errors"] == []
    assert report["scored"] == report["cases"] > 60
    assert report["recallAt6"] >= 0.8
    assert report["abstention"] >= 0.8
    assert report["taskSuccess"] >= 0.88
    assert report["groundedness"] >= 0.95
    assert report["citationValidity"] == 1.0


def test_the_operator_reads_the_report_and_no_canary_counts_its_requests(store: Dsns, report: dict[str, Any]) -> None:
    """Q-56, R-05: fingerprint and digest are in the report; records carry the arm `evaluation` only."""
    with psycopg.connect(store.evidence) as connection:
        row = connection.execute(
            "select report from meridian.evaluation_reports where release_uid = 'r-1' and attempt = 1 and kind = 'offline'"
        ).fetchone()
        arms = connection.execute("select arm, count(*) from meridian.request_records group by arm").fetchall()
        (fingerprint,) = connection.execute("select corpus_fingerprint from meridian.epochs").fetchone() or ("",)
    assert row is not None
    assert row[0]["corpusFingerprint"] == fingerprint != ""
    assert row[0]["goldenDigest"].startswith("sha256:")
    assert arms == [("evaluation", report["cases"])]
