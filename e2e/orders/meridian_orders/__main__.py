"""`python -m meridian_orders`: the order service until SIGTERM."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from meridian_orders.service import Fault, ServiceSettings, build_app, parse_fault

TOKEN_VARIABLE = "MERIDIAN_ORDERS_TOKEN"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="meridian_orders", description="The order service.")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--token-file", type=Path, help=f"default: the variable {TOKEN_VARIABLE}")
    parser.add_argument("--latency-ms", type=float, default=30.0, help="added to every look-up")
    parser.add_argument(
        "--fault",
        type=_fault,
        action="append",
        default=[],
        metavar="KIND:RATE",
        help="error, slow (ten times the latency), hang or garbage; repeatable",
    )
    args = parser.parse_args(argv)
    settings = ServiceSettings(_token(parser, args.token_file), args.latency_ms, tuple(args.fault))
    uvicorn.run(
        build_app(settings),
        host=args.host,
        port=args.port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=10,
    )


def _token(parser: argparse.ArgumentParser, file: Path | None) -> str:
    try:
        token = file.read_text("utf-8").strip() if file else os.environ.get(TOKEN_VARIABLE, "")
    except OSError as error:
        parser.error(f"--token-file: {error}")
    if not token:
        parser.error(f"no service token: give --token-file or {TOKEN_VARIABLE}")
    return token


def _fault(text: str) -> Fault:
    try:
        return parse_fault(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    main()
