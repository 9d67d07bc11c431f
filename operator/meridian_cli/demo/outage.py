"""The chapter in which operator and API server are gone and people go on asking."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from meridian_cli.address import dataplane_url
from meridian_cli.demo.board import Board
from meridian_cli.kubectl import KubectlFailed, get, kubectl
from meridian_cli.traffic import TrafficSettings, read_questions, run_traffic

OPERATOR = "deployment/meridian-operator"


async def chapter(board: Board, questions: Path, seconds: float) -> None:
    """Stops operator and kube-apiserver, asks at 5 requests/s, brings both back."""
    from meridian_cluster import control_plane  # the embedded node's own control plane; needs a checkout

    board.chapter("Stop the operator and the API server, and keep asking")
    url, before = dataplane_url(), get("servingconfigs.meridian.dev", "support")["spec"]["generation"]
    replicas = get("deployments", "meridian-operator")["spec"].get("replicas", 1)
    board.command(f"kubectl -n meridian scale {OPERATOR} --replicas=0")
    kubectl("scale", OPERATOR, "--replicas=0")
    kubectl(
        "wait",
        "--for=delete",
        "pod",
        "-l",
        "app.kubernetes.io/component=operator",
        "--timeout=60s",
        timeout=70,
        check=False,
    )
    control_plane.stop_apiserver()
    board.say("operator and kube-apiserver are stopped; asking at 5 requests/s", "dim")
    try:
        gone = await asyncio.to_thread(_api_is_gone)
        settings = TrafficSettings(url=url, rps=5, seconds=seconds)
        report = await run_traffic(settings, read_questions(questions))
    finally:
        control_plane.start_apiserver()
        board.say("kube-apiserver is started again", "dim")
    board.check(
        "answers while the control plane is gone",
        "0 lost, failed or degraded",
        f"{report.lost + report.errors + report.degraded} of {report.sent} (so at most {3 / max(report.sent, 1):.1%} at 95 %)",
        passed=gone and report.answered == report.sent > 0,
    )
    board.command(f"kubectl -n meridian scale {OPERATOR} --replicas={replicas}")
    began = time.monotonic()
    kubectl("scale", OPERATOR, f"--replicas={replicas}")
    printed = kubectl("rollout", "status", OPERATOR, "--timeout=120s", timeout=130, check=False)
    after = get("servingconfigs.meridian.dev", "support")["spec"]["generation"]
    board.check(
        "the control plane comes back",
        f"generation {before} or above",
        f"after {time.monotonic() - began:.0f} s, generation {after}",
        passed="successfully" in printed and after >= before,
    )


def _api_is_gone() -> bool:
    try:
        kubectl("get", "--raw", "/readyz", timeout=5)
    except KubectlFailed:
        return True
    return False
