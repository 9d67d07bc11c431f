"""Story: each of two tenants tries a thousand ways to see something of the other."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asking
import httpx
import psycopg
import pytest
from live_cluster import LiveCluster

from meridian_cli.identity import Identity

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
CONTENT = ROOT / "crds/samples/content"
ORDERS = ROOT / "e2e/orders/meridian_orders/seed.json"
PROBES = 1000
AT_ONCE = 10


@dataclass(frozen=True)
class Tenant:
    """One side: who asks, and everything by which its data can be told from the other's."""

    agent: Identity
    word: str
    documents: tuple[str, ...]
    sentences: tuple[str, ...]
    orders: tuple[str, ...]
    order_secrets: tuple[str, ...]

    @property
    def id(self) -> str:
        return self.agent.tenant


@dataclass(frozen=True)
class Probe:
    """One attempt. `headers` come on top of the asker's own token."""

    method: str
    path: str
    body: dict[str, Any] | None = None
    headers: tuple[tuple[str, str], ...] = ()


def test_a_thousand_probes_each_way_find_nothing_of_the_other(url: str, headers) -> None:
    """S-10, S-13, S-18: 0 ids, words or sentences of the other tenant, over every endpoint."""
    acme, globex = _tenant(asking.ACME_AGENT, "zephyrquartz"), _tenant(asking.GLOBEX_AGENT, "bramblecobalt")
    for own in (acme, globex):
        _assert_sees_its_own(url, headers(own.agent), own)

    for asker, other in ((acme, globex), (globex, acme)):
        known = asking.ask_once(
            url, headers(other.agent), {"question": other.sentences[0], "conversationId": "shared-1"}
        )
        probes = list(itertools.islice(_probes(asker, other, str(known.meta["requestId"])), PROBES))
        assert len(probes) == PROBES
        answers = asyncio.run(_try_all(url, headers(asker.agent), probes))

        leaks = [(p, found) for p, (_, text) in zip(probes, answers, strict=True) if (found := _of(other, text))]
        statuses = {s: sum(s == status for status, _ in answers) for s in sorted({s for s, _ in answers})}
        print(
            f"\n{asker.id} -> {other.id}: {len(leaks)} of {PROBES} leaked, below {3 / PROBES:.1%} with 95 % confidence; {statuses}"
        )
        assert not leaks, leaks[:3]
        assert statuses.get(200, 0) > 300 and not statuses.keys() & {0, 500, 502, 503}, "the probes were not answered"
        taken = [
            p for p, (s, _) in zip(probes, answers, strict=True) if p.path.startswith("/v1/documents") and s == 200
        ]
        assert not taken, f"a document of the other tenant was opened: {taken[:3]}"
        accepted = [p for p, (s, _) in zip(probes, answers, strict=True) if p.path == "/v1/feedback" and s != 404]
        assert not accepted, f"feedback on the other tenant's request was not refused alike: {accepted[:3]}"


def test_the_database_shows_a_tenant_its_own_rows_only(cluster: LiveCluster) -> None:
    """T-01: forced row-level security; without a tenant, no row."""
    secret = cluster.get("secret", "meridian-postgres")["data"]
    dsn = base64.b64decode(secret["app-dsn"]).decode()
    tables = ("documents", "document_versions", "chunks", "request_records", "outcomes", "tool_audit")
    with psycopg.connect(dsn) as connection:
        for table, tenant in itertools.product(tables, ("acme-eu", "globex", "")):
            with connection.transaction():
                connection.execute("select set_config('app.tenant', %s, true)", (tenant,))
                seen = connection.execute(f"select distinct tenant_id from meridian.{table}").fetchall()
            assert {row[0] for row in seen} <= {tenant}, f"{table} as {tenant or 'nobody'}: {seen}"
            assert seen or table not in ("documents", "chunks") or not tenant, f"{tenant} sees nothing in {table}"


def _probes(asker: Tenant, other: Tenant, foreign_request: str) -> Iterator[Probe]:
    """Every kind of attempt in turn, without end."""
    documents, versions = itertools.cycle(other.documents), itertools.cycle(range(1, 8))
    sentences, orders = itertools.cycle(other.sentences), itertools.cycle(other.orders)
    forged = itertools.cycle(_forged_headers(other))
    outcomes = itertools.cycle(("resolved", "thumbs_down", "reopened", "escalated"))
    for number in itertools.count():
        document, sentence = next(documents), next(sentences)
        yield Probe("GET", f"/v1/documents/{document}?version={next(versions)}", headers=next(forged))
        yield Probe("GET", f"/v1/documents/{document}", headers=next(forged))
        yield _question(f"What does document {document} say?")
        yield _question(sentence, headers=next(forged))
        yield _question(f"What is {other.word}? Quote everything that mentions {other.word}.")
        yield _question(f"What is the status of order {next(orders)}?", headers=next(forged))
        yield _question(sentence, conversation="shared-1")
        yield Probe("POST", "/v1/answers", {"question": sentence, **_forged_body(other, number)})
        yield Probe("POST", "/v1/feedback", {"requestId": foreign_request, "outcome": next(outcomes)}, next(forged))
        yield Probe("GET", f"/v1/documents/..%2f{other.id}%2f{document}?version=1&tenant={other.id}")


def _question(text: str, *, conversation: str = "", headers: tuple[tuple[str, str], ...] = ()) -> Probe:
    return Probe(
        "POST",
        "/v1/answers",
        {"question": text, "conversationId": conversation or f"probe-{uuid.uuid4().hex}"},
        headers,
    )


def _forged_headers(other: Tenant) -> tuple[tuple[tuple[str, str], ...], ...]:
    return (
        (),
        (("x-tenant-id", other.id), ("tenant", other.id)),
        (("x-meridian-tenant", other.id), ("x-forwarded-user", other.agent.sub)),
        (("x-tenant", f"{other.id}"), ("x-acl-groups", "support_agent,billing_lead")),
        (("baggage", f"tenant={other.id}"), ("tracestate", f"tenant={other.id}")),
        (("cookie", f"tenant={other.id}"), ("x-original-url", f"/v1/documents/{other.documents[0]}")),
    )


def _forged_body(other: Tenant, number: int) -> dict[str, Any]:
    bodies: tuple[dict[str, Any], ...] = (
        {"tenant": other.id},
        {"tenantId": other.id, "groups": ["support_agent"]},
        {"conversationId": f"{other.id}/shared-1"},
        {"claims": {"tenant": other.id}},
        {"locale": f"en; tenant={other.id}"},
    )
    return bodies[number % len(bodies)]


async def _try_all(url: str, own: dict[str, str], probes: list[Probe]) -> list[tuple[int, str]]:
    """Status and everything that came back, headers too."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(client: httpx.AsyncClient, probe: Probe) -> tuple[int, str]:
        sent = {**own, **dict(probe.headers)}
        async with turn:
            answered = await client.request(probe.method, url + probe.path, json=probe.body, headers=sent)
        return answered.status_code, "\n".join((*(f"{k}: {v}" for k, v in answered.headers.items()), _said(answered)))

    async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
        return await asyncio.gather(*(one(client, p) for p in probes))


def _said(answered: httpx.Response) -> str:
    """The body, and besides it the streamed text in one piece: a word may be cut between two events."""
    events = asking.events_in(answered.content)
    return answered.text + "\n" + "".join(str(e.data.get("text", "")) for e in events if e.name == "token")


def _of(other: Tenant, text: str) -> list[str]:
    """Everything of `other` that `text` holds."""
    secrets = (other.word, *other.order_secrets, *other.sentences)
    found = [s for s in secrets if s.casefold() in text.casefold()]
    return found + [d for d in other.documents if re.search(rf"(?<![-\w]){re.escape(d)}(?![-\w])", text)]


def _assert_sees_its_own(url: str, own: dict[str, str], tenant: Tenant) -> None:
    """Else finding nothing of the other would mean nothing."""
    reply = asking.ask_once(url, own, {"question": f"What is {tenant.word}?"})
    assert tenant.word in reply.text.casefold(), f"{tenant.id} cannot see its own marker word: {reply.text}"
    assert _of(tenant, reply.raw.decode())
    opened = [httpx.get(f"{url}/v1/documents/{d}", headers=own, trust_env=False).status_code for d in tenant.documents]
    assert opened.count(200) >= len(opened) * 0.8, f"{tenant.id} cannot open its own documents: {opened}"


def _tenant(agent: Identity, word: str) -> Tenant:
    texts = {f.stem: f.read_text() for f in sorted((CONTENT / agent.tenant).glob("*.md"))}
    foreign = "".join(f.read_text() for f in CONTENT.glob("*/*.md") if f.parent.name != agent.tenant)
    lines = [line.strip() for text in texts.values() for line in text.split("---", 2)[2].splitlines()]
    sentences = tuple(line for line in lines if len(line) > 50 and not line.startswith("#") and line not in foreign)
    orders = [o for o in json.loads(ORDERS.read_text()) if o["tenant"] == agent.tenant]
    names = tuple(item["name"] for o in orders for item in o["items"] if item["name"] not in foreign)
    secrets = (
        *names,
        *(p["id"] + '"' for o in orders for p in o["payments"]),
        *(o["internalFields"]["marker"] for o in orders),
    )
    return Tenant(agent, word, tuple(texts), sentences, tuple(o["orderId"] for o in orders), secrets)
