"""The story, top to bottom: onboard, index, promote, ask, improve, break, lose the control plane, pry."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from meridian_cli.address import dataplane_url
from meridian_cli.demo import asking, outage, releases, watching
from meridian_cli.demo.board import Board
from meridian_cli.identity import Identity, ask_command
from meridian_cli.kubectl import NAMESPACE, condition, get, kubectl

AGENT = Identity("acme-eu", groups=("support_agent",), roles=("support_agent",))
CUSTOMER = Identity("acme-eu", sub="u_4410", groups=("customers",), roles=("customer",))
OTHER = Identity("globex", sub="u_7002", groups=("support_agent",), roles=("support_agent",))
TENANTS = ("acme-eu", "globex")
COLUMNS = (
    "NAME:.metadata.name",
    "PHASE:.status.phase",
    "WEIGHT:.status.traffic.weightPercent",
    'REASON:.status.conditions[?(@.type=="Ready")].reason',
)


class Stopped(Exception):
    """A step on which all later ones rest did not happen."""


async def tell(args: argparse.Namespace, board: Board) -> None:
    """Every chapter; raises Stopped or KubectlFailed when going on would make no sense."""
    onboard(board, args.samples)
    build_index(board, args.samples)
    await first_release(board, args.samples)
    questions(board)
    better, bad = releases.render(args.samples, args.templates, args.releases)
    await better_release(board, args, better)
    await bad_release(board, args, bad, better)
    await outage.chapter(board, args.questions, args.outage_seconds)
    other_tenant(board)
    look_around(board, better, bad)


def apply(board: Board, *files: Path) -> None:
    for file in files:
        board.command(f"kubectl -n {NAMESPACE} apply --server-side -f {file}")
        kubectl("apply", "--server-side", "-f", file)


def wait_for(board: Board, what: str, condition_type: str, seconds: int) -> bool:
    board.command(f"kubectl -n {NAMESPACE} wait --for=condition={condition_type} {what} --timeout={seconds}s")
    arguments = ("wait", f"--for=condition={condition_type}", *what.split(), f"--timeout={seconds}s")
    printed = kubectl(*arguments, timeout=seconds + 10, check=False)
    met = bool(printed) and printed.count("condition met") >= 1 and "timed out" not in printed
    board.say(printed.strip() or "timed out", "dim")
    return met


def put(board: Board, identity: Identity, question: str) -> asking.Told:
    board.command(ask_command(identity, question))
    return asking.put(identity, question)


def onboard(board: Board, samples: Path) -> None:
    board.chapter("Onboard two tenants; acme-eu must stay in the EU")
    apply(board, samples / "00-tenants.yaml")
    ready = wait_for(board, " ".join(f"tenantpolicies.meridian.dev/{name}" for name in TENANTS), "Ready", 90)
    tenants = [t for t in get("tenantpolicies.meridian.dev").get("items", []) if t["spec"]["tenantId"] in TENANTS]
    seen = ", ".join(f"{t['spec']['tenantId']} {t.get('status', {}).get('phase')}" for t in tenants)
    board.check("two tenants onboarded", "acme-eu and globex Onboarded", seen, passed=ready and len(tenants) == 2)


def build_index(board: Board, samples: Path) -> None:
    board.chapter("Build an index from the sample's documents")
    names = ("10-prompts", "11-tools", "12-golden", "20-documents", "30-pools", "40-epoch")
    apply(board, *(samples / f"{name}.yaml" for name in names))
    built = wait_for(board, "indexepochs.meridian.dev --all", "Ready", 180)
    status = (get("indexepochs.meridian.dev").get("items") or [{}])[0].get("status", {})
    documents, total = status.get("documents", 0), status.get("documentsTotal", 0)
    board.check(
        "index built from real documents",
        "at least 40 documents, all of them",
        f"{documents} of {total} documents, {status.get('chunks', 0)} chunks",
        passed=built and documents == total >= 40,
    )
    if not built:
        raise Stopped("the index was not built")


async def first_release(board: Board, samples: Path) -> None:
    board.chapter("Promote the first release")
    before = get("releases.meridian.dev", releases.FIRST).get("status", {}).get("phase")
    seen = await watching.roll_out(board, samples / "50-release-1.yaml", releases.FIRST)
    earlier = before == seen.phase == "Promoted"
    told = "already promoted earlier" if earlier else f"{seen.phase} in {seen.took_s:.0f} s"
    board.check("first release", "Promoted", told, passed=seen.phase == "Promoted")
    if seen.phase != "Promoted":
        raise Stopped(f"the first release is {seen.phase}: {watching.without_phase(seen.phase, seen.message)}")
    # A Service refuses connections for about a second after its pods become ready.
    await asyncio.sleep(2)


def questions(board: Board) -> None:
    board.chapter("Ask three questions")
    asked = "Does an EU customer get an automatic refund for a duplicate charge?"
    told = put(board, AGENT, asked)
    board.check(
        "an answer with citations", "cites POL-EU-009", told.error or told.cited, passed="POL-EU-009" in told.cited
    )

    asked = "Customer on order A-77120 was charged twice. Do we refund automatically?"
    told = put(board, AGENT, asked)
    live = "delivered" in told.text.lower()
    board.check(
        "an answer with a live order",
        "the order's own state, and citations",
        told.error or f"{'order state told' if live else 'no order state'}; cites {told.cited}",
        passed=live and bool(told.citations),
    )

    asked = "How many moons does the planet Jupiter have?"
    told = put(board, CUSTOMER, asked)
    board.check(
        "a question without an answer",
        "abstains",
        told.error or ("abstains" if told.abstained else told.text[:80]),
        passed=told.abstained,
    )


async def better_release(board: Board, args: argparse.Namespace, better: releases.Later) -> None:
    board.chapter(f"A better release, judged on {args.rps:.0f} requests/s of real answers")
    seen = await watching.roll_out_under_traffic(board, better.file, better.name, args.questions, rps=args.rps)
    board.say(describe_canary(seen), "dim")
    board.check(
        "better release",
        "Promoted after a 50 % canary",
        f"{seen.phase} {describe_weights(seen.weights)}",
        passed=seen.phase == "Promoted" and 50 in seen.weights,
    )
    nobody_lost(board, seen, "nobody lost an answer to the promotion")


async def bad_release(board: Board, args: argparse.Namespace, bad: releases.Later, better: releases.Later) -> None:
    board.chapter("A release that is bad in substance: fine on the golden set, wrong on how people really ask")
    seen = await watching.roll_out_under_traffic(board, bad.file, bad.name, args.questions, rps=args.rps)
    board.say(describe_canary(seen), "dim")
    board.check(
        "bad release",
        "RolledBack for its task success, with the numbers",
        f"{seen.phase}: {watching.without_phase(seen.phase, seen.message)}",
        passed=seen.phase == "RolledBack" and watching.failed_in_substance(seen),
    )
    board.check(
        "its share never grew beyond the canary's",
        "at most 50 %",
        f"{seen.max_weight} %",
        passed=0 < seen.max_weight <= 50,
    )
    back = watching.back_seconds(seen)
    board.check(
        "weight 0 applied by every replica",
        "under 5 s from the decision",
        "not seen" if back is None else f"after {back:.1f} s at most",
        passed=back is not None and back < 5,
    )
    serving = get("servingconfigs.meridian.dev", "support")["spec"]["serving"]
    board.check("who serves now", better.name, serving, passed=serving == better.name)
    nobody_lost(board, seen, "nobody lost an answer to the rollback")


def describe_canary(seen: watching.Watched) -> str:
    """The numbers that the decision rests on, in one line."""
    entry = watching.deciding(seen)
    if not entry:
        return "nothing was judged"
    n = " against ".join(f"{entry.get(f'{arm}Successes')}/{entry.get(f'{arm}N')}" for arm in ("candidate", "control"))
    low, high = entry.get("intervalLow"), entry.get("intervalHigh")
    interval = f", difference {low:+.3f} to {high:+.3f}" if low is not None and high is not None else ""
    return f"planned n = {seen.status.get('plannedN')} judged answers an arm; task success {n}{interval}"


def describe_weights(weights: Sequence[int]) -> str:
    """`[0, 5, 25, 0]` as `after a canary at 5 % and 25 %`."""
    steps = [f"{weight} %" for weight in weights if weight]
    return f"after a canary at {' and '.join(steps)}" if steps else "without a canary"


def nobody_lost(board: Board, seen: watching.Watched, what: str) -> None:
    """Every answer of the run had an end that was no error."""
    report = seen.traffic
    if report is None:
        board.check(what, "0 lost", "no traffic", passed=False)
        return
    bad = report.lost + report.errors
    board.say("\n".join(f"  {c.release} ({c.arm}): {c.right}/{c.judged} right" for c in report.releases()), "dim")
    board.check(
        what,
        "0 lost or failed",
        f"{bad} of {report.sent} {dict(report.codes()) or ''}".strip(),
        passed=bad == 0 < report.sent,
    )


def other_tenant(board: Board) -> None:
    board.chapter("Ask as the other tenant for what it may not see")
    asked = "What is zephyrquartz and which goodwill limit does it carry?"
    told = put(board, OTHER, asked)
    leaked = "zephyrquartz" in told.text.lower() or "POL-EU" in told.cited
    board.check(
        "another tenant's internal policy",
        "nothing of it",
        told.error or ("LEAKED" if leaked else "nothing of it"),
        passed=not leaked and not told.error,
    )
    mine, theirs = asking.document_status(AGENT, "POL-EU-018"), asking.document_status(OTHER, "POL-EU-018")
    board.check(
        "the document itself",
        "200 for its tenant, 404 for the other",
        f"{mine} and {theirs}",
        passed=(mine, theirs) == (200, 404),
    )


def look_around(board: Board, better: releases.Later, bad: releases.Later) -> None:
    board.chapter("Everything is still running")
    board.say(kubectl("get", "releases.meridian.dev", "-o", f"custom-columns={','.join(COLUMNS)}"))
    board.say(kubectl("get", "inferencepools.meridian.dev,indexepochs,tenantpolicies,servingconfigs"))
    config = get("servingconfigs.meridian.dev", "support")
    ready = condition(get("releases.meridian.dev", better.name), "Ready")
    board.say(
        f"generation {config['spec']['generation']}; {better.name} Ready={ready.get('status')}; {dataplane_url()}",
        "dim",
    )
    for line in (
        "export KUBECONFIG=/var/lib/meridian/admin.kubeconfig",
        "export PATH=$PWD/.venv/bin:$PATH        # in this checkout",
        f"kubectl -n {NAMESPACE} get pods,releases.meridian.dev",
        f"kubectl -n {NAMESPACE} describe release {bad.name}",
        ask_command(CUSTOMER, "How long may a customer return unworn shoes?"),
        "meridian status        # what runs, and where its logs are",
        "make down              # ends it all",
    ):
        board.command(line)
