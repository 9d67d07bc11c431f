"""Writes documents so that a reader sees the old version or the new one, whole (S-61, Q-36 to Q-44)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from meridian_dataplane import normaliser
from meridian_dataplane.adapters import embedding
from meridian_dataplane.ingestion.chunking import Chunk
from meridian_dataplane.ingestion.documents import SourceDocument

Connection = psycopg.Connection[Any]


class NoPartition(Exception):
    """The operator has not made the tenant's partition of this epoch (yet)."""


@dataclass(frozen=True)
class Place:
    """Where documents go."""

    tenant: str
    epoch: str
    source: str


@dataclass(frozen=True)
class Stored:
    """What the store holds of a document."""

    version: int
    content_hash: str
    acl_groups: tuple[str, ...]
    chunks: int


@dataclass(frozen=True)
class Prepared:
    """A document with the chunks that belong to it and their vectors, in order."""

    document: SourceDocument
    chunks: tuple[Chunk, ...] = field(repr=False)
    vectors: tuple[list[float], ...] = field(repr=False)


@contextmanager
def as_tenant(connection: Connection, tenant: str) -> Iterator[Connection]:
    """A transaction that row-level security ties to `tenant`."""
    with connection.transaction():
        connection.execute("select set_config('app.tenant', %s, true)", [tenant])
        yield connection


def stored(connection: Connection, tenant: str, epoch: str) -> dict[str, Stored]:
    """What is published already: a build that was killed goes on from here, and nothing is embedded twice (Q-37)."""
    with as_tenant(connection, tenant):
        rows = connection.execute(
            "select doc_id, current_version, content_hash, acl_groups, chunk_count from meridian.documents"
            " where tenant_id = %s and epoch = %s and not deleted",
            [tenant, epoch],
        ).fetchall()
    return {row[0]: Stored(row[1], row[2], tuple(row[3]), row[4]) for row in rows}


def publish(connection: Connection, place: Place, prepared: Prepared) -> bool:
    """Publish one document in one transaction; False when the store holds a later version already (superseded, Q-36)."""
    document = prepared.document

    def write() -> None:
        _insert_chunks(connection, place, prepared)

    return _publish(connection, place, document, len(prepared.chunks), write)


def republish(connection: Connection, place: Place, document: SourceDocument, known: Stored) -> bool:
    """The same content under another version or other groups: chunks and vectors are kept, nothing is embedded."""
    if known.version == document.version:
        with as_tenant(connection, place.tenant):
            for table in ("documents", "chunks"):
                changed = sql.SQL(
                    "update meridian.{} set acl_groups = %s::text[] where tenant_id = %s and epoch = %s and doc_id = %s"
                ).format(sql.Identifier(table))
                connection.execute(changed, [list(document.acl_groups), place.tenant, place.epoch, document.doc_id])
        return True

    def write() -> None:
        connection.execute(
            """
            insert into meridian.chunks (tenant_id, epoch, doc_id, version, ordinal, chunk_id, title, source_uri, anchor,
                                         body, acl_groups, embedding, embedding_model, tsv)
            select tenant_id, epoch, doc_id, %s, ordinal, chunk_id, title, source_uri, anchor,
                   body, %s::text[], embedding, embedding_model, tsv
              from meridian.chunks where tenant_id = %s and epoch = %s and doc_id = %s and version = %s
            """,
            [document.version, list(document.acl_groups), place.tenant, place.epoch, document.doc_id, known.version],
        )

    return _publish(connection, place, document, known.chunks, write)


def _publish(
    connection: Connection, place: Place, document: SourceDocument, chunks: int, write_chunks: Callable[[], None]
) -> bool:
    key = [place.tenant, place.epoch, document.doc_id]
    with as_tenant(connection, place.tenant):
        # Two workers with two versions of one document: one after the other, and the later version stays.
        connection.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", ["\x01".join(key)])
        row = connection.execute(
            "select current_version from meridian.documents where tenant_id = %s and epoch = %s and doc_id = %s", key
        ).fetchone()
        if row and row[0] > document.version:
            return False
        connection.execute(
            "delete from meridian.chunks where tenant_id = %s and epoch = %s and doc_id = %s and version = %s",
            [*key, document.version],
        )
        write_chunks()
        connection.execute(
            """
            insert into meridian.document_versions
              (tenant_id, epoch, doc_id, version, title, source_uri, body, content_hash)
            values (%s, %s, %s, %s, %s, %s, %s, %s)
            on conflict (tenant_id, epoch, doc_id, version) do update
              set title = excluded.title, source_uri = excluded.source_uri, body = excluded.body,
                  content_hash = excluded.content_hash, published_at = now()
            """,
            [*key, document.version, document.title, document.source_uri, document.text, document.content_hash],
        )
        # The one row that makes it current; a trigger checks the count of chunks and removes the older ones.
        connection.execute(
            """
            insert into meridian.documents
              (tenant_id, epoch, doc_id, current_version, acl_groups, source, content_hash, chunk_count)
            values (%s, %s, %s, %s, %s::text[], %s, %s, %s)
            on conflict (tenant_id, epoch, doc_id) do update
              set current_version = excluded.current_version, acl_groups = excluded.acl_groups, source = excluded.source,
                  content_hash = excluded.content_hash, chunk_count = excluded.chunk_count, deleted = false,
                  published_at = now()
            """,
            [*key, document.version, list(document.acl_groups), place.source, document.content_hash, chunks],
        )
    return True


def _insert_chunks(connection: Connection, place: Place, prepared: Prepared) -> None:
    document = prepared.document
    rows: Sequence[tuple[Any, ...]] = [
        (
            place.tenant, place.epoch, document.doc_id, document.version, ordinal, f"{document.doc_id}.{ordinal}",
            document.title, document.source_uri, chunk.anchor, chunk.text, list(document.acl_groups),
            embedding.literal(vector), embedding.IDENT, normaliser.searchable(chunk.embedded_text(document.title)),
        )
        for ordinal, (chunk, vector) in enumerate(zip(prepared.chunks, prepared.vectors, strict=True))
    ]  # fmt: skip
    if not rows:
        return
    try:
        with connection.cursor() as cursor:
            cursor.executemany(
                """
                insert into meridian.chunks (tenant_id, epoch, doc_id, version, ordinal, chunk_id, title, source_uri, anchor,
                                             body, acl_groups, embedding, embedding_model, tsv)
                values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::text[], %s::vector, %s, to_tsvector('english', %s))
                """,
                rows,
            )
    except psycopg.errors.CheckViolation as missing:
        raise NoPartition(f"no partition for tenant {place.tenant} and epoch {place.epoch}") from missing
