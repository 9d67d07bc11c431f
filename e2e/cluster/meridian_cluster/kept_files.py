"""Files that are made once and kept: whole or absent, wherever an earlier `up` was interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def whole(path: Path) -> bool:
    """Whether the file holds something: an empty one is what an interrupted run left, and counts as absent."""
    return path.exists() and path.stat().st_size > 0


def document(path: Path) -> dict[str, Any]:
    """The JSON object in this file; {} when there is none, or half of one."""
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write(path: Path, content: str | bytes, *, mode: int = 0o600) -> None:
    """Write it aside and rename it: nobody ever reads half of it, and a reader holds the old one or the new one."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    partial.touch(mode=mode)
    partial.write_bytes(content.encode() if isinstance(content, str) else content)
    partial.rename(path)
