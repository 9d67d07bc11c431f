"""One shard of an epoch, from sources to the last word on it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meridian_api.v1alpha1.indexepoch import Chunker, Source
from meridian_dataplane import normaliser
from meridian_dataplane.adapters import embedding
from meridian_dataplane.ingestion import documents, progress, publishing
from meridian_dataplane.ingestion.chunking import chunk
from meridian_dataplane.ingestion.documents import SourceDocument
from meridian_dataplane.ingestion.progress import Epoch, SourceProgress
from meridian_dataplane.ingestion.publishing import Connection, Place, Prepared, Stored

log = logging.getLogger(__name__)

BATCH = 16
"""Documents that are embedded together, and after which progress is written."""


class WrongInput(Exception):
    """The epoch cannot be built from what it was given; trying again changes nothing."""


@dataclass(frozen=True)
class Shard:
    """Which part of which epoch this process builds, and where its sources are mounted."""

    epoch: Epoch
    index: int
    sources: Path


def build(connection: Connection, shard: Shard) -> None:
    """Publish this shard's documents. Raises WrongInput after the last one when lines were bad or documents unusable."""
    spec = shard.epoch.spec
    if spec.embedding.ident != embedding.IDENT or spec.embedding.dimension != embedding.DIMENSION:
        raise WrongInput(f"this build embeds with {embedding.IDENT}, the epoch asks for {spec.embedding.ident}")
    if spec.normaliser != normaliser.NAME:
        raise WrongInput(f"this build normalises by {normaliser.NAME}, the epoch asks for {spec.normaliser}")
    wrong = [error for source in spec.sources if (error := _build_source(connection, shard, source))]
    if wrong:
        raise WrongInput("; ".join(wrong))


def _build_source(connection: Connection, shard: Shard, source: Source) -> str:
    """The source's error, empty when all is well. One bad document never stops the others (Q-49)."""
    place = Place(source.tenant, shard.epoch.name, source.name)
    path = shard.sources / source.name / "documents.jsonl"
    if not path.is_file():
        return f"source {source.name}: documents.jsonl is not mounted"
    every, bad = documents.read(path)
    mine = documents.of_shard(every, source.tenant, shard.index, shard.epoch.spec.shards)
    # Bad lines have no id to hash: the first shard counts them, so that they count once.
    counted = bad if shard.index == 0 else ()
    state = SourceProgress(documents_total=len(mine), bad_lines=len(counted))
    if counted:
        state.error = f"source {source.name}, line {counted[0].number}: {counted[0].why}" + (
            f" (and {len(counted) - 1} more)" if len(counted) > 1 else ""
        )
    known = publishing.stored(connection, source.tenant, shard.epoch.name)
    progress.report(connection, place, shard.index, state)
    for start in range(0, len(mine), BATCH):
        group = mine[start : start + BATCH]
        for error in _publish_batch(connection, place, shard.epoch.spec.chunker, group, known, state):
            state.error = state.error or f"source {source.name}, {error}"
        progress.report(connection, place, shard.index, state)
    return state.error


def _publish_batch(
    connection: Connection,
    place: Place,
    chunker: Chunker,
    group: Sequence[SourceDocument],
    known: dict[str, Stored],
    state: SourceProgress,
) -> list[str]:
    errors: list[str] = []
    for document in group:
        there = known.get(document.doc_id)
        if there and (there.version > document.version or there.content_hash == document.content_hash):
            if there.version < document.version or (
                there.version == document.version and there.acl_groups != document.acl_groups
            ):
                publishing.republish(connection, place, document, there)
            state.documents += 1
            state.chunks += there.chunks
            continue
        try:
            prepared = prepare(document, chunker)
        except embedding.Unembeddable as refused:
            errors.append(f"document {document.doc_id}: {refused}")
            continue
        publishing.publish(connection, place, prepared)
        state.documents += 1
        state.chunks += len(prepared.chunks)
        state.embedded += len(prepared.chunks)
    return errors


def prepare(document: SourceDocument, chunker: Chunker) -> Prepared:
    """Chunks and vectors of a document. Raises Unembeddable."""
    chunks = chunk(
        document.text,
        target_tokens=chunker.target_tokens,
        overlap_tokens=chunker.overlap_tokens,
        count=embedding.count_tokens,
    )
    vectors = embedding.embed([piece.embedded_text(document.title) for piece in chunks])
    return Prepared(document, chunks, tuple(vectors))
