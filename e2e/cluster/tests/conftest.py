"""What the tests of the embedded installation share."""

import pytest

from meridian_cluster import layout


@pytest.fixture
def state(tmp_path, monkeypatch):
    """The state folder of a test: nothing of the machine's own installation is touched."""
    for name in ("STATE", "RUN", "LOGS", "PKI", "SECRETS"):
        folder = tmp_path if name == "STATE" else tmp_path / name.lower()
        monkeypatch.setattr(layout, name, folder)
    layout.prepare_state()
    return tmp_path
