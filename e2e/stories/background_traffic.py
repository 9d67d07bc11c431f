"""Users who go on asking while a story does something: `run_traffic` in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from meridian_cli.traffic import TrafficSettings, read_questions, run_traffic
from meridian_cli.traffic_report import Record, TrafficReport, as_table

QUESTIONS = Path(__file__).parent / "questions.jsonl"
RATE = float(os.environ.get("MERIDIAN_STORY_RPS", "10"))
"""Requests per second in which a canary is judged; fewer where other work shares the machine."""


class BackgroundTraffic:
    """`with BackgroundTraffic(url, rps=20) as users: ...`; afterwards `users.report` holds every request.

    Every answer is judged and its outcome sent back, as the canary's evidence needs it.
    """

    def __init__(
        self, url: str, *, rps: float, tenants: Sequence[str] = (), limit_s: float = 1200, seed: int | None = None
    ) -> None:
        self._settings = TrafficSettings(
            url=url, rps=rps, seconds=limit_s, seed=int(time.time()) if seed is None else seed
        )
        self._questions = read_questions(QUESTIONS, tenants)
        self._thread = threading.Thread(target=self._run, name="users", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._report: TrafficReport | None = None
        self._so_far: Sequence[Record] = ()
        self.began_at: float | None = None
        """Wall clock at which `Record.at_s` is 0."""

    def __enter__(self) -> BackgroundTraffic:
        self._thread.start()
        assert self._ready.wait(30) and self._failure is None, f"no traffic: {self._failure!r}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop and self._stop and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        if kind is None:
            assert self._failure is None, f"the traffic failed: {self._failure!r}"
            print("\n" + as_table(self.report))

    @property
    def report(self) -> TrafficReport:
        assert self._report is not None, "the traffic has not ended"
        return self._report

    @property
    def so_far(self) -> Sequence[Record]:
        return tuple(self._so_far)

    def at(self, record: Record) -> float:
        """Wall clock at which the request was sent."""
        assert self.began_at is not None
        return self.began_at + record.at_s

    def _run(self) -> None:
        try:
            self._report = asyncio.run(self._traffic())
        except BaseException as failure:  # noqa: BLE001 - handed to the story's thread
            self._failure = failure
        self._ready.set()

    async def _traffic(self) -> TrafficReport:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        return await run_traffic(self._settings, self._questions, stop=self._stop, progress=self._progress)

    def _progress(self, elapsed_s: float, records: Sequence[Record], _unsent: int) -> None:
        self._so_far = records
        if self.began_at is None:
            self.began_at = time.time() - elapsed_s
        self._ready.set()
