"""`meridian demo`: the main job, run for real and told as it happens. Needs `meridian up`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from meridian_cli.demo import story
from meridian_cli.demo.board import Board
from meridian_cli.kubectl import KubectlFailed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=Path, default=Path("crds/samples/support"), help="what `up` rendered")
    parser.add_argument(
        "--releases", type=Path, default=Path("build/stories"), help="where later releases are rendered"
    )
    parser.add_argument(
        "--templates", type=Path, default=Path("e2e/stories/manifests"), help="templates of later releases"
    )
    parser.add_argument("--questions", type=Path, default=Path("e2e/stories/questions.jsonl"))
    parser.add_argument("--rps", type=float, default=10.0, help="requests a second during canaries")
    parser.add_argument("--outage-seconds", type=float, default=12.0, help="how long the control plane stays away")


def run(args: argparse.Namespace) -> int:
    """0 when every line of the closing table was seen as expected, 1 otherwise."""
    board = Board(sys.stdout)
    try:
        asyncio.run(story.tell(args, board))
    except (KubectlFailed, story.Stopped) as stopped:
        board.check("the story runs to its end", "yes", f"no: {stopped}", passed=False)
    except KeyboardInterrupt:
        board.check("the story runs to its end", "yes", "stopped by hand", passed=False)
    return board.close()
