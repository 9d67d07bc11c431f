"""The arithmetic of an evaluation, by example (Q-71 to Q-73): denominators are ours, unscored is neither pass nor fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meridian_dataplane import golden
from meridian_dataplane.evaluation.__main__ import WrongInput, job_from
from meridian_dataplane.evaluation.judging import Answered, Unscored, grounded, report, says, score, sentences_of
from meridian_dataplane.golden import GoldenCase


def a_case(**changed: Any) -> GoldenCase:
    values = {
        "id": "c1",
        "tenant": "a",
        "groups": ("g",),
        "question": "How long does a refund take?",
        "required_documents": ("d1",),
        "facts": ("5 working days",),
        **changed,
    }
    return GoldenCase(**values)


def an_answer(text: str = "A refund takes 5 working days. [1]", **changed: Any) -> Answered:
    values: dict[str, Any] = {
        "abstained": False,
        "retrieved": ("d2", "d1"),
        "cited": {1: "Refunds\nEvery refund takes 5 working days after the return."},
        "cited_documents": ("d1",),
        "citations_valid": 1,
        "citations_invalid": 0,
        **changed,
    }
    return Answered(text=text, **values)


@pytest.mark.parametrize(
    ("text", "fact", "expected"),
    [
        ("within 24 hours.", "24 hours", True),
        ("within 124 hours", "24 hours", False),
        ("it costs 25 EUR", "25 EUR", True),
        ("it costs 125 EUR", "25 EUR", False),
        ("it costs 1.25 EUR", "25 EUR", False),
        ("up to 30.50", "30", False),
        ("The  Automatic [1] Refunds", "automatic refund", True),
        ("nothing", "24 hours", False),
    ],
)
def test_a_fact_is_said_whole_or_not(text: str, fact: str, expected: bool) -> None:
    assert says(text, fact) is expected


def test_a_right_answer_succeeds() -> None:
    found = score(a_case(), an_answer())
    assert (found.recall, found.facts, found.success, found.sentences, found.supported) == (1.0, 1.0, True, 1, 1)


@pytest.mark.parametrize(
    "changed",
    [
        {"text": "A refund takes 7 working days. [1]"},
        {"abstained": True},
        {"citations_invalid": 1},
        {"cited_documents": ("d2",)},
    ],
    ids=["fact", "abstained", "invalid citation", "other document"],
)
def test_an_answer_with_one_fault_does_not(changed: dict[str, Any]) -> None:
    assert score(a_case(), an_answer(**changed)).success is False


def test_where_nothing_answers_only_abstaining_is_right() -> None:
    case = a_case(abstain=True, required_documents=(), facts=())
    silent = an_answer(
        "I could not find this in the documents available to you.", abstained=True, cited={}, cited_documents=()
    )
    assert (score(case, silent).success, score(case, silent).abstention) == (True, 1.0)
    assert (score(case, an_answer()).success, score(case, an_answer()).abstention) == (False, 0.0)
    assert score(case, silent).recall is None


def test_groundedness_counts_our_sentences_not_those_that_cite() -> None:
    """Q-72: an uncited claim, a number that the source does not hold and a citation of nothing are all unsupported."""
    answer = an_answer(
        "A refund takes 5 working days [1]. A refund takes 9 working days [1]. Dogs are welcome. Refunds are instant [7]."
    )
    assert grounded(answer) == (1, 4)


def test_an_abstention_claims_nothing_and_an_orders_record_supports_what_it_says() -> None:
    assert grounded(an_answer("I could not find this in the documents available to you.")) == (0, 0)
    told = an_answer(
        "Order A-77120 is delivered. A refund takes 5 working days [1].",
        tool_text='{"orderId": "A-77120", "status": "delivered order"}',
    )
    assert grounded(told) == (2, 2)


def test_sentences_keep_their_own_markers() -> None:
    assert sentences_of("One. Two is here. [1][2] Three [3]") == [
        ("One.", ()),
        ("Two is here.", (1, 2)),
        ("Three", (3,)),
    ]


def test_errors_are_reported_and_are_not_left_out_of_the_count() -> None:
    """Q-71: 9 errors and one perfect answer are 10 cases, 1 scored."""
    cases = [a_case(id=f"c{n}") for n in range(10)]
    results = {case.id: Unscored("error: model_unavailable") for case in cases} | {"c0": score(cases[0], an_answer())}
    found = report(cases, results)
    assert (found["cases"], found["scored"], found["unscored"]) == (10, 1, 9)
    assert found["taskSuccess"] == 1.0
    assert found["errors"][0] == {"id": "c1", "why": "error: model_unavailable"}


def test_what_no_case_asks_for_has_no_value() -> None:
    found = report([a_case()], {"c1": Unscored("x")})
    assert {found[name] for name in ("recallAt6", "citationValidity", "abstention", "taskSuccess", "groundedness")} == {
        None
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no cases"),
        ("{", "line 1: not JSON"),
        ('{"id": "x"}', "line 1: tenant"),
        ('{"id": "x", "tenant": "a", "question": "q", "unknown": 1}', "line 1: unknown"),
        ('{"id": "x", "tenant": "a", "question": "q"}\n' * 2, "same id"),
    ],
)
def test_a_golden_set_that_cannot_be_used_names_its_line(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "golden.jsonl"
    file.write_text(text)
    with pytest.raises(golden.BadGoldenSet, match=why):
        golden.load(file)


def test_the_jobs_environment_is_named_where_it_is_wrong_and_never_shown(tmp_path: Path) -> None:
    """T-53."""
    good = {
        "MERIDIAN_EVALUATION": '{"release": "r", "uid": "u", "attempt": 1}',
        "MERIDIAN_INGEST_DSN": "postgresql://secret",
        "MERIDIAN_DATABASE_DSN": "postgresql://secret",
        "MERIDIAN_SERVICE": "support",
        "MERIDIAN_REGION": "eu-1",
    }
    assert job_from(good, tmp_path).evaluation.attempt == 1
    for changed in ({"MERIDIAN_EVALUATION": "{}"}, {"MERIDIAN_EVALUATION": "x"}, {"MERIDIAN_SERVICE": ""}):
        with pytest.raises(WrongInput) as wrong:
            job_from({**good, **changed}, tmp_path)
        assert "secret" not in str(wrong.value)
