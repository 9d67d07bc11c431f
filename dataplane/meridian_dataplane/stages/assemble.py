"""The prompt. Takes a Grounded; gives a Prompt; refuses with 422 `question_too_long`; pure but for the markers' draw.

The shared prefix (the release's system prompt) comes first, the tenant's text after it (S-15, S-72). Whatever comes from outside
is data: tags are escaped, what looks like a marker loses its brackets, so that only we make structure and citations.
"""

from __future__ import annotations

import html
import json
import re
import secrets
from collections.abc import Callable, Iterable
from typing import Any

from meridian_dataplane.calls import Grounded, Passage, Prompt, ToolOutcome
from meridian_dataplane.refusals import Refusal
from meridian_dataplane.stages.markers import CITATION_LIKE

_BYTES_PER_TOKEN = 4
# Controls, zero-width and direction characters can hide or reorder text; line breaks and tabs stay.
_INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def draw_marker() -> str:
    """A marker that nobody who wrote a document can have known."""
    return f"p{secrets.token_hex(3)}"


def assemble(grounded: Grounded, draw: Callable[[], str] = draw_marker) -> Prompt:
    """As many passages as fit into the release's token budget, best first."""
    manifest = grounded.pinned.manifest
    question = f"<question>{neutral(grounded.pinned.received.question)}</question>"
    tool = _tool_text(grounded.tool)
    left = manifest.settings.model.input_token_budget
    left -= sum(estimated_tokens(text) for text in (manifest.system_prompt, question, tool))
    if left < 0:
        raise Refusal(422, "question_too_long", "The question does not fit into this service's budget.")
    chosen: list[Passage] = []
    parts: list[str] = []
    markers: dict[str, int] = {}
    for passage in grounded.passages:
        marker = _unused(draw, markers, passage.text)
        text = _passage_text(marker, passage)
        left -= estimated_tokens(text)
        if left < 0:
            break
        markers[marker] = len(chosen)
        chosen.append(passage)
        parts.append(text)
    user = "\n".join([*parts, *filter(None, [tool]), question])
    estimated = estimated_tokens(manifest.system_prompt) + estimated_tokens(user)
    return Prompt(grounded, manifest.system_prompt, user, markers, tuple(chosen), estimated)


def estimated_tokens(text: str) -> int:
    """A rough count without the model's tokenizer; rounded up."""
    return -(-len(text.encode()) // _BYTES_PER_TOKEN)


def unmarked(text: str) -> str:
    """`text` for a reader: nothing that looks like a citation of ours, nothing invisible, nothing that is no character (H-21)."""
    whole = _LONE_SURROGATE.sub("\ufffd", text)
    visible = _INVISIBLE.sub("", whole.replace("\r\n", "\n").replace("\r", "\n"))
    return CITATION_LIKE.sub(r"(\1)", visible)


def neutral(text: str) -> str:
    """`text` as data for the model: no tag, no marker, nothing invisible."""
    return html.escape(unmarked(text), quote=False)


def _passage_text(marker: str, passage: Passage) -> str:
    title = neutral(passage.title).replace('"', "&quot;").replace("\n", " ")
    return f'<passage id="{marker}" title="{title}">{neutral(passage.text)}</passage>'


def _tool_text(tool: ToolOutcome | None) -> str:
    """The result's fields, or that there is none; nothing at all when no tool was meant."""
    if tool is None:
        return ""
    value: dict[str, Any] = tool.fields if tool.live else {"ok": False, "reason": tool.outcome}
    text = json.dumps(_neutral_values(value), ensure_ascii=False, separators=(",", ":"))
    return f'<tool name="{tool.name}">{text}</tool>'


def _neutral_values(value: Any, depth: int = 0) -> Any:
    """`value` with every text in it neutralised; what is nested deeper than 8 is dropped."""
    if depth > 8:
        return None
    if isinstance(value, str):
        return neutral(value)
    if isinstance(value, dict):
        return {neutral(str(k)): _neutral_values(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list):
        return [_neutral_values(v, depth + 1) for v in value]
    return value


def _unused(draw: Callable[[], str], taken: Iterable[str], text: str) -> str:
    marker = draw()
    while marker in taken or marker in text:
        marker = draw()
    return marker
