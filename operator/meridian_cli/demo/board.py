"""What the demo shows: chapters, lines, live lines, and the closing table of expected against seen."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Check:
    """One line of the closing table."""

    what: str
    expected: str
    seen: str
    passed: bool


class Board:
    """Prints to a terminal or a file alike; colours only where a person reads."""

    def __init__(self, out: TextIO) -> None:
        width = None if out.isatty() else 120  # a log file has no width of its own
        self.console = Console(file=out, highlight=False, soft_wrap=not out.isatty(), width=width)
        self.checks: list[Check] = []
        self._started = time.monotonic()
        self._live = False
        self._last_live = ""

    def chapter(self, title: str) -> None:
        """A new step of the story, with the time since the start."""
        self._end_live()
        elapsed = time.monotonic() - self._started
        self.console.print()
        self.console.rule(Text(f"{title}  ({elapsed:.0f} s)", style="bold"), align="left", style="dim")

    def say(self, text: str, style: str = "") -> None:
        """A line. Text from outside is shown as text, never as markup."""
        self._end_live()
        self.console.print(Text(text, style=style))

    def command(self, text: str) -> None:
        """A command that the reader could type, on one line however narrow the terminal: it pastes."""
        self._end_live()
        self.console.print(Text(f"$ {text}", style="cyan"), soft_wrap=True)

    def live(self, text: str) -> None:
        """A line that replaces itself on a terminal, and is printed on change elsewhere."""
        if self.console.is_terminal:
            self.console.print(Text(text[: self.console.width - 1], style="dim"), end="\r")
            self._live = True
        elif text != self._last_live:
            self.console.print(Text(text))
        self._last_live = text

    def check(self, what: str, expected: str, seen: str, *, passed: bool) -> None:
        """Records a line of the closing table and shows it at once."""
        self.checks.append(Check(what, expected, seen, passed))
        self.say(f"{'ok ' if passed else 'NOT'}  {what}: {seen}", "green" if passed else "bold red")

    def close(self) -> int:
        """The table; 0 if every line is as expected."""
        self._end_live()
        table = Table(title="What was promised, and what was seen", title_justify="left", show_lines=False)
        for heading in ("what", "expected", "seen", ""):
            table.add_column(heading, overflow="fold")
        for check in self.checks:
            mark = Text("ok", style="green") if check.passed else Text("differs", style="bold red")
            table.add_row(Text(check.what), Text(check.expected), Text(check.seen), mark)
        self.console.print()
        self.console.print(table)
        failed = sum(not check.passed for check in self.checks)
        elapsed = time.monotonic() - self._started
        self.say(
            f"{len(self.checks) - failed} of {len(self.checks)} as expected, after {elapsed:.0f} s",
            "bold",
        )
        return 1 if failed or not self.checks else 0

    def _end_live(self) -> None:
        if self._live:
            self.console.print()
            self._live = False
