"""Structured log lines: one JSON object each, of allow-listed fields, so that no manifest or secret can slip into one."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from meridian_operator.conditions import cut

FIELDS = frozenset(
    {
        "key",
        "because",
        "phase",
        "error",
        "detail",
        "seconds",
        "epoch",
        "holder",
        "count",
        "port",
        "generation",
        "kind",
        "replica",
    }
)
_MAX = 300


def log(event: str, **values: object) -> None:
    """One line on stderr. Raises ValueError for a field that is not in FIELDS."""
    if strange := values.keys() - FIELDS:
        raise ValueError(f"not loggable: {sorted(strange)}")
    line = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event}
    for name, value in values.items():
        if value is not None:
            line[name] = value if isinstance(value, int | float) else cut(str(value), _MAX)  # type: ignore[assignment]
    sys.stderr.write(json.dumps(line) + "\n")


class _Lines(logging.Handler):
    """What libraries log, as the same kind of line: the logger's name and message only."""

    def emit(self, record: logging.LogRecord) -> None:
        log("library", kind=record.name, detail=record.getMessage())


def capture_libraries() -> None:
    """Warnings of kopf, aiohttp and others become lines; their debug and info texts, which may quote objects, do not."""
    logging.root.handlers = [_Lines(level=logging.WARNING)]
    logging.root.setLevel(logging.WARNING)
