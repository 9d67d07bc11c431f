"""Publishing documents in tests, by the ingestion's own code, and reading them as the data plane does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg

from meridian_api.v1alpha1.indexepoch import Chunker
from meridian_cluster.postgres_roles import Dsns
from meridian_dataplane.adapters import embedding
from meridian_dataplane.adapters.postgres import Pool
from meridian_dataplane.adapters.postgres_index import PostgresIndex
from meridian_dataplane.calls import Passage
from meridian_dataplane.ingestion.building import prepare
from meridian_dataplane.ingestion.documents import SourceDocument
from meridian_dataplane.ingestion.publishing import Place, publish

SCHEMA = Path(__file__).parents[2] / "operator/meridian_operator/store/schema.sql"
GROUPS = ("staff",)


def a_document(
    doc_id: str = "d1", version: int = 1, text: str = "Refunds take five days.", **changed: Any
) -> SourceDocument:
    values = {"title": "Refunds", "source_uri": f"https://docs.example/{doc_id}", "acl_groups": GROUPS, **changed}
    return SourceDocument(doc_id=doc_id, version=version, text=text, **values)


def announce(store: Dsns, *epochs: str) -> None:
    """The epochs' rows, as the index Job writes them."""
    with psycopg.connect(store.ingest) as connection:
        for epoch in epochs:
            connection.execute(
                "insert into meridian.epochs (name, uid, embedding_model, dimension, chunker, normaliser)"
                " values (%s, 'u', %s, 256, 'markdown-1/400/0', 'nfkc-1') on conflict do nothing",
                [epoch, embedding.IDENT],
            )


def put(store: Dsns, tenant: str, epoch: str, documents: Sequence[SourceDocument], target_tokens: int = 400) -> None:
    chunker = Chunker(target_tokens=target_tokens)
    with psycopg.connect(store.ingest, autocommit=True) as connection:
        for document in documents:
            publish(connection, Place(tenant, epoch, "source"), prepare(document, chunker))


@asynccontextmanager
async def open_pool(dsn: str, permits: int = 2) -> AsyncIterator[Pool]:
    connections = Pool(dsn, permits=permits)
    await connections.open()
    try:
        yield connections
    finally:
        await connections.close()


async def ask(connections: Pool, tenant: str, question: str, **changed: Any) -> Sequence[Passage]:
    asked = {
        "groups": GROUPS,
        "epoch": "e1",
        "embedding": embedding.IDENT,
        "candidates": 40,
        "limit": 6,
        "rerank": True,
        "timeout_s": 10.0,
        **changed,
    }
    return await PostgresIndex(connections).retrieve(tenant=tenant, question=question, **asked)
