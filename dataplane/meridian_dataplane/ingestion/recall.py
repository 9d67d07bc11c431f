"""Recall at 6 of a built epoch, by the data plane's own retrieval and each case's own identity."""

from __future__ import annotations

from collections.abc import Sequence

from meridian_dataplane.adapters.postgres import Pool
from meridian_dataplane.adapters.postgres_index import PostgresIndex
from meridian_dataplane.golden import GoldenCase

LIMIT = 6
CANDIDATES = 40


async def at_6(dsn: str, epoch: str, embedding: str, cases: Sequence[GoldenCase]) -> float | None:
    """The mean share of required documents among six passages; None when no case requires any.

    A case whose retrieval fails ends the measurement: a recall over what happened to work would be too good (Q-71).
    """
    judged = [case for case in cases if case.required_documents]
    if not judged:
        return None
    connections = Pool(dsn, permits=2, name="recall")
    await connections.open()
    try:
        index = PostgresIndex(connections)
        return sum([await _of_case(index, epoch, embedding, case) for case in judged]) / len(judged)
    finally:
        await connections.close()


async def _of_case(index: PostgresIndex, epoch: str, embedding: str, case: GoldenCase) -> float:
    passages = await index.retrieve(
        tenant=case.tenant,
        groups=case.groups,
        epoch=epoch,
        embedding=embedding,
        question=case.question,
        candidates=CANDIDATES,
        limit=LIMIT,
        rerank=True,
        timeout_s=10.0,
    )
    found = {passage.doc_id for passage in passages}
    return sum(doc in found for doc in case.required_documents) / len(case.required_documents)
