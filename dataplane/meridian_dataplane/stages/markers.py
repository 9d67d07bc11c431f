"""Secret markers in model text become the reader's numbers while the text streams. Pure; one filter a request."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

_LONGEST = 80
_NO_BLANK_BEFORE = " .,;:!?)\n"
_ITEM = re.compile(r"p[0-9a-f]{1,16}|\d{1,3}", re.IGNORECASE)


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
        self._held += text
        out: list[str] = []
        while True:
            start = self._held.find("[")
            if start < 0:
                self._emit(out, len(self._held.rstrip(" ")))
                break
            end = self._held.find("]", start)
            if end < 0:
                if len(self._held) - start <= _LONGEST:
                    self._emit(out, len(self._held[:start].rstrip(" ")))
                    break
                self._emit(out, start + 1)
                continue
            items = [item for item in re.split(r"[,;\s]+", self._held[start + 1 : end]) if item]
            if not items or not all(_ITEM.fullmatch(item) for item in items):
                self._emit(out, start + 1)
                continue
            shown = self._numbered(items)
            before = self._held[:start]
            if shown:
                self._say(out, before + shown)
            else:
                # The blanks before a removed marker are said only if a word follows, so that "so [p1]." becomes "so."
                said = before.rstrip(" ")
                self._say(out, said)
                self._gap = before[len(said) :] or self._gap
            self._held = self._held[end + 1 :]
        return "".join(out)

    def rest(self) -> str:
        """What is still held when the text has ended. An unclosed marker is none and is not shown."""
        held, self._held = self._held, ""
        unclosed = re.search(r" *\[\s*p[0-9a-f]*$", held, re.IGNORECASE)
        if unclosed:
            self.foreign += 1
            held = held[: unclosed.start()]
        out: list[str] = []
        self._say(out, held)
        return "".join(out)

    def _emit(self, out: list[str], length: int) -> None:
        self._say(out, self._held[:length])
        self._held = self._held[length:]

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
