"""The base image of the project's Dockerfiles: pulled where a registry answers, else made here.

The one made here is Debian's own Python of the same minor version in a minimal Debian, under the
name that the Dockerfiles use, so that they are the same everywhere. It is kept in the cache.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from meridian_cluster import layout

NAME = "docker.io/library/python:3.11-slim-bookworm"
_UNUSED = (
    "usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info",
    "var/cache/apt", "var/lib/apt/lists", "usr/share/zoneinfo",
)  # fmt: skip
_PULL_SECONDS = 60


def buildah(*arguments: str | Path) -> str:
    """Run buildah on our own storage, which is in the cache. Raises RuntimeError."""
    done = subprocess.run([*_command(), *(str(part) for part in arguments)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"buildah {arguments[0]} failed:\n{done.stderr.strip()[-2000:]}")
    return done.stdout.strip()


def _command() -> list[str]:
    storage = ["--root", str(layout.cache("buildah")), "--runroot", str(layout.RUN / "buildah")]
    return ["buildah", *storage, "--storage-driver", "overlay"]


def ensure(report: Callable[[str], None]) -> None:
    """Have the base image in buildah's storage."""
    if NAME in buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
        return
    try:
        report(f"asking for {NAME}, for at most {_PULL_SECONDS} s")
        _pull()
        return
    except subprocess.SubprocessError:
        report("no registry answers: making the base image with debootstrap (about 70 s)")
    archive = _tree(report)
    container = buildah("from", "scratch")
    try:
        buildah("add", container, archive, "/")
        environment = "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
        buildah("config", "--env", environment, "--env", "LANG=C.UTF-8", container)
        buildah("commit", "--quiet", container, NAME)
    finally:
        buildah("rm", container)


def _pull() -> None:
    command = [*_command(), "pull", "--quiet", "--retry", "0", NAME]
    subprocess.run(command, check=True, capture_output=True, timeout=_PULL_SECONDS)


def _tree(report: Callable[[str], None]) -> Path:
    """A tar file of a minimal Debian with Python; made once."""
    archive = layout.cache("images") / "base-bookworm-python3.11.tar"
    if archive.exists():
        return archive
    folder = Path(tempfile.mkdtemp(prefix=".base-", dir=archive.parent))
    try:
        tree = folder / "root"
        done = subprocess.run(
            ["debootstrap", "--variant=minbase", "--include=python3,ca-certificates", "bookworm",
             str(tree)],
            capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"debootstrap failed:\n{done.stdout[-1500:]}{done.stderr[-500:]}")
        for name in _UNUSED:
            shutil.rmtree(tree / name, ignore_errors=True)
        for name in ("python", "python3"):  # where the official image has them
            (tree / "usr/local/bin" / name).symlink_to("/usr/bin/python3")
        partial = folder / "base.tar"
        subprocess.run(
            ["tar", "--numeric-owner", "-C", tree, "-cf", partial, "--exclude=./dev/*", "."],
            check=True,
        )
        partial.rename(archive)
        report(f"base image: {archive.stat().st_size / 1e6:.0f} MB")
    finally:
        subprocess.run(["umount", "-q", folder / "root/proc"], capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)
    return archive
