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

_APOSTROPHES = dict.fromkeys(map(ord, "\u2018\u2019\u02bb\u02bc\uff07\u0060\u00b4"), "'")
_CJK = "\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_RUN = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+")
_CJK_RUN = re.compile(rf"[{_CJK}]")


def normalise(text: str) -> str:
    """NFKC without invisible, tag, bidi and control characters, runs of white space as one space."""
    visible = "".join(
        " " if category == "Cc" else character
        for character in unicodedata.normalize("NFKC", text.translate(_APOSTROPHES))
        if (category := unicodedata.category(character)) not in ("Cf", "Cs", "Co", "Cn")
        and not "\ufe00" <= character <= "\ufe0f"
    )
    return " ".join(visible.split())


def hidden_characters(text: str) -> int:
    """How many Unicode tag characters (instructions that nobody sees) `text` has; for flagging, not for refusing."""
    return sum("\U000e0000" <= character <= "\U000e007f" for character in text)


def tokens(text: str) -> list[str]:
    """The keywords of `text`, in order: letters and digits only, case and accents folded, CJK runs as bigrams.

    Because a token holds nothing but letters and digits, it is safe inside a tsquery.
    """
    folded = normalise(text).casefold().replace("'s ", " ").replace("'", "")
    plain = "".join(c for c in unicodedata.normalize("NFD", folded) if unicodedata.category(c) != "Mn")
    found: list[str] = []
    for run in _RUN.findall(unicodedata.normalize("NFC", plain)):
        if _CJK_RUN.match(run):
            found.extend(a + b for a, b in pairwise(run)) if len(run) > 1 else found.append(run)
        else:
            found.append(run[:MAX_TOKEN])
    return found


def searchable(text: str) -> str:
    """The text as the keyword index sees it: its tokens, separated by spaces."""
    return " ".join(tokens(text))
