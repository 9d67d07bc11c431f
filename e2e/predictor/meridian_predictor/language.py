"""Words and sentences: the little English that the extractive answerer needs. Pure.

Stems are crude on purpose: they only have to be the same for two spellings of one word ("refunded",
"refunds"), never to be words.
"""

import re
from functools import lru_cache

# Results are remembered, because the same chunks come in prompt after prompt.
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])")
_BULLET = re.compile(r"^\s*(?:[-*+\u2022]|\d{1,2}[.)])\s+")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|etc|vs|no|approx|incl|mr|mrs|dr|art)\.$", re.IGNORECASE)

_STOPWORDS = """
a about after again all also am an and any anybody anyone are as at be been being but by can cannot could did
do does doing done each either else ever every for from get gets getting give given go goes going got had has
have having he her here hers him his how however i if in into is it its itself just know let like long many
may me might mine more most much must my need needs no nor not now of off on once one only or other our ours
out over own per please shall she should so some someone something such take takes tell than thanks that the
their theirs them then there these they this those through to too under until up us use used very want wants
was way we were what when where whether which while who whom whose why will with within without would yes yet
you your yours hi hello hey dear kindly i'm i've don't doesn't can't isn't won't what's it's that's happen
happens mean means work works often soon normally usually exactly currently
"""
STOPWORDS = frozenset(_STOPWORDS.split())

# Words that people use for one thing in this trade. Each group is read as its first member.
_GROUPS = (
    "refund reimburse reimbursement moneyback",
    "buy purchase bought",
    "deliver delivery ship shipping shipment shipped",
    "cancel cancellation cancelled",
    "charge bill billed charged debit debited",
    "twice duplicate double two",
    "automatic auto automatically",
    "defect faulty broken defective damage damaged",
    "customer client shopper buyer",
    "employee staff colleague",
    "price cost fee",
    "weight weigh",
    "delete erase erasure deletion",
    "approve approval authorise authorize sign",
    "maximum max limit most",
    "minimum min least",
    "account profile",
    "password passcode",
    "day days",
    "return send",
)

_SUFFIXES = (
    ("ational", "ate"), ("ations", ""), ("ation", ""), ("ements", ""), ("ement", ""),
    ("ments", ""), ("ment", ""), ("ings", ""), ("ing", ""), ("ities", ""), ("ity", ""),
    ("ances", ""), ("ance", ""), ("ences", ""), ("ence", ""), ("ically", "ic"), ("ally", ""),
    ("ies", "y"), ("ied", "y"), ("ions", ""), ("ion", ""), ("ers", ""), ("er", ""),
    ("able", ""), ("ed", ""), ("es", ""), ("ly", ""), ("s", ""), ("e", ""),
)  # fmt: skip


@lru_cache(maxsize=16384)
def stem(word: str) -> str:
    """`word` without its ending: one suffix, then a doubled last consonant and a silent e. Numbers
    stay as they are."""
    if word[0].isdigit():
        return word
    word = word.split("'")[0]
    for suffix, replacement in _SUFFIXES:
        kept = len(word) - len(suffix)
        if kept >= 3 and word.endswith(suffix) and not (suffix == "s" and word.endswith("ss")):
            word = word[:kept] + replacement
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeiousl":
        word = word[:-1]
    return word[:-1] if len(word) > 3 and word[-1] == "e" else word


_SYNONYM = {stem(member): stem(group.split()[0]) for group in _GROUPS for member in group.split()}


@lru_cache(maxsize=2048)
def content_stems(text: str) -> tuple[str, ...]:
    """The stems of the content words of `text`, in order, synonyms folded, each once."""
    stems: dict[str, None] = {}
    for word in _WORD.findall(text.lower().replace("\u2019", "'")):
        if word not in STOPWORDS and (len(word) > 1 or word.isdigit()):
            stemmed = stem(word)
            stems[_SYNONYM.get(stemmed, stemmed)] = None
    return tuple(stems)


@lru_cache(maxsize=512)
def split_sentences(text: str) -> tuple[tuple[str, str], ...]:
    """(heading, sentence) pairs of a passage: bullets and lines are sentences too, a heading
    belongs to what follows it."""
    found: list[tuple[str, str]] = []
    heading = ""
    for block in _blocks(text):
        if is_heading(block):
            heading = block.lstrip("# ").rstrip(":")
            continue
        parts = _SENTENCE_END.split(_BULLET.sub("", block).strip())
        found += [(heading, " ".join(part.split())) for part in _rejoin_abbreviations(parts) if part.strip()]
    return tuple(found)


def is_heading(line: str) -> bool:
    """A Markdown heading, or a short line without a full stop at its end."""
    line = line.strip()
    return line.startswith("#") or (len(line) <= 80 and not _BULLET.match(line) and line[-1:] not in ".!?;,|")


def _blocks(text: str) -> list[str]:
    """Lines of `text`; a line that only continues a wrapped sentence is joined to the one
    before."""
    blocks: list[str] = []
    for line in text.splitlines():
        line = line.strip()
        if not line:
            blocks.append("")
        elif (
            blocks
            and blocks[-1]
            and not _BULLET.match(line)
            and not line.startswith("#")
            and _continues(blocks[-1], line)
        ):
            blocks[-1] += " " + line
        else:
            blocks.append(line)
    return [block for block in blocks if block]


def _continues(before: str, line: str) -> bool:
    return not before.startswith("#") and before[-1] not in ".!?:" and (line[0].islower() or len(before) > 60)


def _rejoin_abbreviations(parts: list[str]) -> list[str]:
    joined: list[str] = []
    for part in parts:
        if joined and _ABBREVIATION.search(joined[-1]):
            joined[-1] += " " + part
        else:
            joined.append(part)
    return joined
