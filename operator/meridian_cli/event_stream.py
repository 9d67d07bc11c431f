"""Reads a stream of server-sent events from bytes. Pure: bytes in, events out.

Framing is done on bytes, so a character that is cut between two reads is whole again (H-11); every
legal spelling is read alike (H-12).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_LINE_BYTES = 1 << 20


class BadStream(Exception):
    """What came is not the event stream that was agreed."""


@dataclass(frozen=True)
class Event:
    """One event: its name and the JSON object of its data."""

    name: str
    data: Mapping[str, Any]


class EventReader:
    """Holds the unread rest between two reads."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = ""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> list[Event]:
        """The events that `received` completes. Raises BadStream."""
        found: list[Event] = []
        *lines, self._rest = (self._rest + received).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise BadStream(f"a line of the stream is over {MAX_LINE_BYTES} bytes")
        for line in lines:
            event = self._line(line.removesuffix(b"\r"))
            if event is not None:
                found.append(event)
        return found

    def _line(self, line: bytes) -> Event | None:
        if not line:
            return self._complete()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"data":
            self._data.append(value)
        return None

    def _complete(self) -> Event | None:
        name, data = self._name, b"\n".join(self._data)
        self._name, self._data = "", []
        if not data:
            return None
        try:
            value = json.loads(data)
        except ValueError:
            raise BadStream("an event's data is not JSON") from None
        if not isinstance(value, dict):
            raise BadStream("an event's data is not a JSON object")
        return Event(name or "message", value)
