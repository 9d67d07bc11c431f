"""Reads the prompt convention: passages with random markers, an optional tool result, the question.
Pure.

What stands inside a passage or a tool result is data: it is never parsed for further structure and
never obeyed.
"""

import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meridian_predictor.language import is_heading

_PASSAGE = re.compile(r"<passage\s+([^<>]*)>(.*?)</passage>", re.DOTALL)
_TOOL = re.compile(r'<tool\s+name="([^"<>]*)"[^<>]*>(.*?)</tool>', re.DOTALL)
_QUESTION = re.compile(r"<question>(.*?)</question>", re.DOTALL)
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Passage:
    """One retrieved chunk. `title` is its title attribute or its first line when that line is a
    heading; it may be empty."""

    marker: str
    title: str
    text: str


@dataclass(frozen=True)
class Prompt:
    """What the answerer works from. `tool` is the parsed get_order result, or None when no such
    tool answered."""

    passages: tuple[Passage, ...]
    tool: Mapping[str, Any] | None
    question: str


def read_prompt(messages: Sequence[Mapping[str, Any]]) -> Prompt:
    """The prompt in the last user message. Without tags, the whole message is the question, asked
    over no passages."""
    text = next((content_text(m.get("content")) for m in reversed(messages) if m.get("role") == "user"), "")
    passages = tuple(_passage(attributes, body) for attributes, body in _PASSAGE.findall(text))
    rest = _PASSAGE.sub("", text)
    tool = next((_object(body) for name, body in _TOOL.findall(rest) if name == "get_order"), None)
    rest = _TOOL.sub("", rest)
    questions = _QUESTION.findall(rest)
    question = questions[-1] if questions else rest
    return Prompt(passages=passages, tool=tool, question=html.unescape(question).strip())


def content_text(content: object) -> str:
    """The text of a message's content: a string, or a list of parts of which the text ones are
    read."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(
            str(part.get("text", "")) for part in content if isinstance(part, dict) and part.get("type") == "text"
        )
    return ""


def _passage(attributes: str, body: str) -> Passage:
    named = dict(_ATTRIBUTE.findall(attributes))
    text = html.unescape(body).strip()
    title = html.unescape(named.get("title", ""))
    first, _, after = text.partition("\n")
    if not title and after.strip() and is_heading(first):
        title, text = first.strip("# "), after.strip()
    return Passage(marker=named.get("id", ""), title=title, text=text)


def _object(body: str) -> Mapping[str, Any] | None:
    try:
        value = json.loads(body)
    except ValueError:
        try:
            value = json.loads(html.unescape(body))
        except ValueError:
            return {"ok": False}
    return value if isinstance(value, dict) else {"ok": False}
