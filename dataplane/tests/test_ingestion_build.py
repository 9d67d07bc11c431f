"""The index Job as a whole: a finished epoch, a killed one, a wrong one, a name used again (S-60, S-61, Q-37, Q-49 to Q-56)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import store_sample

from meridian_cluster.postgres_roles import Dsns
from meridian_dataplane.ingestion.__main__ import WRONG_INPUT, run, shard_from

pytestmark = pytest.mark.timeout(120)

NO_GOLDEN = Path("/nonexistent")


@pytest.fixture(autouse=True)
def partitions(make_epoch: Callable[[str, str], None], request: pytest.FixtureRequest) -> None:
    for tenant in store_sample.TENANTS:
        make_epoch(tenant, epoch_of(request))


def epoch_of(request: pytest.FixtureRequest) -> str:
    return request.node.name[:60]


def documents(folder: Path, source: str, lines: list[dict[str, Any] | str]) -> None:
    (folder / source).mkdir(parents=True, exist_ok=True)
    text = "\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines)
    (folder / source / "documents.jsonl").write_text(text)


def a_line(doc_id: str, version: int = 1, text: str = "Some text.", **changed: Any) -> dict[str, Any]:
    return {
        "docId": doc_id,
        "version": version,
        "title": "T",
        "sourceUri": "u",
        "aclGroups": ["g"],
        "text": text,
        **changed,
    }


def build(
    store: Dsns, folder: Path, name: str, *, uid: str = "u1", index: int = 0, golden: Path = NO_GOLDEN, **spec: Any
) -> int:
    environment = {
        "MERIDIAN_EPOCH": store_sample.epoch_value(name, uid, **spec),
        "MERIDIAN_SOURCES_DIR": str(folder),
        "JOB_COMPLETION_INDEX": str(index),
    }
    return run(shard_from(environment), store.ingest, golden)


def evidence(store: Dsns, query: str, *parameters: object) -> list[tuple]:
    with psycopg.connect(store.evidence) as connection:
        return connection.execute(query.encode(), parameters).fetchall()


EPOCH = "select state, documents, chunks, error, corpus_fingerprint, recall_at_6, bad_lines from meridian.epochs where name = %s"
EMBEDDED = "select sum(embedded)::int, sum(documents)::int, sum(documents_total)::int from meridian.epoch_sources where epoch = %s"


def test_the_sample_is_built_measured_and_built_again_without_embedding(
    store: Dsns, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Q-37, Q-56: counts, fingerprint and recall at 6 of the golden set; the second run finds everything in place."""
    name = epoch_of(request)
    sources, golden = store_sample.mount_sources(tmp_path / "s"), store_sample.mount_golden(tmp_path / "g")
    assert build(store, sources, name, golden=golden) == 0
    first = evidence(store, EPOCH, name)[0]
    assert first[0] == "built" and first[1] > 40 and first[2] >= first[1]
    assert first[4].startswith("sha256:") and first[5] >= 0.8
    assert evidence(store, EMBEDDED, name)[0][0] == first[2]
    assert build(store, sources, name, golden=golden) == 0
    assert evidence(store, EPOCH, name)[0] == first
    assert evidence(store, EMBEDDED, name)[0] == (0, first[1], first[1])


def test_a_bad_line_fails_the_epoch_by_name_after_everything_else_is_published(
    store: Dsns, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Q-49: counted, named by source and line, never quoted; the other documents are there."""
    name = epoch_of(request)
    documents(tmp_path, "acme-eu", [a_line("d1"), '{"docId": "secret-words"', a_line("d2", version="x"), a_line("d3")])
    documents(tmp_path, "globex", [a_line("d1")])
    assert build(store, tmp_path, name) == WRONG_INPUT
    state, *_, error, _, _, _ = evidence(store, EPOCH, name)[0]
    assert state == "failed"
    assert "source acme-eu, line 2: not JSON (and 1 more)" in error
    assert "secret-words" not in error
    assert evidence(store, EMBEDDED, name)[0][1] == 3
    assert evidence(store, "select sum(bad_lines)::int from meridian.epoch_sources where epoch = %s", name) == [(2,)]


def test_a_corrected_retry_of_a_failed_epoch_is_built(
    store: Dsns, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    name = epoch_of(request)
    documents(tmp_path, "acme-eu", ["{"])
    documents(tmp_path, "globex", [a_line("d1")])
    assert build(store, tmp_path, name) == WRONG_INPUT
    documents(tmp_path, "acme-eu", [a_line("d1")])
    assert build(store, tmp_path, name) == 0
    assert evidence(store, EPOCH, name)[0][:4] == ("built", 2, 2, "")


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"embedding": {"revision": "other-1"}}, "embeds with wordllama@l2"),
        ({"embedding": {"model": "other", "revision": "1"}}, "asks for other@1"),
        ({"embedding": {"revision": "l2-supercat-256-0.4.0.post1", "dimension": 64}}, "embeds with"),
    ],
    ids=["revision", "model", "dimension"],
)
def test_another_embedding_model_is_refused_before_anything_is_written(
    store: Dsns, tmp_path: Path, request: pytest.FixtureRequest, spec: dict[str, Any], why: str
) -> None:
    """Q-54, Q-55."""
    name = epoch_of(request)
    documents(tmp_path, "acme-eu", [a_line("d1")])
    assert build(store, tmp_path, name, **spec) == WRONG_INPUT
    state, count, _, error, *_ = evidence(store, EPOCH, name)[0]
    assert (state, count) == ("failed", 0)
    assert why in error


def test_a_missing_source_is_named(store: Dsns, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    name = epoch_of(request)
    documents(tmp_path, "acme-eu", [a_line("d1")])
    assert build(store, tmp_path, name) == WRONG_INPUT
    assert evidence(store, EPOCH, name)[0][3] == "source globex: documents.jsonl is not mounted"


def test_an_unusable_golden_set_fails_the_epoch(store: Dsns, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    name = epoch_of(request)
    for tenant in store_sample.TENANTS:
        documents(tmp_path, tenant, [a_line("d1")])
    golden = tmp_path / "golden" / "golden.jsonl"
    golden.parent.mkdir()
    golden.write_text("\n")
    assert build(store, tmp_path, name, golden=golden) == WRONG_INPUT
    assert evidence(store, EPOCH, name)[0][:4:3] == ("failed", "golden set: the golden set has no cases")


def test_shards_share_the_work_and_the_last_one_ends_the_build(
    store: Dsns, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    name = epoch_of(request)
    for tenant in store_sample.TENANTS:
        documents(tmp_path, tenant, [a_line(f"d{n}") for n in range(30)])
    assert build(store, tmp_path, name, index=1, shards=2) == 0
    assert evidence(store, EPOCH, name)[0][0] == "building"
    assert build(store, tmp_path, name, index=0, shards=2) == 0
    assert evidence(store, EPOCH, name)[0][:3] == ("built", 60, 60)


def test_equal_corpora_have_equal_fingerprints_whatever_chunked_them(
    store: Dsns, tmp_path: Path, request: pytest.FixtureRequest, make_epoch: Callable[[str, str], None]
) -> None:
    """Q-56."""
    name = epoch_of(request)
    prints = []
    for number, (chunker, text) in enumerate([(400, "Text."), (50, "Text."), (400, "Other.")]):
        for tenant in store_sample.TENANTS:
            make_epoch(tenant, f"{name}-{number}")
            documents(tmp_path, tenant, [a_line("d1", text=text)])
        assert build(store, tmp_path, f"{name}-{number}", chunker={"targetTokens": chunker}) == 0
        prints.append(evidence(store, EPOCH, f"{name}-{number}")[0][4])
    assert prints[0] == prints[1] != prints[2]


def test_a_name_used_again_is_a_new_epoch(store: Dsns, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    name = epoch_of(request)
    for tenant in store_sample.TENANTS:
        documents(tmp_path, tenant, [a_line("d1", version=9), a_line("old")])
    assert build(store, tmp_path, name, uid="first") == 0
    for tenant in store_sample.TENANTS:
        documents(tmp_path, tenant, [a_line("d1", version=1)])
    assert build(store, tmp_path, name, uid="second") == 0
    assert evidence(store, EPOCH, name)[0][:3] == ("built", 2, 2)
    assert evidence(store, "select uid from meridian.epochs where name = %s", name) == [("second",)]


def test_a_killed_build_goes_on_where_it_was(store: Dsns, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """S-61: SIGKILL in the middle; the next run embeds only what is missing, and every document is whole."""
    name = epoch_of(request)
    text = "\n\n".join(f"## Part {n}\n\n" + "Words about many things. " * 30 for n in range(4))
    for tenant in store_sample.TENANTS:
        documents(tmp_path, tenant, [a_line(f"d{n:03}", text=f"{n} {text}") for n in range(70)])
    environment = {
        **os.environ,
        "MERIDIAN_EPOCH": store_sample.epoch_value(name, "u1"),
        "MERIDIAN_SOURCES_DIR": str(tmp_path),
        "MERIDIAN_INGEST_DSN": store.ingest,
        "MERIDIAN_GOLDEN_FILE": str(NO_GOLDEN),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "meridian_dataplane.ingestion"], env=environment, stderr=subprocess.DEVNULL
    )
    until = time.monotonic() + 60
    while time.monotonic() < until and (evidence(store, EMBEDDED, name)[0][1] or 0) < 20:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert evidence(store, EPOCH, name)[0][0] == "building"
    assert build(store, tmp_path, name) == 0
    state, count, chunks, *_ = evidence(store, EPOCH, name)[0]
    embedded = evidence(store, EMBEDDED, name)[0][0]
    assert (state, count) == ("built", 140)
    assert embedded <= chunks - 20
    assert chunks % 140 == 0


def test_an_environment_that_is_not_complete_is_wrong_input() -> None:
    for environment in ({}, {"MERIDIAN_EPOCH": "{"}, {"MERIDIAN_EPOCH": '{"name": "e", "uid": "u", "spec": {}}'}):
        with pytest.raises((KeyError, ValueError)):
            shard_from(environment)
