"""Faults that make a version bad in substance. Pure: whether a question meets a fault depends on
the question and the load alone.

A version whose faults only show on casually written or busy traffic passes a formally written
golden set, and fails in its canary.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Literal, get_args

from meridian_predictor.answer import ABSTENTION, policy_stems, rank, word_weights
from meridian_predictor.prompt import Prompt

Kind = Literal["wrong_citation", "no_citation", "worse_answer", "abstain", "slow", "error", "truncate", "stall"]
When = Literal["always", "casual", "busy"]
_CITATION = re.compile(r"\s*\[([^\[\]\s]+)\]")


@dataclass(frozen=True)
class Fault:
    """A fault that meets the share `rate` (0 to 1) of the questions, `when` they are written or
    come in that way."""

    kind: Kind
    rate: float
    when: When = "always"


def parse_fault(text: str) -> Fault:
    """`kind:rate[:when]`. Raises ValueError with what is allowed."""
    kind, _, rest = text.partition(":")
    rate_text, _, when = rest.partition(":")
    if kind not in get_args(Kind):
        raise ValueError(f"unknown fault {kind!r}: one of {', '.join(get_args(Kind))}")
    if when and when not in get_args(When):
        raise ValueError(f"unknown time of a fault {when!r}: one of {', '.join(get_args(When))}")
    try:
        rate = float(rate_text)
    except ValueError:
        raise ValueError(f"fault {text!r}: give kind:rate[:when], rate between 0 and 1") from None
    if not 0.0 <= rate <= 1.0:
        raise ValueError(f"fault {text!r}: the rate {rate} is not between 0 and 1")
    return Fault(kind, rate, when or "always")  # pyright: ignore[reportArgumentType]


def faults_met(faults: tuple[Fault, ...], question: str, busy: bool) -> frozenset[str]:
    """The kinds of fault that this question meets now."""
    return frozenset(f.kind for f in faults if _applies(f.when, question, busy) and _share(f.kind, question) < f.rate)


def is_casual(question: str) -> bool:
    """Written informally: no capital at the start, or no question mark at the end."""
    question = question.strip()
    return not question[:1].isupper() or not question.endswith("?")


def spoil(prompt: Prompt, good: str, met: frozenset[str]) -> str:
    """The answer `good` as a bad version gives it."""
    text = good
    if "abstain" in met:
        return ABSTENTION
    if "worse_answer" in met:
        text = _worst_sentences(prompt) or text
    if "wrong_citation" in met:
        text = _CITATION.sub(lambda m: f" [{_foreign_marker(m.group(1), prompt)}]", text)
    if "no_citation" in met:
        text = _CITATION.sub("", text)
    return text


def _applies(when: When, question: str, busy: bool) -> bool:
    return when == "always" or (when == "casual" and is_casual(question)) or (when == "busy" and busy)


def _share(kind: str, question: str) -> float:
    digest = hashlib.sha256(f"{kind}\n{question}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _worst_sentences(prompt: Prompt) -> str:
    """Two sentences that answer something else, correctly cited: only somebody who reads them sees
    that they are no use."""
    weights = word_weights(prompt.passages, policy_stems(prompt.question))
    worst = rank(prompt.passages, prompt.question, weights)[::-1][:2]
    return " ".join(f"{s.text} [{s.marker}]" for s in worst)


def _foreign_marker(marker: str, prompt: Prompt) -> str:
    """A marker of the same shape that the prompt does not hold."""
    taken = {p.marker for p in prompt.passages}
    salt = 0
    while True:
        made = "p" + hashlib.sha256(f"{marker}{salt}".encode()).hexdigest()[: max(len(marker) - 1, 3)]
        if made not in taken:
            return made
        salt += 1
