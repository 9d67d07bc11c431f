"""`markdown-1`: documents into chunks of about the target size, cut at headings first, then paragraphs, then sentences.

Pure. A chunk's text is the document's own, unchanged; its anchor is the heading that it begins under (Q-59).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

CountTokens = Callable[[Sequence[str]], list[int]]

_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*\s*$")
_FENCE = re.compile(r"^\s*(```|~~~)")
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+")


@dataclass(frozen=True)
class Chunk:
    """A piece of one document. `heading` is the nearest heading above its beginning, `anchor` that heading's slug."""

    heading: str
    anchor: str
    text: str = field(repr=False)

    def embedded_text(self, title: str) -> str:
        """What is embedded and searched: title first, so that a chunk is found by what its document is about."""
        return "\n".join(part for part in (title, self.heading if self.heading != title else "", self.text) if part)


@dataclass(frozen=True)
class _Section:
    heading: str
    anchor: str
    text: str


def chunk(text: str, *, target_tokens: int, overlap_tokens: int, count: CountTokens) -> tuple[Chunk, ...]:
    """Chunks of at most `target_tokens` (a single longer word excepted), in the document's order. No text, no chunks (Q-48)."""
    pieces = [
        _Section(section.heading, section.anchor, piece)
        for section in sections(text)
        for piece in _pieces(section.text, target_tokens, count)
    ]
    sizes = count([piece.text for piece in pieces])
    chunks: list[Chunk] = []
    held: list[int] = []
    for place, size in enumerate(sizes):
        if held and sum(sizes[i] for i in held) + size > target_tokens:
            chunks.append(_joined([pieces[i] for i in held]))
            held = _tail(held, sizes, min(overlap_tokens, target_tokens - size))
        held.append(place)
    if held:
        chunks.append(_joined([pieces[i] for i in held]))
    return tuple(chunks)


def _tail(held: list[int], sizes: list[int], room: int) -> list[int]:
    """The last pieces that fit into `room` tokens: they begin the next chunk as well."""
    kept: list[int] = []
    for place in reversed(held[1:]):
        if sum(sizes[i] for i in kept) + sizes[place] > room:
            break
        kept.insert(0, place)
    return kept


def _joined(pieces: Sequence[_Section]) -> Chunk:
    return Chunk(pieces[0].heading, pieces[0].anchor, "\n\n".join(piece.text for piece in pieces))


def sections(text: str) -> list[_Section]:
    """The text cut at its Markdown headings (not inside fenced code), without empty sections."""
    found: list[_Section] = []
    seen: dict[str, int] = {}
    heading, anchor, lines, fenced = "", "", list[str](), False

    def close() -> None:
        body = "\n".join(lines).strip()
        if body:
            found.append(_Section(heading, anchor, body))

    for line in text.splitlines():
        if _FENCE.match(line):
            fenced = not fenced
        matched = None if fenced else _HEADING.match(line)
        if matched:
            close()
            heading, lines = matched.group(2), []
            anchor = _slug(heading, seen)
        lines.append(line)
    close()
    # A heading with nothing under it belongs to what follows: the document's title is the usual case.
    return _with_bare_headings_joined(found)


def _with_bare_headings_joined(found: list[_Section]) -> list[_Section]:
    joined: list[_Section] = []
    bare = ""
    for place, section in enumerate(found):
        if "\n" not in section.text and section.heading and place + 1 < len(found):
            bare += section.text + "\n\n"
            continue
        joined.append(_Section(section.heading, section.anchor, bare + section.text))
        bare = ""
    return joined


def _slug(heading: str, seen: dict[str, int]) -> str:
    slug = re.sub(r"[^\w]+", "-", heading.casefold()).strip("-")[:80] or "section"
    seen[slug] = seen.get(slug, 0) + 1
    return slug if seen[slug] == 1 else f"{slug}-{seen[slug] - 1}"


def _pieces(text: str, target: int, count: CountTokens) -> list[str]:
    """`text` whole if it fits, else cut at paragraphs, lines, sentences and words, in that order."""
    if count([text])[0] <= target:
        return [text]
    for separator, joint in ((re.compile(r"\n\s*\n"), "\n\n"), (re.compile(r"\n"), "\n"), (_SENTENCE, " ")):
        packed = _packed([part for part in separator.split(text) if part.strip()], joint, target, count)
        if len(packed) > 1:  # every part is shorter than the text, so that this ends
            return [piece for part in packed for piece in _pieces(part, target, count)]
    words = text.split()
    if len(words) < 2:
        return [text[i : i + 4 * target] for i in range(0, len(text), 4 * target)]
    middle = len(words) // 2
    return [p for half in (words[:middle], words[middle:]) for p in _pieces(" ".join(half), target, count)]


def _packed(parts: list[str], joint: str, target: int, count: CountTokens) -> list[str]:
    """Neighbours joined as long as they fit."""
    sizes = count(parts)
    packed: list[list[str]] = []
    used = 0
    for part, size in zip(parts, sizes, strict=True):
        if packed and used + size <= target:
            packed[-1].append(part)
            used += size
        else:
            packed.append([part])
            used = size
    return [joint.join(group) for group in packed]
