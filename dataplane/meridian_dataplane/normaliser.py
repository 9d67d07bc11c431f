"""`nfkc-1`: one reading of text for both sides of retrieval, questions and passages alike (Q-20 to Q-25, Q-62).

What is shown to people is stored unchanged; this form is only embedded and searched. The database has no ICU and no unaccent,
so that accents, compatibility forms and CJK are handled here. Changing any rule below needs a new name and a new epoch.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

NAME = "nfkc-1"
MAX_TOKEN = 64
"""Characters; longer runs are cut, so that no lexeme comes near PostgreSQL's limit of 2 kB."""

_APOSTROPHES = str.maketrans(dict.fromkeys("\u2018\u2019\u02bb\u02bc\uff07\u0060\u00b4", "'"))
# Format characters (zero width, bidi, tags), variation selectors, fillers, private use: nothing that a reader sees.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ue000-\uf8ff\ud800-\udfff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff\U000f0000-\U0010ffff]"
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_ACCENTS = re.compile("[\u0300-\u036f]")
_CJK = (
    "\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
# Letters and digits, and the vowel signs of scripts whose words would fall apart without them.
_RUN = re.compile(rf"[{_CJK}]+|(?:[^\W_{_CJK}]|[\u0591-\u05c7\u064b-\u065f\u0900-\u0dff\u0e31-\u0e4e])+")
_CJK_RUN = re.compile(rf"[{_CJK}]")
_ASCII_RUN = re.compile(r"[a-z0-9]+")


def normalise(text: str) -> str:
    """NFKC without invisible, tag, bidi and control characters, runs of white space as one space."""
    if not text.isascii():
        text = _INVISIBLE.sub("", text.translate(_APOSTROPHES))
        text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text).translate(_APOSTROPHES))
    return " ".join(_CONTROL.sub(" ", text).split())


def tokens(text: str) -> list[str]:
    """The keywords of `text`, in order: letters and digits only, case and accents folded, CJK runs as bigrams.

    Because a token holds nothing but letters and digits, it is safe inside a tsquery.
    """
    folded = normalise(text).casefold().replace("'s ", " ").replace("'", "")
    if folded.isascii():
        return [run[:MAX_TOKEN] for run in _ASCII_RUN.findall(folded)]
    plain = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFD", folded)))
    found: list[str] = []
    for run in _RUN.findall(plain):
        if len(run) > 1 and _CJK_RUN.match(run):
            found.extend(a + b for a, b in pairwise(run))
        else:
            found.append(run[:MAX_TOKEN])
    return found


def searchable(text: str) -> str:
    """The text as the keyword index sees it: its tokens, separated by spaces."""
    return " ".join(tokens(text))
