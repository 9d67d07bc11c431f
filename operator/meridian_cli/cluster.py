"""`meridian up`, `down` and `status`: the embedded cluster, from a checkout of the source tree."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

INTERRUPTED = 130  # what a shell reports of a command that Ctrl-C ended


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that the three commands share."""
    parser.add_argument("--quiet", action="store_true", help="say nothing but errors")


def up(args: argparse.Namespace) -> int:
    """Bring everything up, or say what is missing."""
    from meridian_cluster.up import up as bring_up

    return _told(lambda: bring_up(quiet=args.quiet))


def down(args: argparse.Namespace) -> int:
    """End everything that `up` started."""
    from meridian_cluster.down import down as bring_down

    return _told(lambda: bring_down(quiet=args.quiet))


def status(_: argparse.Namespace) -> int:
    """Say what runs; exit code 1 when something does not."""
    from meridian_cluster.status import status as look

    return _told(look)


def _told(work: Callable[[], int | None]) -> int:
    """Run it; a failure is one message for a person, not a traceback."""
    try:
        return work() or 0
    except subprocess.CalledProcessError as error:
        print(f"meridian: {_ended(error)}", file=sys.stderr)
    except BrokenPipeError:
        raise  # nobody reads any more: the caller ends quietly
    except (RuntimeError, OSError, ValueError, subprocess.TimeoutExpired) as error:
        print(f"meridian: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("meridian: interrupted; run it again to go on, or `meridian down` to end it all", file=sys.stderr)
        return INTERRUPTED
    return 1


def _ended(error: subprocess.CalledProcessError, lines: int = 3) -> str:
    """Which program failed and its last words: the whole command line would hide them."""
    said = error.stderr or error.stdout or ""
    text = said.decode(errors="replace") if isinstance(said, bytes) else said
    words = "; ".join(line.strip() for line in text.strip().splitlines()[-lines:])
    return f"{Path(error.cmd[0]).name} failed with exit code {error.returncode}" + (f": {words}" if words else "")
