"""Secret markers in model text become the reader's numbers while the text streams. Pure; one filter a request."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

_LONGEST = 160
"""Characters of a bracket; what is longer is treated as never closed, so that a search for its end is bounded (H-24)."""
_NO_BLANK_BEFORE = " .,;:!?)\n"
_OPENING, _CLOSING = re.compile(r"[\[［【]"), re.compile(r"[\]］】]")
_ITEM, _BETWEEN = r"(?:p[0-9a-f]{1,16}|\d{1,3})", r"[,;\s^–—-]+"
CITATION_LIKE = re.compile(
    rf"[\[［【](?:{_BETWEEN})?({_ITEM}(?:{_BETWEEN}{_ITEM})*|\d{{1,3}}(?::\d{{1,3}})?†[^\[\]［］【】]*)(?:{_BETWEEN})?[\]］】]",
    re.IGNORECASE,
)
"""Markers of ours, old or guessed, and what readers take for citations: [1], 【1】, [1-3], [^1], [1†source]."""


class MarkerFilter:
    """Text goes in as it comes, in any pieces; what comes out holds only `[n]` of passages that were in the prompt.

    Anything of a marker's shape that we did not hand out is removed and counted: invented, guessed, or of another request.
    """

    def __init__(self, markers: Mapping[str, int]) -> None:
        self._markers = markers
        self._held = self._gap = ""
        self._numbers: dict[int, int] = {}
        self.occurrences: Counter[int] = Counter()
        """How often each passage was cited, by its position."""
        self.foreign = 0

    @property
    def numbers(self) -> Mapping[int, int]:
        """Position of a passage -> the number that readers see; numbered as first cited."""
        return self._numbers

    def feed(self, text: str) -> str:
        """What can be shown now. A bracket stays back until it is clear what it is, and blanks before it too."""
        text = self._held + text
        out: list[str] = []
        done = at = 0
        while opened := _OPENING.search(text, at):
            closed = _CLOSING.search(text, opened.start(), opened.start() + _LONGEST)
            if closed is None and len(text) - opened.start() < _LONGEST:
                break
            like = closed and CITATION_LIKE.fullmatch(text, opened.start(), closed.end())
            if not like:
                at = opened.end()
                continue
            self._cited(out, text[done : opened.start()], like[1])
            done = at = like.end()
        clear = opened.start() if opened else len(text)
        shown = max(done + len(text[done:clear].rstrip(" ")), clear - _LONGEST)
        self._say(out, text[done:shown])
        self._held = text[shown:]
        return "".join(out)

    def rest(self) -> str:
        """What is still held when the text has ended. An unclosed marker is none and is not shown."""
        held, self._held = self._held, ""
        unclosed = re.search(r" *[\[［【]\s*p[0-9a-f]*$", held, re.IGNORECASE)
        if unclosed:
            self.foreign += 1
            held = held[: unclosed.start()]
        out: list[str] = []
        self._say(out, held)
        return "".join(out)

    def _cited(self, out: list[str], before: str, inside: str) -> None:
        shown = self._numbered([inside] if "†" in inside else re.split(_BETWEEN, inside))
        if shown:
            self._say(out, before + shown)
            return
        # The blanks before a removed marker are said only if a word follows, so that "so [p1]." becomes "so."
        said = before.rstrip(" ")
        self._say(out, said)
        self._gap = before[len(said) :] or self._gap

    def _say(self, out: list[str], text: str) -> None:
        if text:
            out.append(text if text[0] in _NO_BLANK_BEFORE else self._gap + text)
            self._gap = ""

    def _numbered(self, items: list[str]) -> str:
        shown: list[str] = []
        for item in items:
            position = self._markers.get(item)
            if position is None:
                self.foreign += 1
                continue
            self.occurrences[position] += 1
            number = self._numbers.setdefault(position, len(self._numbers) + 1)
            shown.append(f"[{number}]")
        return "".join(shown)
