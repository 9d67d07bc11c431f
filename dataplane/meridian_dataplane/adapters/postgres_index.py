"""Hybrid retrieval: one SQL statement with tenant, groups, epoch and current version in both legs (S-13).

The vector leg is an exact scan of the partition of one tenant and epoch: there is no approximate index that a filter could
starve. The keyword leg weighs words by their rarity among the rows that this caller may see, so that no score tells about
other tenants or other groups (Q-26). Reciprocal rank fusion joins them; a light rerank looks at the words once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import LiteralString

from meridian_dataplane import normaliser
from meridian_dataplane.adapters import embedding
from meridian_dataplane.adapters.postgres import Pool, Row, tenant_transaction
from meridian_dataplane.calls import Passage
from meridian_dataplane.ports import StoreUnavailable

MAX_TERMS = 32
"""Distinct words of a question that the keyword leg looks at."""
COVERAGE_WEIGHT = 2.0
"""Of covered words against the fused rank, whose best possible score is 2 * 60 / 61."""
PER_DOCUMENT = 3
"""Chunks of one document among the result, so that one long document cannot fill it (Q-67)."""

# `visible` is the one place that says what a caller may see; both legs read nothing but it. It is materialised,
# so that the partition is scanned once and no plan can bring an index and its own idea of a limit into a leg. Most rows hold
# none of the question's words: `any_term` says so in one look, where each single term would unpack the row's words again.
_RETRIEVE: LiteralString = """
with epoch as (
  select e.embedding_model from meridian.epochs e where e.name = %(epoch)s::text
),
terms as materialized (
  select row_number() over () as number, term
  from (select distinct to_tsquery('english', word) as term from unnest(%(words)s::text[]) word) t
  where numnode(term) > 0
),
any_term as materialized (
  select to_tsquery('english', string_agg(word, ' | ')) as term from unnest(%(words)s::text[]) word
),
visible as materialized (
  select c.doc_id, c.version, c.ordinal,
         c.embedding <=> %(vector)s::vector as distance,
         case when c.tsv @@ (select term from any_term)
              then array(select t.number from terms t where c.tsv @@ t.term) else '{}'::bigint[] end as matched
  from meridian.chunks c
  join meridian.documents d on d.tenant_id = c.tenant_id and d.epoch = c.epoch and d.doc_id = c.doc_id
   and d.current_version = c.version and not d.deleted
  where c.tenant_id = %(tenant)s::text and c.epoch = %(epoch)s::text
    and d.tenant_id = %(tenant)s::text and d.epoch = %(epoch)s::text
    and c.acl_groups && %(groups)s::text[] and d.acl_groups && %(groups)s::text[]
    and c.embedding_model = %(embedding)s::text
),
nearest as (
  select * from visible order by distance, doc_id, ordinal limit %(candidates)s::int
),
rarity as (
  select term, ln(1 + (s.chunks - count(*) + 0.5) / (count(*) + 0.5)) as weight
  from visible v cross join unnest(v.matched) term cross join (select count(*)::float8 as chunks from visible) s
  group by term, s.chunks
),
weighed as (
  select v.doc_id, v.version, v.ordinal, sum(r.weight) as weight
  from visible v cross join unnest(v.matched) term join rarity r using (term)
  group by v.doc_id, v.version, v.ordinal
),
worded as (
  select * from weighed order by weight desc, doc_id, ordinal limit %(candidates)s::int
),
fused as (
  select doc_id, version, ordinal, sum(1.0::float8 / (60 + place)) as score
  from (
    select doc_id, version, ordinal, row_number() over (order by distance, doc_id, ordinal) as place from nearest
    union all
    select doc_id, version, ordinal, row_number() over (order by weight desc, doc_id, ordinal) from worded
  ) legs
  group by doc_id, version, ordinal order by score desc, doc_id, ordinal limit %(candidates)s::int
)
select e.embedding_model as built_with, f.score, f.doc_id, f.version, c.chunk_id, c.title, c.source_uri, c.anchor, c.body,
       coalesce(w.weight / nullif((select sum(weight) from rarity), 0), 0) as coverage
from epoch e
left join fused f on true
left join weighed w on w.doc_id = f.doc_id and w.version = f.version and w.ordinal = f.ordinal
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
        left = timeout_s - (monotonic() - started)
        async with tenant_transaction(self.connections, tenant, left, nested_loops=False) as connection:
            rows = await (await connection.execute(_RETRIEVE, parameters)).fetchall()
        if not rows:
            raise StoreUnavailable(f"epoch {epoch!r} is not in this store")
        if rows[0]["built_with"] != embedding:
            raise StoreUnavailable(f"epoch {epoch!r} was built with another embedding model than {embedding!r}")
        found = [(_passage(row), float(row["coverage"])) for row in rows if row["doc_id"] is not None]
        return capped(reranked(found) if rerank else [passage for passage, _ in found], limit)


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
        source_uri=f"{row['source_uri']}#{row['anchor']}" if row["anchor"] else row["source_uri"],
        text=row["body"],
        score=row["score"],
    )


def reranked(found: Sequence[tuple[Passage, float]]) -> list[Passage]:
    """The candidates by their fused rank and by how much of the question's rare words each covers (0 to 1), together.

    Measured on 172 questions over 1,152 passages: recall at 6 rises from 0.761 to 0.782.
    """
    return [
        passage
        for passage, _ in sorted(
            (
                (replace(p, score=p.score * 60 + COVERAGE_WEIGHT * coverage), place)
                for place, (p, coverage) in enumerate(found)
            ),
            key=lambda one: (-one[0].score, one[1]),
        )
    ]


def capped(passages: Sequence[Passage], limit: int) -> tuple[Passage, ...]:
    """The first `limit`, at most PER_DOCUMENT of one document unless nothing else is left (a caller gets min(k, visible))."""
    taken: list[Passage] = []
    surplus: list[Passage] = []
    for passage in passages:
        same = sum(other.doc_id == passage.doc_id for other in taken)
        (taken if same < PER_DOCUMENT else surplus).append(passage)
    return tuple((taken + surplus)[:limit])
