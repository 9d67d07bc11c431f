"""A document's versions appear whole, in the right order, once (S-61, Q-36 to Q-48)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest
from store_writing import GROUPS, a_document, announce, ask, open_pool, put

from meridian_api.v1alpha1.indexepoch import Chunker
from meridian_cluster.postgres_roles import Dsns
from meridian_dataplane.adapters import embedding
from meridian_dataplane.ingestion import publishing
from meridian_dataplane.ingestion.building import prepare
from meridian_dataplane.ingestion.publishing import Place, Stored

pytestmark = pytest.mark.timeout(120)

PLACE = Place("a", "e1", "source")


@pytest.fixture(scope="module", autouse=True)
def epoch(store: Dsns, make_epoch: Callable[[str, str], None]) -> None:
    make_epoch("a", "e1")
    announce(store, "e1")


def as_tenant(dsn: str, query: str, *parameters: object) -> list[tuple]:
    with psycopg.connect(dsn) as connection:
        connection.execute("select set_config('app.tenant', 'a', true)")
        return connection.execute(query.encode(), parameters).fetchall()


def chunks_of(store: Dsns, doc_id: str) -> list[tuple]:
    return as_tenant(
        store.ingest, "select version, ordinal from meridian.chunks where doc_id = %s order by version, ordinal", doc_id
    )


def parts(version: int, count: int) -> str:
    return "\n\n".join(
        f"## Part {n}\n\n"
        + f"Version {version} of the torn document says marker{version} about carriage in part {n}. " * 3
        for n in range(count)
    )


def test_a_reader_sees_one_whole_version_while_it_is_being_replaced(store: Dsns) -> None:
    """Q-41, Q-39, S-61: 5 s of replacing 10 chunks by 3 and back, read all the while: never none, never two versions."""
    chunker = Chunker(target_tokens=50)
    sizes = {version: len(prepare(a_document("torn", version, parts(version, 10 if version % 2 else 3)), chunker).chunks)
             for version in (1, 2)}  # fmt: skip
    assert sizes[1] > sizes[2] > 1
    put(store, "a", "e1", [a_document("torn", 1, parts(1, 10))], target_tokens=50)
    ends, failures = time.monotonic() + 5.0, list[BaseException]()

    def write() -> None:
        version = 1
        try:
            with psycopg.connect(store.ingest, autocommit=True) as connection:
                while time.monotonic() < ends:
                    version += 1
                    document = a_document("torn", version, parts(version, 10 if version % 2 else 3))
                    publishing.publish(connection, PLACE, prepare(document, chunker))
        except BaseException as failed:  # noqa: BLE001
            failures.append(failed)

    async def read() -> set[int]:
        versions: set[int] = set()
        async with open_pool(store.app) as connections:
            while time.monotonic() < ends:
                found = [p for p in await ask(connections, "a", "carriage marker", limit=32) if p.doc_id == "torn"]
                seen = {p.doc_version for p in found}
                assert len(seen) == 1
                (version,) = seen
                assert len(found) == sizes[2 - version % 2]
                assert all(f"marker{version}" in p.text for p in found)
                versions.add(version)
        return versions

    writer = threading.Thread(target=write)
    writer.start()
    try:
        versions = asyncio.run(read())
    finally:
        writer.join()
    assert failures == []
    assert len(versions) > 5


def test_an_older_version_that_comes_late_changes_nothing(store: Dsns) -> None:
    """Q-36, Q-38."""
    put(store, "a", "e1", [a_document("late", 7, "Seven.")])
    with psycopg.connect(store.ingest, autocommit=True) as connection:
        late = publishing.publish(connection, PLACE, prepare(a_document("late", 5, "Five."), Chunker()))
    assert late is False
    assert chunks_of(store, "late") == [(7, 0)]


def test_the_database_itself_refuses_to_go_back_or_to_point_at_missing_chunks(store: Dsns) -> None:
    """Q-36, Q-39: whoever writes, and by whatever code."""
    put(store, "a", "e1", [a_document("pointer", 7, "Seven.")])
    for change in ("current_version = 5", "current_version = 8", "chunk_count = 2"):
        with pytest.raises(psycopg.errors.IntegrityError):
            as_tenant(store.ingest, f"update meridian.documents set {change} where doc_id = 'pointer' returning 1")
    assert chunks_of(store, "pointer") == [(7, 0)]


def test_fewer_chunks_leave_no_old_tail(store: Dsns) -> None:
    """Q-39."""
    put(store, "a", "e1", [a_document("tail", 1, parts(1, 10))], target_tokens=50)
    put(store, "a", "e1", [a_document("tail", 2, "Short.")], target_tokens=50)
    assert chunks_of(store, "tail") == [(2, 0)]


def test_a_version_without_text_has_no_chunks_and_takes_the_old_ones_away(store: Dsns) -> None:
    """Q-48."""
    put(store, "a", "e1", [a_document("empty", 1, "Something."), a_document("empty", 2, "")])
    assert chunks_of(store, "empty") == []
    assert as_tenant(
        store.ingest, "select current_version, chunk_count from meridian.documents where doc_id = 'empty'"
    ) == [(2, 0)]


def test_two_workers_with_two_versions_leave_the_later_one_whole(store: Dsns) -> None:
    """Q-44."""
    for turn in range(5):
        versions = [a_document(f"race-{turn}", version, parts(version, 8 - version % 5)) for version in (8, 9)]
        threads = [threading.Thread(target=put, args=(store, "a", "e1", [one], 50)) for one in versions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        kept = chunks_of(store, f"race-{turn}")
        expected = len(prepare(versions[1], Chunker(target_tokens=50)).chunks)
        assert kept == [(9, ordinal) for ordinal in range(expected)]


def test_the_same_content_under_a_new_version_is_not_embedded_again(
    store: Dsns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q-37."""
    document = a_document("again", 1, parts(1, 4))
    put(store, "a", "e1", [document])
    before = as_tenant(store.ingest, "select embedding::text from meridian.chunks where doc_id = 'again'")
    known = Stored(1, document.content_hash, document.acl_groups, len(before))
    monkeypatch.setattr(embedding, "embed", lambda texts: pytest.fail("embedded again"))
    with psycopg.connect(store.ingest, autocommit=True) as connection:
        assert publishing.republish(connection, PLACE, replace(document, version=2), known)
    assert chunks_of(store, "again") == [(2, n) for n in range(len(before))]
    assert as_tenant(store.ingest, "select embedding::text from meridian.chunks where doc_id = 'again'") == before


def test_changed_groups_take_effect_on_pointer_and_chunks_at_once(store: Dsns) -> None:
    """Q-40."""
    document = a_document("rights", 1, "About rights of uvwxyz.")
    put(store, "a", "e1", [document])
    known = Stored(1, document.content_hash, document.acl_groups, 1)
    with psycopg.connect(store.ingest, autocommit=True) as connection:
        publishing.republish(connection, PLACE, replace(document, acl_groups=("legal",)), known)

    async def visible_to(group: str) -> bool:
        async with open_pool(store.app) as connections:
            return "rights" in {p.doc_id for p in await ask(connections, "a", "rights of uvwxyz", groups=(group,))}

    assert not asyncio.run(visible_to(GROUPS[0]))
    assert asyncio.run(visible_to("legal"))


def test_every_chunk_carries_what_it_came_from(store: Dsns) -> None:
    """S-60, Q-59: tenant, document, version, chunk id, groups, location, embedding model, epoch."""
    put(
        store,
        "a",
        "e1",
        [a_document("whole", 3, "# Title\n\nIntro.\n\n## Späte Rückgabe\n\n" + "Text. " * 60)],
        target_tokens=60,
    )
    rows = as_tenant(
        store.ingest,
        "select tenant_id, doc_id, version, chunk_id, acl_groups, source_uri, anchor, embedding_model, epoch,"
        " vector_dims(embedding) from meridian.chunks where doc_id = 'whole' order by ordinal",
    )
    assert len({row[3] for row in rows}) == len(rows) > 1
    assert rows[0][6] == "title"
    assert rows[-1] == (
        "a", "whole", 3, rows[-1][3], ["staff"], "https://docs.example/whole", "späte-rückgabe", embedding.IDENT, "e1", 256,
    )  # fmt: skip


def test_nothing_is_written_where_the_operator_made_no_partition(store: Dsns) -> None:
    with psycopg.connect(store.ingest, autocommit=True) as connection, pytest.raises(publishing.NoPartition):
        publishing.publish(connection, Place("a", "e9", "source"), prepare(a_document(), Chunker()))
