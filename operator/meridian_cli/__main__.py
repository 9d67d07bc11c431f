"""The command `meridian`, also `kubectl meridian`: a table of subcommands.

A subcommand's module is imported only when that subcommand is used, so that `meridian token` does
not wait for what `meridian up` needs. A module offers `add_arguments(parser)` and a function that
takes the parsed arguments and returns the exit code.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """Where a subcommand lives and what it is for."""

    module: str
    help: str
    function: str = "run"


COMMANDS = {
    "up": Command("meridian_cli.cluster", "start the embedded installation", "up"),
    "status": Command("meridian_cli.cluster", "what runs, and how much memory", "status"),
    "down": Command("meridian_cli.cluster", "end it, leaving nothing behind", "down"),
    "ask": Command("meridian_cli.ask", "ask one question"),
    "token": Command("meridian_cli.token", "mint a development token"),
    "digest": Command("meridian_cli.digest", "the digest of a ConfigMap in a file"),
    "traffic": Command("meridian_cli.traffic", "ask at a steady rate and report"),
    "demo": Command("meridian_cli.demo", "the whole story, narrated"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="meridian", description="Meridian from the command line.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = given[0] if given else ""
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(name, help=command.help)
        if name == chosen:
            module = importlib.import_module(command.module)
            module.add_arguments(subparser)
            subparser.set_defaults(function=getattr(module, command.function))
    args = parser.parse_args(given)
    try:
        ended = int(args.function(args))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return ended


if __name__ == "__main__":
    sys.exit(main())
