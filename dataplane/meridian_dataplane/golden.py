"""Golden cases: questions with known answers, one JSON object a line, each with the identity it is asked by."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from meridian_api.digest import configmap_digest
from meridian_api.meta import ApiModel, TenantId

MAX_CASES = 5000

Text = Annotated[str, Field(min_length=1, max_length=4000)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class GoldenCase(ApiModel):
    """One question. `required_documents` and `facts` are what a right answer rests on and says; both empty when it must abstain."""

    id: Name
    tenant: TenantId
    groups: Annotated[tuple[Name, ...], Field(max_length=256)] = ()
    roles: Annotated[tuple[Name, ...], Field(max_length=64)] = ()
    question: Text
    required_documents: Annotated[tuple[Name, ...], Field(max_length=32)] = ()
    facts: Annotated[tuple[Text, ...], Field(max_length=32)] = ()
    abstain: bool = False
    order: Name | None = None
    """The order that the question is about, for cases that need the lookup."""


class BadGoldenSet(ValueError):
    """The set cannot be used; the message names the line."""


def load(path: Path) -> tuple[GoldenCase, ...]:
    """Every case of the file. Raises BadGoldenSet for a bad line, a repeated id, or a set without cases."""
    cases: list[GoldenCase] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if not line.strip():
            continue
        try:
            cases.append(GoldenCase.from_wire(json.loads(line)))
        except ValidationError as wrong:
            first = wrong.errors()[0]
            raise BadGoldenSet(f"line {number}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from wrong
        except (ValueError, RecursionError) as wrong:
            raise BadGoldenSet(f"line {number}: not JSON") from wrong
    return _whole(cases)


def digest(path: Path) -> str:
    """The digest by which the ConfigMap that `path` is mounted from is pinned: over all of its files."""
    files = {file.name: file.read_text(encoding="utf-8") for file in path.parent.iterdir() if _is_data(file)}
    return configmap_digest(files)


def _is_data(file: Path) -> bool:
    # The kubelet keeps its own bookkeeping beside the data, in names that begin with two dots.
    return file.is_file() and not file.name.startswith("..")


def _whole(cases: Sequence[GoldenCase]) -> tuple[GoldenCase, ...]:
    if not cases:
        raise BadGoldenSet("the golden set has no cases")
    if len(cases) > MAX_CASES:
        raise BadGoldenSet(f"the golden set has {len(cases)} cases, the limit is {MAX_CASES}")
    if len({case.id for case in cases}) != len(cases):
        raise BadGoldenSet("two cases have the same id")
    return tuple(cases)
