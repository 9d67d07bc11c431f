"""`python e2e/stories/measure.py`: memory of each process, what the data plane adds and how much it carries, lines of code.

Figures of one machine at one moment, with everything of the installation on it. The predictor is asked directly and through
the data plane in turn, in the same run, with the same documents in the prompt.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asking
import candidates
import httpx
import node_containers
from background_traffic import QUESTIONS
from live_cluster import LiveCluster, Object, is_ready_pod

from meridian_cli.address import dataplane_url
from meridian_cli.traffic_report import percentile
from meridian_cluster import processes

ROOT = Path(__file__).parents[2]
DIFFERENT = 20
"""Questions that are asked in turn."""


@dataclass(frozen=True)
class Timing:
    """One streamed answer, in milliseconds from sending."""

    first_ms: float
    total_ms: float


Asked = Callable[[httpx.AsyncClient, str], Awaitable[Timing]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100, help="of each kind, one after another")
    parser.add_argument("--at-once", type=int, default=8, help="users for the throughput")
    parser.add_argument("--seconds", type=float, default=20.0, help="of throughput")
    args = parser.parse_args()
    cluster = LiveCluster()
    print_memory(cluster)
    asyncio.run(print_speed(cluster, args.requests, args.at_once, args.seconds))
    print_lines()


def print_memory(cluster: LiveCluster) -> None:
    print("\nresident memory, MiB (pages that processes share are counted once)")
    for name in processes.names():
        identity = processes.running(name)
        if identity:
            print(f"  {name:44} {sum(_resident(pid) for pid in _family(identity.pid)) / 2**20:8.1f}")
    print("  containers (all processes of each):")
    pods = cluster.all("pod") + cluster.all("kserve pod")
    for pod in sorted(pods, key=lambda p: p["metadata"]["name"]):
        if pod["status"]["phase"] != "Running":
            continue
        for status in pod["status"].get("containerStatuses", ()):
            pids = node_containers.pids_of_container(status["containerID"].split("://", 1)[1])
            print(f"  {pod['metadata']['name']:44} {sum(_resident(pid) for pid in pids) / 2**20:8.1f}")


async def print_speed(cluster: LiveCluster, requests: int, at_once: int, seconds: float) -> None:
    own = asking.bearer(asking.token(asking.ACME_CUSTOMER))
    url = dataplane_url(cluster.kubeconfig)
    pod, model = _predictor(cluster)
    asked = (json.loads(line) for line in QUESTIONS.read_text().splitlines())
    questions = [q["question"] for q in asked if q["tenant"] == "acme-eu" and q["groups"] == ["customers"]][:DIFFERENT]

    async def through(client: httpx.AsyncClient, question: str) -> Timing:
        body = {"question": question, "conversationId": f"measure-{uuid.uuid4().hex}"}
        reply = await asking.ask(client, url, own, body)
        if reply.end != "done" or reply.first_token_at is None:
            raise RuntimeError(f"{reply.end} {reply.status} {reply.why} {reply.raw[-200:]!r}")
        return Timing((reply.first_token_at - reply.asked_at) * 1000, (reply.ended_at - reply.asked_at) * 1000)

    passages: dict[str, list[str]] = {}

    async def direct(client: httpx.AsyncClient, question: str) -> Timing:
        return await _complete(client, f"http://{pod}:8080", model, question, passages[question])

    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=30, limits=limits, trust_env=False) as client:
        for question in questions:
            passages[question] = await _passages(client, url, own, question)
        timings: dict[str, list[Timing]] = {"direct": [], "through": []}
        for number in range(requests):
            question = questions[number % len(questions)]
            timings["direct"].append(await direct(client, question))
            timings["through"].append(await through(client, question))
        print(f"\none after another, {requests} of each, ms: first token p50 / p95, total p50 / p95")
        for name, found in timings.items():
            print(f"  {name:44} {_four(found)}")
        first = [_at(timings["through"], "first_ms", s) - _at(timings["direct"], "first_ms", s) for s in (0.5, 0.95)]
        total = [_at(timings["through"], "total_ms", s) - _at(timings["direct"], "total_ms", s) for s in (0.5, 0.95)]
        added = f"{first[0]:7.1f} / {first[1]:7.1f}, {total[0]:7.1f} / {total[1]:7.1f}"
        print(f"  {'added by the data plane':44} {added}")
        for name, one in (("direct", direct), ("through", through)):
            found, took = await _throughput(client, one, questions, at_once, seconds)
            print(f"  {name + f', {at_once} users at once':44} {_four(found)}   {len(found) / took:6.1f} requests/s")


def print_lines() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    lines: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name in tracked:
        if not name.endswith((".py", ".sql")) or not (ROOT / name).is_file():
            continue
        parts = Path(name).parts
        package = "/".join(parts[:-1][:3] if parts[0] == "e2e" else parts[:-1][:2]).removesuffix("/tests")
        is_test = "tests" in parts or parts[-1].startswith("test_")
        lines[package][is_test] += len((ROOT / name).read_text().splitlines())
    print("\nlines of Python and SQL: code, tests")
    for package, (code, tests) in sorted(lines.items()):
        print(f"  {package:44} {code:7} {tests:7}")
    print(f"  {'all':44} {sum(c for c, _ in lines.values()):7} {sum(t for _, t in lines.values()):7}")


async def _throughput(
    client: httpx.AsyncClient, one: Asked, questions: list[str], at_once: int, seconds: float
) -> tuple[list[Timing], float]:
    """`at_once` users, each with the next question as soon as the last is answered."""
    found: list[Timing] = []
    began = time.monotonic()

    async def user(number: int) -> None:
        while time.monotonic() - began < seconds:
            number += at_once
            found.append(await one(client, questions[number % len(questions)]))

    await asyncio.gather(*(user(n) for n in range(at_once)))
    return found, time.monotonic() - began


async def _complete(client: httpx.AsyncClient, url: str, model: str, question: str, texts: list[str]) -> Timing:
    """The engine alone, with the prompt that the data plane makes, or nearly: the same documents, six passages."""
    passages = "\n".join(f'<passage id="p{n:04x}">{text}</passage>' for n, text in enumerate(texts))
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 256,
        "messages": [
            {"role": "system", "content": "Answer only from the passages."},
            {"role": "user", "content": f"{passages}\n<question>{question}</question>"},
        ],
    }
    sent, first = time.monotonic(), None
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if first is None and '"content":' in line.replace(" ", "") and '"content":""' not in line.replace(" ", ""):
                first = time.monotonic()
    now = time.monotonic()
    return Timing(((first or now) - sent) * 1000, (now - sent) * 1000)


async def _passages(client: httpx.AsyncClient, url: str, own: dict[str, str], question: str) -> list[str]:
    """Six documents, those that the data plane cites for this question among them: so the answer is as long."""
    reply = await asking.ask(client, url, own, {"question": question, "conversationId": f"measure-{uuid.uuid4().hex}"})
    cited = dict.fromkeys(reply.cited)
    others = (f.stem for f in sorted((ROOT / "crds/samples/content/acme-eu").glob("POL-*.md")))
    texts: list[str] = []
    for name in (*cited, *(o for o in others if o not in cited)):
        opened = await client.get(f"{url}/v1/documents/{name}", headers=own)
        if opened.status_code == 200 and len(texts) < 6:
            texts.append(opened.json()["text"])
    return texts


def _predictor(cluster: LiveCluster) -> tuple[str, str]:
    """Address of a ready pod of the version that serves, and the model's name."""
    primary = candidates.serving_release(cluster)["spec"]["models"]["primary"]
    pool = cluster.get("pool", primary["pool"])
    workload = next(v["workload"] for v in pool["status"]["versions"] if v["name"] == primary["version"])
    pods: list[Object] = cluster.all("pod", f"meridian.dev/version-of={workload}")
    return next(p["status"]["podIP"] for p in pods if is_ready_pod(p)), pool["spec"]["model"]


def _at(found: list[Timing], field: str, share: float) -> float:
    return percentile((getattr(t, field) for t in found), share) or 0.0


def _four(found: list[Timing]) -> str:
    first, total = ([_at(found, field, s) for s in (0.5, 0.95)] for field in ("first_ms", "total_ms"))
    return f"{first[0]:7.1f} / {first[1]:7.1f}, {total[0]:7.1f} / {total[1]:7.1f}"


def _family(pid: int) -> list[int]:
    """The process and its children: PostgreSQL is many."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [pid, *(int(child) for child in children.read_text().split())] if children.exists() else [pid]


def _resident(pid: int) -> int:
    """Proportional: memory that processes share is counted once."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
