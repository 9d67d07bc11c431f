"""A process is recognised by more than its pid, and only a recognised one is ever signalled."""

import dataclasses
import json
import subprocess
import sys

import pytest

from meridian_cluster import layout, processes

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_a_started_process_is_found_again_and_ended(state):
    assert processes.start("sleeper", SLEEP)
    identity = processes.running("sleeper")
    assert identity is not None and processes.names() == ("sleeper",)
    assert not processes.start("sleeper", SLEEP), "a second start changes nothing"
    assert processes.running("sleeper") == identity
    assert processes.stop("sleeper")
    assert processes.running("sleeper") is None
    assert processes.identify(identity.pid) is None
    assert not processes.stop("sleeper"), "stopping what does not run is no error"


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot": "another"}])
def test_a_recycled_pid_is_neither_running_nor_killed(state, change):
    bystander = subprocess.Popen(SLEEP)
    try:
        identity = processes.identify(bystander.pid)
        assert identity is not None
        recycled = dataclasses.replace(identity, **change)
        (layout.RUN / "sleeper.json").write_text(json.dumps(dataclasses.asdict(recycled)))
        assert processes.running("sleeper") is None
        assert not processes.stop("sleeper")
        processes.end(recycled, grace=0)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"pid": 1, "other": 2}'])
def test_a_damaged_record_means_not_running(state, text):
    (layout.RUN / "sleeper.json").write_text(text)
    assert processes.running("sleeper") is None


def test_a_process_that_ignores_sigterm_is_killed(state):
    stubborn = "import signal,time; signal.signal(15, signal.SIG_IGN); print('x', flush=True); "
    processes.start("stubborn", [sys.executable, "-c", stubborn + "time.sleep(60)"])
    while not (layout.LOGS / "stubborn.log").read_text():
        pass
    assert processes.stop("stubborn", grace=0.2)
    assert processes.running("stubborn") is None


def test_secrets_are_for_root_only(state):
    assert layout.SECRETS.stat().st_mode & 0o777 == 0o700
