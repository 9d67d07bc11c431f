"""`meridian status`: a line a process that says its health and where its log is."""

import pytest

from meridian_cluster import processes, status
from meridian_cluster.processes import Identity


@pytest.mark.parametrize(
    ("runs", "answers", "told"), [(True, True, " healthy"), (True, False, "NOT HEALTHY"), (False, True, "NOT RUNNING")]
)
def test_a_process_is_healthy_when_it_runs_and_answers(monkeypatch, runs, answers, told):
    identity = Identity(pid=4194304, start_ticks=1, boot="b")
    monkeypatch.setattr(processes, "running", lambda name: identity if runs else None)
    monkeypatch.setattr(status, "HEALTHY", dict.fromkeys(status.EXPECTED, lambda: answers))
    rows = status.host_processes()
    assert [row.name for row in rows] == list(status.EXPECTED)
    for row in rows:
        assert row.healthy == (runs and answers)
        assert told in row.line() and row.line().endswith(f"/{row.name}.log")
        assert len(row.line()) <= 120


def test_every_health_check_is_of_a_process_that_is_expected():
    assert set(status.HEALTHY) == set(status.EXPECTED) - {"discovery"}


def test_what_nobody_listens_on_is_not_healthy(tmp_path):
    assert not status.answers_ok("http://127.0.0.1:9/healthz")
    assert not status.accepts(tmp_path / "no.sock")
