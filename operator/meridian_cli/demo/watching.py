"""Watches one release from apply to its end, under traffic, and keeps what the closing table needs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from meridian_cli.address import dataplane_url
from meridian_cli.demo.board import Board
from meridian_cli.kubectl import NAMESPACE, KubectlFailed, condition, get, kubectl
from meridian_cli.traffic import TrafficSettings, read_questions, run_traffic
from meridian_cli.traffic_report import TrafficReport

DATAPLANE = "app.kubernetes.io/component=dataplane"
ENDED = ("Promoted", "RolledBack", "Rejected", "Superseded")


@dataclass
class Watched:
    """How a release's rollout went."""

    phase: str = "Pending"
    message: str = ""
    status: dict[str, Any] = field(default_factory=dict)
    max_weight: int = 0
    """Highest candidate weight in the ServingConfig that was seen."""
    weights: list[int] = field(default_factory=list)
    zero_generation: int = 0
    """The generation that took the candidate's weight away; 0 until it is seen."""
    zero_applied_at: float | None = None
    """Wall clock of the first sight of every replica's report that it has applied that generation."""
    took_s: float = 0.0
    traffic: TrafficReport | None = None


async def roll_out(board: Board, manifest: Path, name: str, *, timeout: float = 300.0) -> Watched:
    """Applies `manifest` and watches release `name` to its end."""
    board.command(f"kubectl -n {NAMESPACE} apply --server-side -f {manifest}")
    kubectl("apply", "--server-side", "-f", manifest)
    pods = {pod["metadata"]["name"] for pod in get_pods()}
    seen, began = Watched(), time.monotonic()
    while time.monotonic() - began < timeout:
        try:
            release, config = await asyncio.gather(
                asyncio.to_thread(get, "releases.meridian.dev", name),
                asyncio.to_thread(get, "servingconfigs.meridian.dev", "support"),
            )
        except KubectlFailed as failed:
            board.live(f"(the API server does not answer: {failed})")
            await asyncio.sleep(1)
            continue
        note_serving(seen, config, name, pods)
        seen.status = release.get("status", {})
        told = seen.status.get("phase", "Pending"), seen.status.get("message", "")
        if told != (seen.phase, seen.message):
            seen.phase, seen.message = told
            board.live(f"  {seen.phase:<12} {without_phase(*told)}")
        going_back = bool(seen.max_weight) and seen.zero_applied_at is None
        if seen.phase in ENDED and not (seen.phase == "RolledBack" and going_back):
            break
        await asyncio.sleep(0.05 if seen.zero_generation and going_back else 0.3)
    seen.took_s = time.monotonic() - began
    return seen


def get_pods() -> list[dict[str, Any]]:
    """The data plane's pods."""
    return json.loads(kubectl("get", "pods", "-l", DATAPLANE, "-o", "json"))["items"]


async def roll_out_under_traffic(
    board: Board, manifest: Path, name: str, questions: Path, *, rps: float, tail_s: float = 3.0
) -> Watched:
    """The same with people asking at `rps` and saying whether they were helped."""
    stop = asyncio.Event()
    settings = TrafficSettings(url=dataplane_url(), rps=rps, seconds=900)
    people = asyncio.create_task(run_traffic(settings, read_questions(questions), stop=stop))
    try:
        seen = await roll_out(board, manifest, name)
        await asyncio.sleep(tail_s)
    finally:
        stop.set()
    seen.traffic = await people
    return seen


def evidence(seen: Watched) -> dict[str, Mapping[str, Any]]:
    """The status's evidence by name."""
    return {entry["name"]: entry for entry in seen.status.get("evidence", [])}


def deciding(seen: Watched) -> Mapping[str, Any]:
    """The evidence on task success that decided: harm when it was shown, else the planned look."""
    found = evidence(seen)
    harm = found.get("task-success-harm", {})
    return harm if harm.get("verdict") == "Fail" else found.get("task-success", {})


def failed_in_substance(seen: Watched) -> bool:
    """Whether it went back because its answers helped fewer people, not for its latency or its errors."""
    reason = condition({"status": seen.status}, "Degraded").get("reason")
    return reason in ("HarmShown", "Inferior") or deciding(seen).get("verdict") == "Fail"


def back_seconds(seen: Watched) -> float | None:
    """At most so long from the decision to weight 0 in every replica: the decision's time is known to the second."""
    decided = [entry["at"] for entry in seen.status.get("history", []) if entry["phase"] == "RolledBack"]
    if not decided or seen.zero_applied_at is None:
        return None
    return max(0.0, seen.zero_applied_at - datetime.fromisoformat(decided[-1]).timestamp())


def without_phase(phase: str, message: str) -> str:
    """`Rolled back: too slow` beside the phase RolledBack is `too slow`."""
    head, colon, rest = message.partition(": ")
    return rest if colon and head.replace(" ", "").lower() == phase.lower() else message


def note_serving(seen: Watched, config: Mapping[str, Any], name: str, pods: Collection[str]) -> None:
    """Notes the candidate's weight in a ServingConfig, and when all of `pods` have applied that it lost it."""
    spec = config.get("spec", {})
    weight = spec.get("candidateWeightPercent", 0) if spec.get("candidate") == name else 0
    if not seen.weights or seen.weights[-1] != weight:
        seen.weights.append(weight)
    seen.max_weight = max(seen.max_weight, weight)
    if seen.max_weight and not weight and not seen.zero_generation:
        seen.zero_generation = spec["generation"]
    reports = {
        report["replica"]: report.get("generation", 0) for report in config.get("status", {}).get("replicas", [])
    }
    applied = bool(pods) and all(reports.get(pod, 0) >= seen.zero_generation for pod in pods)
    if seen.zero_generation and applied and seen.zero_applied_at is None:
        seen.zero_applied_at = time.time()
