"""Watches one release from apply to its end, under traffic, and keeps what the closing table needs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meridian_cli.address import dataplane_url
from meridian_cli.demo.board import Board
from meridian_cli.kubectl import KubectlFailed, get, kubectl
from meridian_cli.traffic import TrafficSettings, read_questions, run_traffic
from meridian_cli.traffic_report import TrafficReport

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
    zero_to_end_s: float | None = None
    """From the first sight of the rollback to the sight of every replica's acknowledgement."""
    took_s: float = 0.0
    traffic: TrafficReport | None = None


async def roll_out(board: Board, manifest: Path, name: str, *, timeout: float = 300.0) -> Watched:
    """Applies `manifest` and watches release `name` to its end."""
    board.command(f"kubectl apply --server-side -f {manifest}")
    kubectl("apply", "--server-side", "-f", manifest)
    seen, began, zero_at = Watched(), time.monotonic(), None
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
        zero_at = _note_weight(seen, config.get("spec", {}), name, zero_at)
        status = release.get("status", {})
        if status.get("phase") == "RolledBack" and zero_at is None:
            zero_at = time.monotonic()
        if (status.get("phase"), status.get("message")) != (seen.phase, seen.message):
            seen.phase, seen.message = status.get("phase", "Pending"), status.get("message", "")
            board.live(f"  {seen.phase:<12} {seen.message}")
        seen.status = status
        if seen.phase in ENDED and (seen.phase != "RolledBack" or status.get("traffic", {}).get("acknowledged")):
            break
        await asyncio.sleep(0.3)
    seen.took_s = time.monotonic() - began
    if zero_at is not None:
        seen.zero_to_end_s = time.monotonic() - zero_at
    return seen


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


def _note_weight(seen: Watched, spec: Mapping[str, Any], name: str, zero_at: float | None) -> float | None:
    weight = spec.get("candidateWeightPercent", 0) if spec.get("candidate") == name else 0
    if not seen.weights or seen.weights[-1] != weight:
        seen.weights.append(weight)
    if seen.max_weight and not weight and zero_at is None:
        zero_at = time.monotonic()
    seen.max_weight = max(seen.max_weight, weight)
    return zero_at
