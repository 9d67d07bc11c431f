"""`python -m meridian_predictor`: serves one version of a model until SIGTERM, then drains."""

import argparse
import asyncio
import socket
from collections.abc import Sequence
from types import FrameType

import uvicorn

from meridian_predictor.app import build_app
from meridian_predictor.engine import Engine, EngineSettings, new_engine
from meridian_predictor.faults import Fault, parse_fault

PROFILES = {"reference": (350.0, 20.0), "fast": (15.0, 1.0)}  # prefill and inter-token time in ms


def main(argv: Sequence[str] | None = None) -> None:
    args = build_parser().parse_args(argv)
    engine = new_engine(settings_from(args))
    config = uvicorn.Config(
        build_app(engine),
        host=args.host,
        port=args.port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=args.drain_seconds,
        server_header=False,
    )
    print(
        f"engine {args.model_name}@{args.version} on {args.host}:{args.port}: {engine.settings}",
        flush=True,
    )
    DrainingServer(config, engine, args.lame_duck_seconds).run()


class DrainingServer(uvicorn.Server):
    """On the first signal says 503 on /health and still serves for the lame-duck time; then takes
    no more and ends its streams."""

    def __init__(self, config: uvicorn.Config, engine: Engine, lame_duck_s: float) -> None:
        super().__init__(config)
        self._engine, self._lame_duck_s = engine, lame_duck_s
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._engine.draining or self._loop is None:
            self.should_exit = True
            return
        self._engine.draining = True
        self._loop.call_soon_threadsafe(self._loop.call_later, self._lame_duck_s, setattr, self, "should_exit", True)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="meridian_predictor", description="A simulated vLLM engine.")
    parser.add_argument("--model-name", default="support-llm", help="the model that requests name")
    parser.add_argument("--version", default="v1", help="shown in /version and in system_fingerprint")
    parser.add_argument(
        "--profile",
        choices=sorted(PROFILES),
        default="reference",
        help="fast: 15 ms prefill, 1 ms a token",
    )
    parser.add_argument("--slots", type=int, default=24, help="sequences that run at once")
    parser.add_argument("--prefill-ms", type=float, help="instead of the profile's")
    parser.add_argument("--inter-token-ms", type=float, help="instead of the profile's")
    parser.add_argument(
        "--stream-interval",
        type=_at_least_one,
        default=1,
        help="tokens of one streamed chunk, as vLLM's option; the first and the last token never wait",
    )
    parser.add_argument("--max-queue", type=int, help="requests that may wait; 503 beyond (default: no bound)")
    parser.add_argument(
        "--fault",
        type=_fault,
        action="append",
        default=[],
        metavar="KIND:RATE[:WHEN]",
        help="repeatable",
    )
    parser.add_argument(
        "--slow-factor",
        type=float,
        default=5.0,
        help="what the fault `slow` multiplies the times by",
    )
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument(
        "--lame-duck-seconds",
        type=float,
        default=2.0,
        help="after SIGTERM, time in which it still accepts",
    )
    parser.add_argument("--drain-seconds", type=int, default=30, help="then, time in which running streams may end")
    return parser


def settings_from(args: argparse.Namespace) -> EngineSettings:
    prefill, inter_token = PROFILES[args.profile]
    return EngineSettings(
        model_name=args.model_name,
        version=args.version,
        slots=args.slots,
        prefill_ms=prefill if args.prefill_ms is None else args.prefill_ms,
        inter_token_ms=inter_token if args.inter_token_ms is None else args.inter_token_ms,
        stream_interval=args.stream_interval,
        max_queue=args.max_queue,
        faults=tuple(args.fault),
        slow_factor=args.slow_factor,
    )


def _at_least_one(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError("not a number from 1")
    return number


def _fault(text: str) -> Fault:
    try:
        return parse_fault(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    main()
