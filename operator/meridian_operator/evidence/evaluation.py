"""The offline evaluation's report, judged against a release's floors. Pure.

The report comes out of a Job and is not trusted to be well-formed: what does not parse is Inconclusive, never Pass (R-03).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationError

from meridian_api.meta import ApiModel, Ratio
from meridian_api.v1alpha1.release import Eval, Evidence

REPORT = "select report from meridian.evaluation_reports where release_uid = %s and attempt = %s and kind = 'offline'"
Count = Annotated[int, Field(ge=0)]


class Report(ApiModel):
    """What `meridian_dataplane.evaluation` writes; a share is absent where no case asks for it."""

    cases: Count
    scored: Count
    unscored: Count
    recall_at6: Ratio | None = Field(default=None, alias="recallAt6")
    citation_validity: Ratio | None = None
    abstention: Ratio | None = None
    required_facts: Ratio | None = None
    task_success: Ratio | None = None
    groundedness: Ratio | None = None
    golden_digest: str = ""
    """Of the set that was asked; a report that does not say is about none (R-05)."""


def gates(report: object, floors: Eval) -> tuple[Evidence, ...]:
    """One verdict per floor, and one for the share of cases that could not be scored."""
    parsed = parse(report)
    if isinstance(parsed, str):
        return (
            Evidence(name="offline-report", verdict="Inconclusive", reason="MalformedReport", message=parsed[:1000]),
        )
    if parsed.golden_digest != floors.golden_set.digest:
        about = parsed.golden_digest or "no named golden set"
        return (
            Evidence(
                name="offline-report",
                verdict="Inconclusive",
                reason="OtherGoldenSet",
                message=f"the report is about {about}, the release pins {floors.golden_set.digest}",
            ),
        )
    unscored = parsed.unscored / parsed.cases
    if unscored > floors.max_unscored or parsed.scored == 0:
        return (
            Evidence(
                name="offline-unscored",
                verdict="Inconclusive",
                reason="TooManyUnscored",
                message=f"{parsed.unscored} of {parsed.cases} cases have no score",
                candidate_n=parsed.cases,
                value=round(unscored, 4),
                limit=floors.max_unscored,
            ),
        )
    success = parsed.task_success if parsed.task_success is not None else parsed.required_facts
    asked = (
        ("offline-recall-at-6", parsed.recall_at6, floors.min_recall_at_6),
        ("offline-citation-validity", parsed.citation_validity, floors.min_citation_validity),
        ("offline-abstention", parsed.abstention, floors.min_abstention),
        ("offline-task-success", success, floors.min_task_success),
        ("offline-groundedness", parsed.groundedness, floors.min_groundedness),
    )
    return tuple(_floor(name, value, floor, parsed.scored) for name, value, floor in asked)


def parse(report: object) -> Report | str:
    """The report, or what is wrong with it."""
    try:
        parsed = Report.from_wire(report, unknown="ignore")
    except (ValidationError, ValueError, TypeError) as wrong:
        return f"the report does not parse: {wrong}"
    if parsed.cases == 0:
        return "the report has no cases"
    if parsed.scored + parsed.unscored != parsed.cases:
        return f"{parsed.scored} scored and {parsed.unscored} unscored are not {parsed.cases} cases"
    return parsed


def report_of(rows: list[dict[str, Any]]) -> object | None:
    """The report in the rows of `REPORT`; None: the Job has not written one."""
    return rows[0].get("report", {}) if rows else None


def _floor(name: str, value: float | None, floor: float, scored: int) -> Evidence:
    if value is None:
        return Evidence(
            name=name, verdict="Inconclusive", reason="NotMeasured", message=f"{name} is not in the report", limit=floor
        )
    passed = value >= floor
    what = name.removeprefix("offline-")
    return Evidence(
        name=name,
        verdict="Pass" if passed else "Fail",
        reason="FloorReached" if passed else "BelowFloor",
        message=f"{what} {value:.3f} on {scored} golden cases, floor {floor:.3f}",
        candidate_n=scored,
        value=round(value, 4),
        limit=floor,
    )
