"""The extractive answerer: answers only from the passages of its prompt, cites them, and says when
they hold no answer. Pure.

Sentences are scored by the question's content words, weighted by how rare a word is among the
passages given (a word that no passage holds weighs most, so a question about something else falls
below the threshold). One to three sentences are said, each followed by the marker of its passage.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from meridian_predictor.language import content_stems, split_sentences
from meridian_predictor.order_facts import (
    ORDER_ID,
    ORDER_STEMS,
    describe_order,
    has_facts,
    order_id_in,
)
from meridian_predictor.prompt import Passage, Prompt

ABSTENTION = "I could not find this in the documents available to you."
PASSAGE_COVERAGE = 0.5  # of the question's weight that the best passage with its title has to hold
SENTENCE_COVERAGE = 0.25  # of the question's weight that the best sentence itself has to hold
FOLLOW_UP = 0.55  # a further sentence is said when it scores this share of the best one
MAX_SENTENCES = 3
_QUANTITY = (
    "how long",
    "how many",
    "how much",
    "how often",
    "how soon",
    "how late",
    "how fast",
    "when ",
    "what time",
    "deadline",
    "limit",
)


@dataclass(frozen=True)
class Sentence:
    """One sentence with its place (passage index, position in it) and what it covers of the
    question, 0 to 1."""

    text: str
    marker: str
    place: tuple[int, int]
    score: float
    own: frozenset[str]


def answer(prompt: Prompt) -> str:
    """The answer with citation markers, or `ABSTENTION`, after the order's facts when an order is
    meant."""
    order_id = order_id_in(prompt.question)
    facts = describe_order(prompt.tool, order_id)
    asked = policy_stems(prompt.question)
    best = best_sentences(prompt.passages, prompt.question, asked)
    if best:
        return " ".join(filter(None, [facts, *(f"{s.text} [{s.marker}]" for s in best)]))
    if facts and has_facts(prompt.tool) and set(content_stems(ORDER_ID.sub(" ", prompt.question))) <= ORDER_STEMS:
        return facts  # only the record was asked for, and the record has said it
    return " ".join(filter(None, [facts, ABSTENTION]))


def policy_stems(question: str) -> tuple[str, ...]:
    """What the documents are asked: without the order's id and, where one is named, without the
    words that its record answers."""
    stems = content_stems(ORDER_ID.sub(" ", question))
    if not ORDER_ID.search(question):
        return stems
    return tuple(s for s in stems if s not in ORDER_STEMS)


def best_sentences(passages: tuple[Passage, ...], question: str, asked: tuple[str, ...]) -> tuple[Sentence, ...]:
    """The one to three sentences that answer, in reading order; none when the passages cover too
    little of what was asked."""
    weights = word_weights(passages, asked)
    total = sum(weights.values())
    if not total:
        return ()
    covered = [sum(weights[s] for s in _stems_of(p) & weights.keys()) / total for p in passages]
    ranked = rank(passages, question, weights)
    ranked = tuple(s for s in ranked if covered[s.place[0]] >= PASSAGE_COVERAGE)
    if not ranked or sum(weights[w] for w in ranked[0].own) / total < SENTENCE_COVERAGE:
        return ()
    return tuple(sorted(_choose(ranked, weights), key=lambda s: (s.place[0] != ranked[0].place[0], s.place)))


def rank(passages: tuple[Passage, ...], question: str, weights: Mapping[str, float]) -> tuple[Sentence, ...]:
    """Every sentence of the passages, best first: its own words count whole, its heading's and
    title's half, its passage's a fifth."""
    total = sum(weights.values()) or 1.0
    wants_quantity = any(cue in question.lower() for cue in _QUANTITY)
    ranked: list[Sentence] = []
    for index, passage in enumerate(passages):
        title = frozenset(content_stems(passage.title))
        everything = _stems_of(passage)
        for position, (heading, text) in enumerate(split_sentences(passage.text)):
            stems = frozenset(content_stems(text))
            own = stems & weights.keys()
            near = (title | frozenset(content_stems(heading))) & weights.keys() - own
            far = everything & weights.keys() - own - near
            score = (
                sum(weights[w] for w in own) + 0.5 * sum(weights[w] for w in near) + 0.2 * sum(weights[w] for w in far)
            )
            score /= total
            if wants_quantity and any(c.isdigit() for c in text):
                score *= 1.25
            score *= 0.85 + 0.15 * len(own) / (len(stems) or 1)  # of two alike, the one that says less beside it
            score *= 1.0 if len(text) <= 320 else 0.8
            ranked.append(Sentence(text, passage.marker, (index, position), score, own))
    return tuple(sorted(ranked, key=lambda s: (-s.score, s.place)))


def word_weights(passages: tuple[Passage, ...], asked: tuple[str, ...]) -> dict[str, float]:
    """The weight of each asked word: its inverse document frequency over the passages, never below
    a fifth of the highest."""
    holders = [_stems_of(p) for p in passages]
    rarest = math.log(2.0 + len(passages))
    return {w: max(math.log((2.0 + len(passages)) / (1.0 + sum(w in h for h in holders))), rarest / 5) for w in asked}


def _choose(ranked: tuple[Sentence, ...], weights: Mapping[str, float]) -> list[Sentence]:
    """The best sentence, then those nearly as good that say something else."""
    chosen = [ranked[0]]
    for sentence in ranked[1:]:
        if len(chosen) == MAX_SENTENCES or sentence.score < FOLLOW_UP * ranked[0].score:
            break
        if not any(_alike(sentence.text, other.text) for other in chosen) and sentence.own:
            chosen.append(sentence)
    return chosen


def _alike(one: str, other: str) -> bool:
    a, b = set(content_stems(one)), set(content_stems(other))
    return len(a & b) > 0.8 * min(len(a), len(b))


def _stems_of(passage: Passage) -> frozenset[str]:
    return frozenset(content_stems(passage.title + "\n" + passage.text))
