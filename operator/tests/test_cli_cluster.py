"""`meridian up`, `down` and `status` tell a failure in one sentence and say by their exit code that it was one."""

import argparse
import subprocess

import pytest

from meridian_cli import cluster

COMMANDS = {
    "up": "meridian_cluster.up.up",
    "down": "meridian_cluster.down.down",
    "status": "meridian_cluster.status.status",
}


def failing(error: BaseException):
    def work(**_: object) -> int:
        raise error

    return work


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (RuntimeError("no Go"), 1, "no Go"),
        (ValueError("half a file"), 1, "half a file"),
        (PermissionError(13, "Permission denied", "/x"), 1, "[Errno 13] Permission denied: '/x'"),
        (subprocess.TimeoutExpired("initdb", 5), 1, "Command 'initdb' timed out after 5 seconds"),
        (
            subprocess.CalledProcessError(2, ["/x/initdb", "-D", "/y"], stderr=b"one\ntwo\nthree\nno space\n"),
            1,
            "initdb failed with exit code 2: two; three; no space",
        ),
        (subprocess.CalledProcessError(1, ["useradd", "x"]), 1, "useradd failed with exit code 1"),
        (KeyboardInterrupt(), 130, "interrupted; run it again to go on, or `meridian down` to end it all"),
    ],
)
def test_a_failure_is_one_sentence_and_a_non_zero_exit(monkeypatch, capsys, command, error, code, told):
    monkeypatch.setattr(COMMANDS[command], failing(error))
    assert getattr(cluster, command)(argparse.Namespace(quiet=True)) == code
    assert capsys.readouterr().err == f"meridian: {told}\n"


@pytest.mark.parametrize("code", [0, 1])
def test_status_hands_its_exit_code_on(monkeypatch, code):
    monkeypatch.setattr("meridian_cluster.status.status", lambda: code)
    assert cluster.status(argparse.Namespace()) == code
