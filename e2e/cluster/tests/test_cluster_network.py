"""What is undone on the host, wherever `up` ended."""

import shutil

import pytest

from meridian_cluster import network


def test_down_goes_on_where_ip_and_iptables_are_absent(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(network, "_FORMER", tmp_path / "kernel-settings.json")
    assert shutil.which("ip") is None
    network.close_down()


def test_up_says_that_ip_is_absent(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="ip is not installed"):
        network._must("ip", "link")
