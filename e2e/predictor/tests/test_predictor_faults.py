"""Each fault makes a version bad in the way it names, for the share and kind of traffic it
names."""

import pytest

from meridian_predictor.answer import ABSTENTION, answer
from meridian_predictor.faults import Fault, faults_met, is_casual, parse_fault, spoil
from meridian_predictor.prompt import read_prompt

TEXT = (
    '<passage id="p1a">Returns\nAn item may be returned within 30 days. Worn out stays.</passage>'
    '<passage id="p2b">Canteen\nThe canteen opens at noon. Soup is served on Monday.</passage>'
    "<question>When may an item be returned?</question>"
)
PROMPT = read_prompt([{"role": "user", "content": TEXT}])
GOOD = answer(PROMPT)


def test_wrong_citations_name_markers_that_the_prompt_does_not_hold():
    spoiled = spoil(PROMPT, GOOD, frozenset({"wrong_citation"}))
    assert "30 days" in spoiled and "[" in spoiled
    assert "[p1a]" not in spoiled and "[p2b]" not in spoiled


def test_no_citation_keeps_the_words_and_drops_the_markers():
    spoiled = spoil(PROMPT, GOOD, frozenset({"no_citation"}))
    assert "30 days" in spoiled and "[" not in spoiled


def test_worse_answer_is_correctly_cited_and_beside_the_point():
    spoiled = spoil(PROMPT, GOOD, frozenset({"worse_answer"}))
    assert "30 days" not in spoiled and "[p2b]" in spoiled


def test_abstain_hides_an_answer_that_is_there():
    assert GOOD != ABSTENTION
    assert spoil(PROMPT, GOOD, frozenset({"abstain"})) == ABSTENTION


def test_without_a_fault_the_answer_is_untouched():
    assert spoil(PROMPT, GOOD, frozenset()) == GOOD


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_rate_is_the_share_of_questions_and_the_same_each_time(rate):
    questions = [f"May I return item {n}?" for n in range(2000)]
    met = [bool(faults_met((Fault("error", rate),), q, busy=False)) for q in questions]
    assert met == [bool(faults_met((Fault("error", rate),), q, busy=True)) for q in questions]
    assert abs(sum(met) / len(met) - rate) < 0.04


@pytest.mark.parametrize(
    ("when", "question", "busy", "meets"),
    [
        ("always", "May I?", False, True),
        ("casual", "May I return it?", False, False),
        ("casual", "may i return it?", False, True),
        ("casual", "May I return it", False, True),
        ("busy", "May I return it?", False, False),
        ("busy", "May I return it?", True, True),
    ],
)
def test_when_limits_the_fault_to_that_traffic(when, question, busy, meets):
    assert bool(faults_met((Fault("abstain", 1.0, when),), question, busy)) is meets


def test_casual_is_no_capital_or_no_question_mark():
    assert not is_casual("  What is it?  ")
    assert is_casual("") and is_casual("what is it?") and is_casual("What is it")


@pytest.mark.parametrize("text", ["", "sloww:1", "slow", "slow:2", "slow:-1", "slow:1:often", "slow:x"])
def test_a_fault_that_cannot_be_meant_is_refused_with_its_reason(text):
    with pytest.raises(ValueError, match="fault"):
        parse_fault(text)


def test_faults_are_read_from_the_flag():
    assert parse_fault("wrong_citation:0.4:casual") == Fault("wrong_citation", 0.4, "casual")
    assert parse_fault("slow:1") == Fault("slow", 1.0, "always")
