"""The Python packages of one image, installed from the locked requirements with their hashes.

An image carries only the extra that it runs, but the lock names everything. The subset is found
from the metadata of what is installed here, so that nothing is resolved again and no version can
differ from the lock.
"""

from __future__ import annotations

import compileall
import hashlib
import importlib.metadata
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from meridian_cluster import layout

_TARGET = "x86_64-manylinux_2_28"  # every base image that is used has at least this C library
_UNUSED = ("tests", "test", "testing_data")


def closure(extra: str, distribution: str = "meridian") -> frozenset[str]:
    """Canonical names of every package that one extra of a distribution needs on this platform."""
    found: set[str] = set()
    todo: list[tuple[str, frozenset[str]]] = [(distribution, frozenset({extra}))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        name, extras = todo.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        for line in importlib.metadata.requires(name) or ():
            wanted = Requirement(line)
            marker = wanted.marker
            if marker and not any(marker.evaluate({"extra": one}) for one in (*extras, "")):
                continue
            found.add(canonicalize_name(wanted.name))
            todo.append((canonicalize_name(wanted.name), frozenset(wanted.extras)))
    return frozenset(found)


def locked(names: Iterable[str], lock: str) -> str:
    """The part of a hash-pinned requirements file that pins these packages.

    Raises KeyError with the names that the file does not pin.
    """
    blocks: dict[str, str] = {}
    for block in re.split(r"\n(?=\S)(?!#)", lock):
        pinned = re.match(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==", block)
        if pinned:
            blocks[canonicalize_name(pinned[1])] = block.rstrip()
    wanted = sorted(names)
    absent = [name for name in wanted if name not in blocks]
    if absent:
        raise KeyError(f"requirements.lock does not pin {', '.join(absent)}")
    return "\n".join(blocks[name] for name in wanted) + "\n"


def install(extra: str) -> Path:
    """A folder with one extra's packages, compiled; made once for each set of pins."""
    pins = locked(closure(extra), (layout.repository() / "requirements.lock").read_text())
    key = hashlib.sha256(f"{sys.version_info[:2]}{_TARGET}{pins}".encode()).hexdigest()[:16]
    target = layout.cache("site") / f"{extra}-{key}"
    if target.exists():
        return target
    staging = Path(tempfile.mkdtemp(prefix=".site-", dir=target.parent))
    requirements = staging / "requirements.txt"
    requirements.write_text(pins)
    folder = staging / "site"
    arguments = ["--quiet", "--no-deps", "--require-hashes", "--target", str(folder)]
    arguments += ["--only-binary", ":all:", "-r", str(requirements)]
    uv = shutil.which("uv")
    if uv:
        command = [uv, "pip", "install", "--python", sys.executable, "--python-platform", _TARGET]
    else:
        command = [sys.executable, "-m", "pip", "install"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(staging)
        raise RuntimeError(f"installing {extra}'s packages failed:\n{done.stderr[-2000:]}")
    shutil.rmtree(folder / "bin", ignore_errors=True)
    for name in _UNUSED:
        for path in sorted(folder.rglob(name)):
            if path.is_dir() and not (path / "conftest.py").is_symlink():
                shutil.rmtree(path, ignore_errors=True)
    compile_folder(folder, "/opt/meridian/site")
    folder.rename(target)
    shutil.rmtree(staging)
    return target


def compile_folder(folder: Path, seen_as: str) -> None:
    """Byte-compile a folder as it will be seen in the image. The containers' file systems are
    read-only, so without this every start would compile everything again."""
    compileall.compile_dir(
        folder,
        quiet=2,
        stripdir=str(folder),
        prependdir=seen_as,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
