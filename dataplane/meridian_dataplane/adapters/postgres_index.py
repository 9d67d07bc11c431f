"""Hybrid retrieval: one SQL statement with tenant, groups, epoch and current version in both legs (S-13).

The vector leg is an exact scan of the partition of one tenant and epoch: there is no approximate index that a filter could
starve. The keyword leg weighs words by their rarity among the rows that this caller may see, so that no score tells about
other tenants or other groups (Q-26). Reciprocal rank fusion joins them; `reranking` may reorder the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import LiteralString

from meridian_dataplane import normaliser, reranking
from meridian_dataplane.adapters import embedding
from meridian_dataplane.adapters.postgres import Pool, Row, tenant_transaction
from meridian_dataplane.calls import Passage
from meridian_dataplane.ports import StoreUnavailable

MAX_TERMS = 32
"""Distinct words of a question that the keyword leg looks at."""
PER_DOCUMENT = 3
"""Chunks of one document among the result, so that one long document cannot fill it (Q-67)."""

# The one place that says what a caller may see; every leg is built on it.
_VISIBLE: LiteralString = """
  from meridian.chunks c
  join meridian.documents d on d.tenant_id = c.tenant_id and d.epoch = c.epoch and d.doc_id = c.doc_id
   and d.current_version = c.version and not d.deleted
 where c.tenant_id = %(tenant)s::text and c.epoch = %(epoch)s::text
   and c.acl_groups && %(groups)s::text[] and d.acl_groups && %(groups)s::text[]
   and c.embedding_model = %(embedding)s::text
"""

_RETRIEVE: LiteralString = f"""
with epoch as (select e.embedding_model from meridian.epochs e where e.name = %(epoch)s::text),
near as (
  select c.doc_id, c.version, c.ordinal,
         row_number() over (order by c.embedding <=> %(vector)s::vector, c.doc_id, c.ordinal) as place
  {_VISIBLE} order by place limit %(candidates)s::int
),
terms as (
  select distinct to_tsquery('english', word) as term from unnest(%(words)s::text[]) word
   where numnode(to_tsquery('english', word)) > 0
),
seen as (select count(*)::float8 as chunks {_VISIBLE}),
hits as (
  select c.doc_id, c.version, c.ordinal, t.term, count(*) over (partition by t.term::text)::float8 as found
  from (select c.doc_id, c.version, c.ordinal, c.tsv {_VISIBLE}) c join terms t on c.tsv @@ t.term
),
words as (
  select h.doc_id, h.version, h.ordinal,
         row_number() over (order by sum(ln(1 + (s.chunks - h.found + 0.5) / (h.found + 0.5))) desc, h.doc_id, h.ordinal) as place
  from hits h, seen s group by h.doc_id, h.version, h.ordinal order by place limit %(candidates)s::int
),
fused as (
  select doc_id, version, ordinal, sum(1.0 / (60 + place))::float8 as score
  from (select * from near union all select * from words) legs
  group by doc_id, version, ordinal order by score desc, doc_id, ordinal limit %(candidates)s::int
)
select e.embedding_model as built_with, f.score, c.doc_id, c.version, c.chunk_id, c.title, c.source_uri, c.body
from epoch e
left join fused f on true
left join meridian.chunks c on c.tenant_id = %(tenant)s::text and c.epoch = %(epoch)s::text
  and c.doc_id = f.doc_id and c.version = f.version and c.ordinal = f.ordinal
order by f.score desc, f.doc_id, f.ordinal
"""


@dataclass(frozen=True)
class PostgresIndex:
    """The Index port on PostgreSQL with pgvector."""

    connections: Pool

    async def retrieve(
        self,
        *,
        tenant: str,
        groups: tuple[str, ...],
        epoch: str,
        embedding: str,
        question: str,
        candidates: int,
        limit: int,
        rerank: bool,
        timeout_s: float,
    ) -> Sequence[Passage]:
        """See ports.Index. Raises StoreUnavailable for an epoch that is not here or was built with another model (Q-55)."""
        started = monotonic()
        vector = await _question_vector(question, embedding)
        parameters = {
            "tenant": tenant,
            "groups": list(groups),
            "epoch": epoch,
            "embedding": embedding,
            "vector": vector,
            "words": list(dict.fromkeys(normaliser.tokens(question)))[:MAX_TERMS],
            "candidates": max(candidates, limit),
        }
        async with tenant_transaction(self.connections, tenant, timeout_s - (monotonic() - started)) as connection:
            rows = await (await connection.execute(_RETRIEVE, parameters)).fetchall()
        if not rows:
            raise StoreUnavailable(f"epoch {epoch!r} is not in this store")
        if rows[0]["built_with"] != embedding:
            raise StoreUnavailable(f"epoch {epoch!r} was built with another embedding model than {embedding!r}")
        found = [_passage(row) for row in rows if row["doc_id"] is not None]
        ordered = reranking.rerank(question, found) if rerank else found
        return capped(ordered, limit)


async def _question_vector(question: str, ident: str) -> str:
    if ident != embedding.IDENT:
        raise StoreUnavailable(f"this data plane embeds with {embedding.IDENT!r}, the release asks for {ident!r}")
    try:
        return embedding.literal(await embedding.embed_question(question))
    except embedding.Unembeddable as refused:
        raise StoreUnavailable(str(refused)) from refused


def _passage(row: Row) -> Passage:
    return Passage(
        doc_id=row["doc_id"],
        doc_version=row["version"],
        chunk_id=row["chunk_id"],
        title=row["title"],
        source_uri=row["source_uri"],
        text=row["body"],
        score=row["score"],
    )


def capped(passages: Sequence[Passage], limit: int) -> tuple[Passage, ...]:
    """The first `limit`, at most PER_DOCUMENT of one document unless nothing else is left (a caller gets min(k, visible))."""
    taken: list[Passage] = []
    surplus: list[Passage] = []
    for passage in passages:
        same = sum(other.doc_id == passage.doc_id for other in taken)
        (taken if same < PER_DOCUMENT else surplus).append(passage)
    return tuple((taken + surplus)[:limit])
