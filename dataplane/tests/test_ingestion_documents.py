"""Lines into documents, documents into chunks: bounded, cleaned, named when wrong (Q-46 to Q-49)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dataplane_world import a_chunk, a_passage, a_world, bearer, named
from hypothesis import given
from hypothesis import strategies as st

from meridian_dataplane.doubles import MemoryIndex
from meridian_dataplane.ingestion import documents
from meridian_dataplane.ingestion.chunking import chunk, sections

GOOD = {"docId": "d", "version": 1, "title": "T", "sourceUri": "https://x", "aclGroups": ["g"], "text": "Text."}


def line(**changed: Any) -> bytes:
    value = {**GOOD, **changed}
    return json.dumps({name: part for name, part in value.items() if part is not ...}).encode()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (line(text=...), "text is missing"),
        (line(tenant="b"), "unknown field 'tenant'"),
        (line(version="1"), "version must be"),
        (line(version=True), "version must be"),
        (line(version=-1), "version must be"),
        (line(docId=""), "docId must be 1 to 120 characters"),
        (line(docId="docs/returns.md"), "docId must be 1 to 120 characters"),
        (line(docId="../x"), "docId must be 1 to 120 characters"),
        (line(docId="Rückgabe"), "docId must be 1 to 120 characters"),
        (line(docId="a b"), "docId must be 1 to 120 characters"),
        (line(docId="a\x00b"), "docId must be 1 to 120 characters"),
        (line(docId="a\n"), "docId must be 1 to 120 characters"),
        (line(docId="x" * 121), "docId must be 1 to 120 characters"),
        (line(docId=7), "docId must be a text"),
        (line(aclGroups="staff"), "aclGroups must be a list"),
        (line(aclGroups=[1]), "aclGroups must hold"),
        (line(aclGroups=["g"] * 300), "aclGroups must be a list"),
        (line(title="t" * 501), "title must have"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_line_names_its_field(text: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        documents.parse(text)


@pytest.mark.parametrize("doc_id", ["d", "7", "FAQ-118", "a.b_c-1..2", "x" * 120])
async def test_every_id_that_comes_in_can_be_opened_from_a_citation(doc_id: str) -> None:
    """Q-59, H-26: what ingestion takes, the documents route takes too."""
    document = documents.parse(line(docId=doc_id))
    world = a_world(index=MemoryIndex([a_chunk(a_passage(document.doc_id))]))
    (shown,) = named(await world.ask(), "citations")[0]["citations"]
    async with world.client() as client:
        assert (await client.get(shown["url"], headers=bearer())).json()["docId"] == doc_id


def test_bad_lines_are_counted_by_number_and_stop_no_other(tmp_path: Path) -> None:
    """Q-49: one too long, one broken, one of the same version with other content; the rest is read."""
    file = tmp_path / "documents.jsonl"
    lines = [line(), b"{", line(docId="e"), b'"' + b"x" * 2_000_010 + b'"', line(text="Other."), b"", line(docId="f")]
    file.write_bytes(b"\n".join(lines))
    good, bad = documents.read(file)
    assert [document.doc_id for document in good] == ["d", "e", "f"]
    assert [wrong.number for wrong in bad] == [2, 4, 5]


def test_the_highest_version_of_a_document_counts_in_any_order(tmp_path: Path) -> None:
    """Q-36."""
    file = tmp_path / "documents.jsonl"
    file.write_bytes(b"\n".join(line(version=version) for version in (2, 7, 5)))
    good, bad = documents.read(file)
    assert ([document.version for document in good], bad) == ([7], ())


def test_nul_and_lone_surrogates_are_cleaned_away(tmp_path: Path) -> None:
    """Q-46."""
    assert documents.parse(line(text="a\x00b\ud800c", title="T\x00")).text == "ab?c"


def test_every_document_belongs_to_exactly_one_shard() -> None:
    every = [documents.parse(line(docId=f"d{n}")) for n in range(200)]
    shares = [documents.of_shard(every, "a", shard, 3) for shard in range(3)]
    assert sorted(d.doc_id for share in shares for d in share) == sorted(d.doc_id for d in every)
    assert all(len(share) > 30 for share in shares)


def words(texts: Any) -> list[int]:
    return [len(text.split()) for text in texts]


def test_headings_become_anchors_and_code_is_no_heading() -> None:
    """Q-59."""
    text = "# Guide\n\nIntro.\n\n## Setup\n\n```\n# not a heading\n```\n\n## Setup\n\nAgain.\n\n## Empty\n\n### Last one!\n\nEnd."
    found = [(section.heading, section.anchor) for section in sections(text)]
    assert found == [("Guide", "guide"), ("Setup", "setup"), ("Setup", "setup-1"), ("Last one!", "last-one")]
    assert "## Empty" in sections(text)[-1].text


def test_sections_are_packed_up_to_the_target_and_cut_at_headings_first() -> None:
    text = "\n\n".join(f"## H{n}\n\n" + "word " * 30 for n in range(6))
    chunks = chunk(text, target_tokens=70, overlap_tokens=0, count=words)
    assert [piece.anchor for piece in chunks] == ["h0", "h2", "h4"]


def test_overlap_repeats_the_end_of_the_chunk_before() -> None:
    text = "\n\n".join(f"## H{n}\n\n" + f"word{n} " * 20 for n in range(4))
    chunks = chunk(text, target_tokens=70, overlap_tokens=25, count=words)
    assert "word2" in chunks[0].text and "word2" in chunks[1].text and "word0" not in chunks[1].text


@given(st.text(max_size=3000), st.integers(5, 60), st.integers(0, 30))
def test_any_text_is_chunked_within_the_target_and_without_loss(text: str, target: int, overlap: int) -> None:
    """Q-47, Q-48: whatever the text, every word is in some chunk, and none is above the target."""
    chunks = chunk(text, target_tokens=target, overlap_tokens=overlap, count=words)
    assert all(len(piece.text.split()) <= target for piece in chunks)
    assert sorted(set(" ".join(piece.text for piece in chunks).split())) == sorted(set(text.split()))
