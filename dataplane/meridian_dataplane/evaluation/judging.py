"""What an answer is worth, by measures that need no judge. Pure.

All denominators are ours (Q-72): our cases, our facts, our sentences. A case without an answer is unscored, never a zero and
never left out silently (Q-71).
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meridian_dataplane import normaliser
from meridian_dataplane.golden import GoldenCase

SUPPORT = 0.7
"""Share of a sentence's content words that its source must hold; all of its numbers must be in it."""
MAX_ERRORS = 20

_MARKERS = re.compile(r"(?:\s*\[\d{1,3}\])+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'(])")
_STOP_TEXT = """
a an and any are as at be been but by can do does for from had has have he her his i if in into is it its may
more must no not of on one only or our she should so than that the their them then there these they this those
to was we were what when where which who will with would you your
"""
_STOPWORDS = frozenset(_STOP_TEXT.split())


@dataclass(frozen=True)
class Answered:
    """What came back for a case."""

    text: str = field(repr=False)
    abstained: bool
    retrieved: tuple[str, ...]
    """Document ids, best first, as retrieval returned them."""
    cited: Mapping[int, str] = field(repr=False)
    """Number in the text -> title and text of the passage that it stands for."""
    cited_documents: tuple[str, ...]
    citations_valid: int
    citations_invalid: int
    tool_text: str = field(default="", repr=False)
    """The order's fields, when the lookup succeeded: a source like a passage."""


@dataclass(frozen=True)
class Unscored:
    """A case that has no answer to judge."""

    why: str


@dataclass(frozen=True)
class Score:
    """The measures of one case; None where the case does not ask for it."""

    recall: float | None
    facts: float | None
    abstention: float | None
    success: bool
    citations_valid: int
    citations_invalid: int
    sentences: int
    supported: int


def score(case: GoldenCase, answered: Answered) -> Score:
    """Judge one answer."""
    required = set(case.required_documents)
    recall = len(required & set(answered.retrieved)) / len(required) if required else None
    facts = sum(says(answered.text, fact) for fact in case.facts) / len(case.facts) if case.facts else None
    supported, sentences = grounded(answered)
    if case.abstain:
        success = answered.abstained
    else:
        cites_what_it_must = not required or bool(required & set(answered.cited_documents))
        success = (
            not answered.abstained and facts in (None, 1.0) and cites_what_it_must and not answered.citations_invalid
        )
    return Score(
        recall=None if case.abstain else recall,
        facts=None if case.abstain else facts,
        abstention=float(answered.abstained) if case.abstain else None,
        success=success,
        citations_valid=answered.citations_valid,
        citations_invalid=answered.citations_invalid,
        sentences=sentences,
        supported=supported,
    )


def says(text: str, fact: str) -> bool:
    """Whether `fact` stands in `text`, case and spacing aside; `24 hours` is not in `124 hours`, nor `25 EUR` in `25.50 EUR`."""
    wanted = re.escape(_plain(fact))
    return re.search(rf"(?<![\w.,]){wanted}(?!\d|[.,]\d)", _plain(text)) is not None


def _plain(text: str) -> str:
    return normaliser.normalise(_MARKERS.sub("", text)).casefold()


def grounded(answered: Answered) -> tuple[int, int]:
    """(supported, all) sentences of the answer. An abstention claims nothing.

    A sentence is supported when the passage that its marker names holds SUPPORT of its content words and all of its numbers;
    a sentence without a marker has only the order's record to rest on.
    """
    supported = total = 0
    for sentence, numbers in sentences_of(answered.text):
        words = content_words(sentence)
        if not words or claims_nothing(sentence):
            continue
        total += 1
        sources = [answered.cited[number] for number in numbers if number in answered.cited]
        source = " ".join(sources) if numbers else answered.tool_text
        held = content_words(source)
        numbers_held = all(word in held for word in words if word[0].isdigit())
        if numbers_held and sum(word in held for word in words) >= SUPPORT * len(words):
            supported += 1
    return supported, total


def sentences_of(text: str) -> list[tuple[str, tuple[int, ...]]]:
    """Sentences with the numbers of the markers that follow them."""
    found: list[tuple[str, tuple[int, ...]]] = []
    at = 0
    for markers in _MARKERS.finditer(text):
        numbers = tuple(int(number) for number in re.findall(r"\d+", markers.group()))
        before = _SENTENCE_END.split(text[at : markers.start()].strip())
        found += [(sentence, ()) for sentence in before[:-1]]
        found.append((before[-1].lstrip(". "), numbers))
        at = markers.end()
    found += [(sentence, ()) for sentence in _SENTENCE_END.split(text[at:].strip())]
    return [(sentence, numbers) for sentence, numbers in found if sentence.strip(" .")]


def claims_nothing(sentence: str) -> bool:
    """An abstention, and what is said (by the model or by our own code) when there is no live data of an order."""
    said = (
        "could not find this in the documents",
        "no access to live order data",
        "Note: live data of order",
        "Note: order",
    )
    return any(part in sentence for part in said)


def content_words(text: str) -> frozenset[str]:
    """Words that carry meaning, without a plural's s, so that small differences of form do not count."""
    return frozenset(
        word if word[0].isdigit() or len(word) < 4 else word.removesuffix("s")
        for word in normaliser.tokens(text)
        if word not in _STOPWORDS and (len(word) > 1 or word.isdigit())
    )


def report(cases: Sequence[GoldenCase], results: Mapping[str, Score | Unscored]) -> dict[str, Any]:
    """The report's measures over all cases; None (absent in the operator's eyes) where no case asks for one."""
    scores = [result for case in cases if isinstance(result := results[case.id], Score)]
    errors = [(case.id, result.why) for case in cases if isinstance(result := results[case.id], Unscored)]
    valid = sum(s.citations_valid for s in scores)
    cited = valid + sum(s.citations_invalid for s in scores)
    sentences = sum(s.sentences for s in scores)
    return {
        "cases": len(cases),
        "scored": len(scores),
        "unscored": len(errors),
        "recallAt6": _mean(s.recall for s in scores),
        "citationValidity": valid / cited if cited else None,
        "citations": cited,
        "abstention": _mean(s.abstention for s in scores),
        "requiredFacts": _mean(s.facts for s in scores),
        "taskSuccess": _mean(float(s.success) for s in scores),
        "groundedness": sum(s.supported for s in scores) / sentences if sentences else None,
        "sentences": sentences,
        "errors": [{"id": case_id, "why": why} for case_id, why in errors[:MAX_ERRORS]],
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.fmean(known), 6) if known else None
