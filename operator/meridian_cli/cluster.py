"""`meridian up`, `down` and `status`: the embedded cluster, from a checkout of the source tree."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable


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

    return look()


def _told(work: Callable[[], None]) -> int:
    """Run it; a failure is one message for a person, not a traceback."""
    try:
        work()
    except (RuntimeError, OSError) as error:
        print(f"meridian: {error}", file=sys.stderr)
        return 1
    return 0
