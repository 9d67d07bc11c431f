"""Reads `documents.jsonl`: bounded, cleaned, every wrong line named and none of them stopping the others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meridian_dataplane.calls import DOC_ID

MAX_LINE_BYTES = 2_000_000
MAX_TEXT = 1_000_000
MAX_GROUPS = 256
_FIELDS = {"docId", "version", "title", "sourceUri", "aclGroups", "text"}


@dataclass(frozen=True)
class SourceDocument:
    """One document at one version, as its source gives it."""

    doc_id: str
    version: int
    title: str
    source_uri: str
    acl_groups: tuple[str, ...]
    """Empty: visible to nobody (Q-18)."""
    text: str = field(repr=False)

    @property
    def content_hash(self) -> str:
        """Of what is indexed and shown; groups are not content."""
        exact = json.dumps([self.title, self.source_uri, self.text], ensure_ascii=False)
        return hashlib.sha256(exact.encode()).hexdigest()


@dataclass(frozen=True)
class BadLine:
    """A line that is no document. `why` never quotes the line."""

    number: int
    why: str


def read(path: Path) -> tuple[tuple[SourceDocument, ...], tuple[BadLine, ...]]:
    """The documents, each id once at its highest version, and the lines that are none."""
    found: dict[str, SourceDocument] = {}
    bad: list[BadLine] = []
    with path.open("rb") as lines:
        number = 0
        while line := lines.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                bad.append(BadLine(number, f"longer than {MAX_LINE_BYTES} bytes"))
                while line and not line.endswith(b"\n"):
                    line = lines.readline(MAX_LINE_BYTES)
                continue
            if not line.strip():
                continue
            try:
                document = parse(line)
                earlier = found.get(document.doc_id)
                if earlier and earlier.version == document.version and earlier != document:
                    raise ValueError("docId and version appear twice with different content")
            except ValueError as wrong:
                bad.append(BadLine(number, str(wrong)))
                continue
            if earlier is None or earlier.version < document.version:
                found[document.doc_id] = document
    return tuple(found[doc_id] for doc_id in sorted(found)), tuple(bad)


def parse(line: bytes) -> SourceDocument:
    """One document from one line. Raises ValueError that names the field and what it must be."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as wrong:
        raise ValueError("not JSON") from wrong
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    if unknown := sorted(set(value) - _FIELDS):
        raise ValueError(f"unknown field {_shown(unknown[0])}")
    if missing := sorted(_FIELDS - set(value)):
        raise ValueError(f"{missing[0]} is missing")
    version = value["version"]
    if type(version) is not int or not 0 <= version < 2**53:
        raise ValueError("version must be a whole number of at least 0")
    return SourceDocument(
        doc_id=_doc_id(value["docId"]),
        version=version,
        title=_text(value, "title", 500),
        source_uri=_text(value, "sourceUri", 2000),
        acl_groups=_groups(value["aclGroups"]),
        text=_text(value, "text", MAX_TEXT),
    )


def _doc_id(doc_id: object) -> str:
    """Exactly as given: a link leads to it, so it is refused rather than cleaned."""
    if not isinstance(doc_id, str):
        raise ValueError("docId must be a text")
    if not DOC_ID.fullmatch(doc_id):
        raise ValueError("docId must be 1 to 120 characters of A-Z a-z 0-9 - . _ that begin with a letter or a digit")
    return doc_id


def _text(value: dict[str, Any], name: str, most: int) -> str:
    text = value[name]
    if not isinstance(text, str):
        raise ValueError(f"{name} must be a text")
    cleaned = clean(text)
    if len(cleaned) > most:
        raise ValueError(f"{name} must have 0 to {most} characters")
    return cleaned


def _groups(groups: object) -> tuple[str, ...]:
    if not isinstance(groups, list) or len(groups) > MAX_GROUPS:
        raise ValueError(f"aclGroups must be a list of at most {MAX_GROUPS} groups")
    if not all(isinstance(group, str) and 0 < len(group) <= 200 and clean(group) == group for group in groups):
        raise ValueError("aclGroups must hold texts of 1 to 200 characters")
    return tuple(sorted(set(groups)))


def clean(text: str) -> str:
    """The one cleaner of every text field: without NUL and lone surrogates, which PostgreSQL cannot store (Q-46)."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")


def _shown(name: str) -> str:
    return repr(name[:40])


def of_shard(documents: Sequence[SourceDocument], tenant: str, shard: int, shards: int) -> list[SourceDocument]:
    """The share of one completion of the Job: by a hash of the id, so that the split needs no coordination."""

    def place(document: SourceDocument) -> int:
        return int.from_bytes(hashlib.sha256(f"{tenant}\0{document.doc_id}".encode()).digest()[:8])

    return [document for document in documents if place(document) % shards == shard]
