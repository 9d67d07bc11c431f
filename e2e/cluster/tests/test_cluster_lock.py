"""`up` and `down` never run at the same time, and the one that waits says for whom."""

import fcntl
import os
import threading
import time

import pytest

from meridian_cluster import up


def test_who_holds_the_lock_is_named_before_the_wait(state):
    said: list[str] = []
    entered = threading.Event()

    def second() -> None:
        with up.alone(said.append):
            entered.set()

    first = up.alone(said.append)
    first.__enter__()
    waiter = threading.Thread(target=second)
    try:
        waiter.start()
        deadline = time.monotonic() + 10
        while not said and time.monotonic() < deadline:
            time.sleep(0.01)
        assert said == [f"another meridian up or down runs (pid {os.getpid()}); waiting"]
        assert not entered.is_set()
    finally:
        first.__exit__(None, None, None)
        waiter.join(10)
    assert entered.is_set()


def test_a_lock_that_is_free_is_taken_without_a_word(state):
    said: list[str] = []
    (state / "lock").write_text("1234\n")
    with up.alone(said.append):
        assert (state / "lock").read_text() == f"{os.getpid()}\n"
        with (state / "lock").open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert said == []
