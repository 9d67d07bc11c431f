"""Telling a person what happens, what is waited for, and how long it took."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Narrator:
    """Numbered steps on one stream. Silent when `quiet`."""

    total: int
    began: float = field(default_factory=time.monotonic)
    number: int = 0
    quiet: bool = False

    @contextmanager
    def step(self, title: str, waits_for: str = "") -> Iterator[None]:
        """One step: its title before, its duration after. An exception is told and passed on."""
        self.number += 1
        tail = f" (waits for {waits_for})" if waits_for else ""
        self._print(f"[{self.number:>2}/{self.total}] {title}{tail}")
        began = time.monotonic()
        try:
            yield
        except BaseException:
            self._print(f"        failed after {time.monotonic() - began:.1f} s")
            raise
        self._print(f"        done in {time.monotonic() - began:.1f} s")

    def say(self, text: str) -> None:
        """A line inside a step."""
        self._print(f"        {text}")

    def elapsed(self) -> float:
        """Seconds since the narrator was made."""
        return time.monotonic() - self.began

    def _print(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)
