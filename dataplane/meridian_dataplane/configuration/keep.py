"""The last good snapshots on disk: two generations, written aside, synced, renamed. Blocking: call from a thread.

A SIGKILL at any moment leaves the older file or the newer one, whole (F-14). The highest generation ever accepted is in a file
of its own, so that a restart does not forget it (F-07).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

KEPT = 2
_NAME = re.compile(r"generation-(\d{1,18})\.json")
_HIGHEST = "highest"


def keep(folder: Path, generation: int, raw: bytes) -> None:
    """Store `raw` as `generation` and forget all but the newest two. Raises OSError (disk full, read-only)."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"generation-{generation}.json", raw)
    write_whole(folder / _HIGHEST, str(max(generation, highest(folder))).encode())
    for _, old in _files(folder)[KEPT:]:
        old.unlink(missing_ok=True)


def kept(folder: Path) -> list[bytes]:
    """What is on disk, newest generation first; unreadable files are passed over."""
    found = []
    for _, file in _files(folder):
        try:
            found.append(file.read_bytes())
        except OSError:
            continue
    return found


def highest(folder: Path) -> int:
    """The highest generation ever accepted by this replica; 0 when it is new."""
    names = [generation for generation, _ in _files(folder)]
    try:
        stored = int((folder / _HIGHEST).read_text("ascii"))
    except (OSError, ValueError):
        stored = 0
    return max([stored, *names])


def write_whole(file: Path, raw: bytes) -> None:
    """`file` has either its old content or `raw`, also after power loss. Raises OSError and leaves nothing behind."""
    aside = file.with_name(f".{file.name}.{os.getpid()}.aside")
    try:
        with aside.open("wb") as out:
            out.write(raw)
            out.flush()
            os.fsync(out.fileno())
        aside.replace(file)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _files(folder: Path) -> list[tuple[int, Path]]:
    try:
        names = [(_NAME.fullmatch(file.name), file) for file in folder.iterdir()]
    except OSError:
        return []
    return sorted(((int(m[1]), file) for m, file in names if m), reverse=True)
