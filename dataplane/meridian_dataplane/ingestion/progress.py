"""The rows by which the operator sees a build: epochs, epoch_shards, epoch_sources."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

from psycopg import sql

from meridian_api.v1alpha1.indexepoch import IndexEpochSpec
from meridian_dataplane.ingestion.publishing import Connection, Place, as_tenant


@dataclass(frozen=True)
class Epoch:
    """What to build."""

    name: str
    uid: str
    spec: IndexEpochSpec


@dataclass
class SourceProgress:
    """Counts of one source in one shard, as they grow."""

    documents_total: int
    bad_lines: int = 0
    documents: int = 0
    chunks: int = 0
    embedded: int = 0
    error: str = ""


def _lock(connection: Connection, epoch: Epoch) -> None:
    connection.execute("select pg_advisory_xact_lock(hashtextextended(%s, 1))", [epoch.name])


def begin(connection: Connection, epoch: Epoch, shard: int) -> None:
    """Announce this shard. A name that belonged to another epoch is emptied first: a name used again is a new thing."""
    spec = epoch.spec
    with connection.transaction():
        _lock(connection, epoch)
        row = connection.execute("select uid from meridian.epochs where name = %s", [epoch.name]).fetchone()
        if row and row[0] != epoch.uid:
            _empty(connection, epoch)
        connection.execute(
            """
            insert into meridian.epochs (name, uid, embedding_model, dimension, chunker, normaliser, shards)
            values (%s, %s, %s, %s, %s, %s, %s)
            on conflict (name) do update set
              uid = excluded.uid, embedding_model = excluded.embedding_model, dimension = excluded.dimension,
              chunker = excluded.chunker, normaliser = excluded.normaliser, shards = excluded.shards, updated_at = now(),
              error = '', state = case when epochs.uid = excluded.uid and epochs.state = 'built' then 'built' else 'building' end
            """,
            [
                epoch.name, epoch.uid, spec.embedding.ident, spec.embedding.dimension,
                f"{spec.chunker.name}/{spec.chunker.target_tokens}/{spec.chunker.overlap_tokens}", spec.normaliser, spec.shards,
            ],
        )  # fmt: skip
        connection.execute(
            """
            insert into meridian.epoch_shards (epoch, shard) values (%s, %s)
            on conflict (epoch, shard) do update set state = 'running', error = '', updated_at = now()
            """,
            [epoch.name, shard],
        )


def _empty(connection: Connection, epoch: Epoch) -> None:
    for tenant in epoch.spec.tenants:
        connection.execute("select set_config('app.tenant', %s, true)", [tenant])
        for table in ("chunks", "documents", "document_versions", "epoch_sources"):
            gone = sql.SQL("delete from meridian.{} where tenant_id = %s and epoch = %s").format(sql.Identifier(table))
            connection.execute(gone, [tenant, epoch.name])
    connection.execute("delete from meridian.epoch_shards where epoch = %s", [epoch.name])
    connection.execute(
        "update meridian.epochs set state = 'building', documents = 0, documents_total = 0, chunks = 0, bad_lines = 0,"
        " corpus_fingerprint = '', golden_digest = '', recall_at_6 = null, started_at = now(), built_at = null where name = %s",
        [epoch.name],
    )


def report(connection: Connection, place: Place, shard: int, progress: SourceProgress) -> None:
    """Write how far a source is."""
    with as_tenant(connection, place.tenant):
        connection.execute(
            """
            insert into meridian.epoch_sources
              (tenant_id, epoch, source, shard, documents, documents_total, chunks, embedded, bad_lines, error)
            values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
            on conflict (tenant_id, epoch, source, shard) do update set
              documents = excluded.documents, documents_total = excluded.documents_total, chunks = excluded.chunks,
              embedded = excluded.embedded, bad_lines = excluded.bad_lines, error = excluded.error, updated_at = now()
            """,
            [
                place.tenant, place.epoch, place.source, shard, progress.documents, progress.documents_total,
                progress.chunks, progress.embedded, progress.bad_lines, progress.error,
            ],
        )  # fmt: skip


def end_shard(connection: Connection, epoch: Epoch, shard: int, error: str) -> bool:
    """Mark this shard done (or failed, with the reason); True for the one that finds every shard done."""
    with connection.transaction():
        _lock(connection, epoch)
        connection.execute(
            "update meridian.epoch_shards set state = %s, error = %s, updated_at = now() where epoch = %s and shard = %s",
            ["failed" if error else "done", error[:1000], epoch.name, shard],
        )
        if error:
            fail(connection, epoch, error)
            return False
        row = connection.execute(
            "select count(*) from meridian.epoch_shards where epoch = %s and state = 'done'", [epoch.name]
        ).fetchone()
    return bool(row and row[0] >= epoch.spec.shards)


def fail(connection: Connection, epoch: Epoch, error: str) -> None:
    """The epoch cannot be used; `error` says why and names no content."""
    connection.execute(
        "update meridian.epochs set state = 'failed', error = %s, updated_at = now() where name = %s and uid = %s",
        [error[:1000], epoch.name, epoch.uid],
    )


def complete(connection: Connection, epoch: Epoch, recall: float | None, golden_digest: str) -> dict[str, Any]:
    """Mark the epoch built, with what it holds. Safe to repeat: everything is counted again from the rows."""
    documents = chunks = bad = 0
    contents: list[str] = []
    with connection.transaction():
        _lock(connection, epoch)
        for tenant in sorted(epoch.spec.tenants):
            connection.execute("select set_config('app.tenant', %s, true)", [tenant])
            rows = _rows(
                connection,
                "select doc_id, current_version, content_hash, chunk_count from meridian.documents"
                " where tenant_id = %s and epoch = %s and not deleted",
                [tenant, epoch.name],
            )
            documents += len(rows)
            chunks += sum(row[3] for row in rows)
            contents += [f"{tenant}/{row[0]}@{row[1]}@{row[2]}" for row in rows]
            counted = _rows(
                connection,
                "select coalesce(sum(bad_lines), 0)::bigint from meridian.epoch_sources where tenant_id = %s and epoch = %s",
                [tenant, epoch.name],
            )
            bad += counted[0][0]
        found = {"documents": documents, "chunks": chunks, "fingerprint": fingerprint(contents), "recall": recall}
        connection.execute(
            """
            update meridian.epochs set state = 'built', documents = %(documents)s, documents_total = %(documents)s,
              chunks = %(chunks)s, bad_lines = %(bad)s, corpus_fingerprint = %(fingerprint)s, recall_at_6 = %(recall)s,
              golden_digest = %(golden)s, error = '', built_at = coalesce(built_at, now()), updated_at = now()
             where name = %(name)s and uid = %(uid)s
            """,
            {**found, "bad": bad, "golden": golden_digest, "name": epoch.name, "uid": epoch.uid},
        )
    return found


def fingerprint(contents: Sequence[str]) -> str:
    """Equal for equal corpora, whatever model embedded them: what two evaluations must share to be compared (Q-56)."""
    return "sha256:" + hashlib.sha256("\n".join(sorted(contents)).encode()).hexdigest()


def _rows(connection: Connection, query: LiteralString, parameters: list[Any]) -> list[Any]:
    return connection.execute(query, parameters).fetchall()
