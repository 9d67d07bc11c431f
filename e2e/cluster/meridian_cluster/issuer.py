"""The development issuer of identity tokens, as a host process: people and pods both reach it."""

from __future__ import annotations

import importlib.util
import sys

from meridian_cluster import layout, processes, waiting


def up() -> bool:
    """Start the issuer. False when its package is not installed."""
    try:
        found = importlib.util.find_spec("meridian_orders.issuer")
    except ModuleNotFoundError:
        found = None
    if found is None:
        return False
    processes.start(
        "issuer",
        [
            sys.executable,
            "-m",
            "meridian_orders.issuer",
            f"--host={layout.NODE_ADDRESS}",
            f"--port={layout.ISSUER_PORT}",
            f"--key-file={layout.SECRETS}/issuer.pem",
        ],
    )
    waiting.until(
        "the token issuer",
        lambda: waiting.port_open(layout.NODE_ADDRESS, layout.ISSUER_PORT),
        seconds=30,
        why_not=lambda: processes.log_tail("issuer"),
    )
    return True
