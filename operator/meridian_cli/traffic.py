"""`meridian traffic`: asks the questions of a file at a steady rate, judges every answer, says
so."""

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meridian_cli.address import NoAddress, dataplane_url
from meridian_cli.identity import DEFAULT_ISSUER, ISSUER_VARIABLE, NoToken
from meridian_cli.load import Progress, TrafficSettings, run_traffic
from meridian_cli.traffic_report import Question, Record, TrafficReport, as_json, as_table

__all__ = ["TrafficSettings", "add_arguments", "read_questions", "run", "run_traffic"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--questions", type=Path, required=True, help="JSON lines, see the docs")
    parser.add_argument("--rps", type=_positive, default=20.0, help="requests a second")
    parser.add_argument("--seconds", type=_positive, default=60.0)
    parser.add_argument("--tenant", action="append", default=[], help="only its questions; repeatable")
    parser.add_argument("--conversations", type=int, help="spread over so many (default: one each)")
    parser.add_argument("--no-feedback", action="store_true", help="judge, but keep it to yourself")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the questions")
    parser.add_argument("--url", help="the data plane (default: $MERIDIAN_URL or the Service)")
    parser.add_argument("--issuer", default=os.environ.get(ISSUER_VARIABLE, DEFAULT_ISSUER))
    parser.add_argument("--records", type=Path, help="write a JSON line for every request there")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """0 when every request got an end that is no error; 1 otherwise, or when nothing could
    start."""
    try:
        questions = read_questions(args.questions, args.tenant)
        settings = TrafficSettings(
            url=args.url.rstrip("/") if args.url else dataplane_url(),
            rps=args.rps,
            seconds=args.seconds,
            conversations=args.conversations,
            feedback=not args.no_feedback,
            seed=args.seed,
            issuer=args.issuer.rstrip("/"),
        )
        report = asyncio.run(_until_interrupted(settings, questions))
        if args.records:
            lines = [json.dumps(asdict(r), ensure_ascii=False) for r in report.records]
            args.records.write_text("".join(line + "\n" for line in lines), "utf-8")
    except (OSError, ValueError, NoAddress, NoToken) as error:
        print(f"meridian traffic: {error}", file=sys.stderr)
        return 1
    print(json.dumps(as_json(report), indent=2) if args.json else as_table(report))
    return 1 if report.errors or report.lost or not report.sent else 0


async def _until_interrupted(settings: TrafficSettings, questions: Sequence[Question]) -> TrafficReport:
    """On Ctrl-C starts no more, reads the open answers to their end, and still reports."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    progress = _progress_line(settings) if sys.stderr.isatty() else None
    try:
        return await run_traffic(settings, questions, stop=stop, progress=progress)
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        if progress:
            print(file=sys.stderr)


def _progress_line(settings: TrafficSettings) -> Progress:
    def show(elapsed_s: float, records: Sequence[Record], unsent: int) -> None:
        report = TrafficReport(tuple(records), unsent)
        arms = "  ".join(f"{c.release}/{c.arm} {c.requests} ({c.right}/{c.judged})" for c in report.releases())
        line = (
            f"{min(elapsed_s, settings.seconds):5.0f}/{settings.seconds:.0f} s  "
            f"ended {report.sent}  degraded {report.degraded}  errors {report.errors}  "
            f"lost {report.lost}  {arms}"
        )
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)

    return show


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def read_questions(file: Path, tenants: Sequence[str] = ()) -> tuple[Question, ...]:
    """The questions of a JSON-lines file, of `tenants` alone where some are given.

    Raises ValueError with the line and field that is wrong, OSError when the file cannot be read.
    """
    found: list[Question] = []
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        if line.strip():
            try:
                found.append(_question(json.loads(line)))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise ValueError(f"{file}, line {number}: {error}") from None
    return tuple(q for q in found if not tenants or q.tenant in tenants)


def _question(row: Mapping[str, Any]) -> Question:
    facts, abstain = tuple(row.get("facts") or ()), bool(row.get("abstain", False))
    if not isinstance(row["question"], str) or not isinstance(row["tenant"], str):
        raise ValueError("question and tenant are strings")
    if not facts and not abstain:
        raise ValueError("either facts or abstain: true is required, else every answer is right")
    groups, roles = tuple(row.get("groups") or ()), tuple(row.get("roles") or ())
    return Question(row["question"], row["tenant"], groups, roles, facts, abstain)
