"""The OpenAI chat-completions protocol as vLLM speaks it: request checks, response bodies,
event-stream frames. Pure."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_BODY_BYTES = 1 << 20
DEFAULT_MAX_TOKENS = 512
_PIECE = re.compile(
    r"\s*[^\s]{1,6}"
)  # long words come in several tokens, so a marker may be split as a real engine splits it
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


class Refused(Exception):
    """A request that is answered with an error in OpenAI's shape. `kind` is the error's type."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param = status, message, kind, param

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.status,
            }
        }


@dataclass(frozen=True)
class ChatRequest:
    """A checked request. `max_tokens` is bounded below by 1."""

    model: str
    messages: tuple[Mapping[str, Any], ...]
    stream: bool
    include_usage: bool
    max_tokens: int


def read_chat_request(raw: bytes) -> ChatRequest:
    """Checks the body. Raises Refused (400, 413) with the field's name; unknown fields are ignored,
    as vLLM ignores them."""
    if len(raw) > MAX_BODY_BYTES:
        raise Refused(413, f"the body is over {MAX_BODY_BYTES} bytes")
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON") from None
    if not isinstance(body, dict):
        raise Refused(400, "the body is not a JSON object")
    model, messages = body.get("model"), body.get("messages")
    if not isinstance(model, str) or not model:
        raise Refused(400, "model: a string is required", param="model")
    if not isinstance(messages, list) or not messages:
        raise Refused(400, "messages: a non-empty list is required", param="messages")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise Refused(
                400,
                f"messages[{index}].role: one of {', '.join(sorted(_ROLES))} is required",
                param="messages",
            )
        if not isinstance(message.get("content"), (str, list)):
            raise Refused(
                400,
                f"messages[{index}].content: a string or a list of parts is required",
                param="messages",
            )
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise Refused(400, "stream_options: an object is required", param="stream_options")
    stream = body.get("stream") or False
    if not isinstance(stream, bool):
        raise Refused(400, "stream: a boolean is required", param="stream")
    if options and not stream:
        raise Refused(400, "stream_options is only allowed with stream", param="stream_options")
    return ChatRequest(model, tuple(messages), stream, bool(options.get("include_usage")), _max_tokens(body))


def _max_tokens(body: Mapping[str, Any]) -> int:
    name = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    value = body.get(name)
    if value is None:
        return DEFAULT_MAX_TOKENS
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise Refused(400, f"{name}: an integer of at least 1 is required", param=name)
    return value


def split_tokens(text: str) -> list[str]:
    """`text` in pieces that joined give it again, but for white space at its end."""
    return _PIECE.findall(text)


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    total = prompt_tokens + completion_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": total,
    }


def completion(identity: Mapping[str, Any], text: str, reason: str, used: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an answer that is not streamed. `identity`: id, created, model,
    system_fingerprint."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": reason,
        "logprobs": None,
    }
    return {**identity, "object": "chat.completion", "choices": [choice], "usage": used}


def chunk(identity: Mapping[str, Any], delta: Mapping[str, Any], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
    return frame({**identity, "object": "chat.completion.chunk", "choices": [choice]})


def usage_chunk(identity: Mapping[str, Any], used: Mapping[str, Any]) -> bytes:
    return frame({**identity, "object": "chat.completion.chunk", "choices": [], "usage": used})


def frame(value: Mapping[str, Any]) -> bytes:
    """One event: the JSON stands on one line, so no text in it can become framing (H-13)."""
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
