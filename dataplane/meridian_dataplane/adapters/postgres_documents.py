"""Documents as a caller may see them now: the check before a citation is sent, and the page behind it (S-18, S-63)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import LiteralString

from meridian_dataplane.adapters.postgres import Pool, tenant_transaction
from meridian_dataplane.calls import CitedChunk, Document

_CURRENT: LiteralString = """
select wanted.place
from unnest(%(docs)s::text[], %(versions)s::bigint[], %(chunks)s::text[]) with ordinality
  as wanted (doc_id, version, chunk_id, place)
join meridian.documents d on d.tenant_id = %(tenant)s::text and d.epoch = %(epoch)s::text and d.doc_id = wanted.doc_id
 and d.current_version = wanted.version and not d.deleted and d.acl_groups && %(groups)s::text[]
join meridian.chunks c on c.tenant_id = %(tenant)s::text and c.epoch = %(epoch)s::text and c.doc_id = wanted.doc_id
 and c.version = wanted.version and c.chunk_id = wanted.chunk_id and c.acl_groups && %(groups)s::text[]
"""

# The groups of today decide, also for an older version: a right that was taken away does not live on in the past.
_READ: LiteralString = """
select v.version, v.title, v.source_uri, v.body, v.version = d.current_version as current
from meridian.documents d
join meridian.document_versions v on v.tenant_id = d.tenant_id and v.epoch = d.epoch and v.doc_id = d.doc_id
where d.tenant_id = %(tenant)s::text and d.epoch = %(epoch)s::text and d.doc_id = %(doc)s::text
  and not d.deleted and d.acl_groups && %(groups)s::text[]
  and v.version = coalesce(%(version)s::bigint, d.current_version)
"""

_BIGGEST_VERSION = 2**63 - 1


@dataclass(frozen=True)
class PostgresDocuments:
    """The Documents port."""

    connections: Pool

    async def current(
        self, *, tenant: str, groups: tuple[str, ...], epoch: str, chunks: Sequence[CitedChunk], timeout_s: float
    ) -> frozenset[CitedChunk]:
        """See ports.Documents: one statement, however many chunks."""
        if not chunks:
            return frozenset()
        parameters = {
            "tenant": tenant,
            "groups": list(groups),
            "epoch": epoch,
            "docs": [chunk.doc_id for chunk in chunks],
            "versions": [chunk.doc_version for chunk in chunks],
            "chunks": [chunk.chunk_id for chunk in chunks],
        }
        async with tenant_transaction(self.connections, tenant, timeout_s) as connection:
            rows = await (await connection.execute(_CURRENT, parameters)).fetchall()
        return frozenset(chunks[row["place"] - 1] for row in rows)

    async def read(
        self, *, tenant: str, groups: tuple[str, ...], epoch: str, doc_id: str, version: int | None, timeout_s: float
    ) -> Document | None:
        """See ports.Documents. What cannot be an id or a version (NUL, out of range) does not exist."""
        if "\x00" in doc_id or (version is not None and not 0 <= version <= _BIGGEST_VERSION):
            return None
        parameters = {"tenant": tenant, "groups": list(groups), "epoch": epoch, "doc": doc_id, "version": version}
        async with tenant_transaction(self.connections, tenant, timeout_s) as connection:
            row = await (await connection.execute(_READ, parameters)).fetchone()
        if row is None:
            return None
        return Document(
            doc_id=doc_id,
            doc_version=row["version"],
            title=row["title"],
            source_uri=row["source_uri"],
            text=row["body"],
            current=row["current"],
        )
