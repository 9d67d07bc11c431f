"""Event streams as bytes: every legal spelling read alike, every size bounded. Pure."""

from __future__ import annotations

MAX_EVENT_BYTES = 1_048_576


class EventTooLarge(Exception):
    """An event over MAX_EVENT_BYTES; the stream cannot be read on."""


class EventStream:
    """Bytes go in as they come, `data` of whole events comes out. Lines end with LF, CRLF or CR (H-11, H-12).

    Framing looks at bytes alone, so a character cut in two by a read is whole again in its line.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of every event that `chunk` completes, its lines joined by LF. Raises EventTooLarge."""
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        if chunk:
            self._after_cr = chunk.endswith(b"\r")
        lines = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        events: list[bytes] = []
        for position, part in enumerate(lines):
            self._line += part
            self._size += len(part)
            if self._size > MAX_EVENT_BYTES:
                raise EventTooLarge
            if position < len(lines) - 1:
                self._end_line(events)
        return events

    def _end_line(self, events: list[bytes]) -> None:
        line, self._line = bytes(self._line), bytearray()
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
            self._data, self._size = [], 0
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif not name:
            # A comment belongs to no event, so it does not count towards one's size.
            self._size -= len(line)
