"""Waiting for something to become true, with a limit and a reason when it does not."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable


class WaitedTooLong(RuntimeError):
    """What was waited for did not happen; the message says what, how long, and the last reason."""


def until(
    what: str,
    check: Callable[[], bool],
    *,
    seconds: float,
    every: float = 0.2,
    why_not: Callable[[], str] = lambda: "",
) -> None:
    """Call `check` until it is true. An exception that `check` raises ends the wait."""
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            reason = why_not()
            raise WaitedTooLong(f"waited {seconds:.0f} s for {what}" + (f": {reason}" * bool(reason)))
        time.sleep(every)


def port_open(host: str, port: int) -> bool:
    """Whether something accepts TCP connections there."""
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free now. Another process may take it first; callers retry if that matters."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])
