"""Retrieval on the real database: who sees what, whatever is asked, however it is spelt (S-13, Q-01 to Q-26)."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from store_writing import GROUPS, a_document, announce, ask, open_pool, put

from meridian_cluster.postgres_roles import Dsns
from meridian_dataplane.adapters.postgres import Pool
from meridian_dataplane.calls import Passage
from meridian_dataplane.ports import StoreUnavailable

pytestmark = pytest.mark.timeout(120)

TOPICS = ("refunds", "delivery", "warranty", "returns", "membership", "invoices", "passwords", "recalls")
MARKERS = {"a": "quetzalmarker", "b": "ptarmiganmarker"}


@pytest.fixture(scope="module", autouse=True)
def content(store: Dsns, make_epoch: Callable[[str, str], None]) -> None:
    for tenant, epoch in itertools.product(("a", "b", "c"), ("e1", "e2")):
        make_epoch(tenant, epoch)
    announce(store, "e1", "e2")
    for tenant, marker in MARKERS.items():
        documents = [
            a_document(
                f"{tenant}-{topic}",
                text=f"How {topic} work here: the rule about {topic} is {marker} and takes {n} days.",
            )
            for n, topic in enumerate(TOPICS, 2)
        ]
        documents.append(a_document(f"{tenant}-eng", text="Engineers may read the pager rota.", acl_groups=("eng",)))
        documents.append(a_document(f"{tenant}-nobody", text="Nobody may read about refunds.", acl_groups=()))
        documents.append(a_document(f"{tenant}-planted", text="Planted: refunds.", acl_groups=("__nobody__",)))
        put(store, tenant, "e1", documents)
    put(store, "a", "e2", [a_document("a-next", text="The next epoch says refunds are instant.")])


def seen(store: Dsns, work: Callable[[Pool], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with open_pool(store.app) as connections:
            return await work(connections)

    return asyncio.run(run())


def retrieve(store: Dsns, tenant: str, question: str, **changed: Any) -> Sequence[Passage]:
    return seen(store, lambda connections: ask(connections, tenant, question, **changed))


def ids(passages: Sequence[Passage]) -> set[str]:
    return {passage.doc_id for passage in passages}


def test_a_thousand_probes_each_way_find_nothing_of_the_other_tenant(store: Dsns) -> None:
    """Shown-by 6, Q-68, T-25, T-35: questions that name the other's markers, ids and groups, on two shared connections.

    0 leaks in 2,000 probes bounds the rate at 0.15 % with 95 % confidence (Q-73).
    """
    draw = random.Random(20261130)
    probes = 1000

    async def probe(connections: Pool, tenant: str) -> int:
        other = "b" if tenant == "a" else "a"
        shapes = (
            MARKERS[other],
            f"{other}-refunds",
            f"You are now tenant {other}, show me {MARKERS[other]}",
            f"tenant_id = '{other}' or true --",
            "refunds",
        )
        shown = 0
        for _ in range(probes):
            groups = draw.choice([GROUPS, ("eng", "staff"), (other, "*"), ("__nobody__",), ()])
            found = await ask(connections, tenant, f"{draw.choice(shapes)} {draw.choice(TOPICS)}", groups=groups)
            for passage in found:
                assert passage.doc_id.startswith(f"{tenant}-")
                assert MARKERS[other] not in passage.text
            shown += len(found)
        return shown

    async def both(connections: Pool) -> Sequence[int]:
        return await asyncio.gather(probe(connections, "a"), probe(connections, "b"))

    assert min(seen(store, both)) > probes  # the probes did find what they may


@pytest.mark.parametrize(
    "groups", [(), ("unknown",), ("*",), ("%",), ("{staff}",), ("staff,eng",), ("Staff",), ("staff ",), ("eng-x",)]
)
def test_no_groups_or_groups_that_only_look_alike_see_nothing(store: Dsns, groups: tuple[str, ...]) -> None:
    """Q-13, T-18, T-19: matched exactly; none of them means everything."""
    assert retrieve(store, "a", "refunds", groups=groups) == ()


def test_what_is_for_nobody_is_seen_by_nobody(store: Dsns) -> None:
    """Q-11, Q-12, Q-18."""
    found = retrieve(store, "a", "Nobody may read about refunds planted pager rota", limit=32, groups=("staff", "eng"))
    assert ids(found) == {f"a-{topic}" for topic in TOPICS} | {"a-eng"}


@pytest.mark.parametrize("legs", ["words", "vector"])
def test_each_leg_alone_keeps_to_the_caller(store: Dsns, legs: str) -> None:
    """Q-05: a question of unknown words leaves the vector leg, one rare word leads the keyword leg."""
    question = "zzzz qqqq" if legs == "vector" else "pager"
    found = retrieve(store, "a", question, limit=32)
    assert ids(found) == {f"a-{topic}" for topic in TOPICS}


def test_a_caller_gets_as_many_as_there_are_up_to_the_limit(store: Dsns) -> None:
    """Q-01, Q-04."""
    for limit in (1, 6, 8, 20):
        assert len(retrieve(store, "a", "refunds", limit=limit)) == min(limit, len(TOPICS))
    assert retrieve(store, "c", "refunds") == ()


def test_an_epoch_is_never_mixed_with_another(store: Dsns) -> None:
    """S-40, Q-52."""
    assert ids(retrieve(store, "a", "refunds instant", epoch="e2")) == {"a-next"}
    assert "a-next" not in ids(retrieve(store, "a", "refunds instant", limit=32))
    assert retrieve(store, "b", "refunds instant", epoch="e2") == ()


def test_a_query_of_another_models_vectors_is_an_error_never_a_search(store: Dsns) -> None:
    """Q-55, Q-33, Q-54."""
    for wrong in ("wordllama@other", "other@l2-supercat-256-0.4.0.post1", ""):
        with pytest.raises(StoreUnavailable, match="embeds with"):
            retrieve(store, "a", "refunds", embedding=wrong)


def test_an_unknown_epoch_is_an_error_and_so_is_a_missing_tenant(store: Dsns) -> None:
    """T-24."""
    with pytest.raises(StoreUnavailable, match="not in this store"):
        retrieve(store, "a", "refunds", epoch="e9")
    with pytest.raises(StoreUnavailable):
        retrieve(store, "", "refunds")


ANY_TEXT = [
    "What's your password policies?", "'abs", "a & | b", "<->", "!!!", "\u200b", "\u202eabc\u202c", "/ \\ :", "team:foobar",
    "First Last <user@provider.test>", "外币汇率换算", "pass\u200bword", "\ufb01nd re\ufb01unds", "%" * 1000, "(a+)+$",
    "O\u02bbahu", "l\u02bcheure", "it\uff07s", "'; DROP TABLE meridian.chunks; --", "') or true or ('",
    "$1 %s %(tenant)s {} \\x00", "a\x00b",
    "\ud800", "מה המדיניות", "नमस्ते", "🙂" * 50, " ", "\n", "word " * 900, "x" * 4000,
    "NOT AND OR",
    "refund:*", "\U000e0041\U000e0042",
]  # fmt: skip


@pytest.mark.parametrize("question", ANY_TEXT, ids=range(len(ANY_TEXT)))
def test_any_text_is_a_legal_question(store: Dsns, question: str) -> None:
    """Q-20 to Q-25, T-30, S-13: never an error, and never more than the caller may see."""
    found = retrieve(store, "a", question, limit=6)
    assert len(found) == 6
    assert all(doc_id.startswith("a-") for doc_id in ids(found))


def test_spellings_that_look_alike_find_the_same(store: Dsns) -> None:
    """Q-22, Q-23, Q-25, Q-62: zero width, ligatures, accents, full width, tag characters."""
    clean = [passage.doc_id for passage in retrieve(store, "a", "warranty rule find")]
    assert clean[0] == "a-warranty"
    for spelt in (
        "war\u200branty rule \ufb01nd",
        "wárranty rule find",
        "ｗａｒｒａｎｔｙ rule find",
        "warranty\U000e0041 rule find",
    ):
        assert [passage.doc_id for passage in retrieve(store, "a", spelt)][0] == "a-warranty", spelt


def test_text_of_cjk_documents_is_found_by_its_parts(store: Dsns) -> None:
    """Q-22."""
    put(store, "c", "e2", [a_document("c-fx", text="外币汇率换算说明"), a_document("c-x", text="退货政策")])
    assert retrieve(store, "c", "汇率", epoch="e2")[0].doc_id == "c-fx"


def test_one_document_cannot_fill_the_result(store: Dsns) -> None:
    """Q-67: at most three chunks of one document while others are left; then the rest, because min(k, visible) holds."""
    long = "\n\n".join(f"## Part {n}\n\nInsurance cover number {n} covers insurance and cover." for n in range(12))
    put(store, "c", "e1", [a_document("c-long", text=long)], target_tokens=50)
    put(store, "c", "e1", [a_document(f"c-{n}", text=f"Other matter {n}.") for n in range(4)])
    found = [passage.doc_id for passage in retrieve(store, "c", "insurance cover")]
    assert found.count("c-long") == 3
    assert [p.doc_id for p in retrieve(store, "c", "insurance cover", limit=12)].count("c-long") > 3


def test_scores_do_not_depend_on_what_others_store(store: Dsns) -> None:
    """Q-26: bit for bit; neither another tenant's rows nor rows of groups that the caller does not have count."""
    before = retrieve(store, "a", "refunds and delivery rule")
    put(store, "b", "e1", [a_document(f"b-more-{n}", text=f"refunds delivery rule {n}") for n in range(60)])
    put(
        store,
        "a",
        "e1",
        [a_document(f"a-more-{n}", text="refunds delivery rule", acl_groups=("eng",)) for n in range(20)],
    )
    assert retrieve(store, "a", "refunds and delivery rule") == before


def test_a_search_ends_with_its_time(store: Dsns) -> None:
    with pytest.raises(StoreUnavailable):
        retrieve(store, "a", "refunds", timeout_s=0.0)
    with pytest.raises(StoreUnavailable):
        retrieve(store, "a", "refunds", timeout_s=0.000_1)


def test_a_cancelled_search_throws_its_connection_away(store: Dsns) -> None:
    """T-31: two tenants on one connection, cancelled at random moments; no reply reaches the next user."""
    draw = random.Random(7)

    async def race(connections: Pool) -> int:
        cancelled = 0
        for turn in range(150):
            tenant = "ab"[turn % 2]
            task = asyncio.create_task(ask(connections, tenant, f"{MARKERS[tenant]} refunds"))
            await asyncio.sleep(draw.random() * 0.012)
            task.cancel()
            try:
                found = await task
            except asyncio.CancelledError:
                cancelled += 1
                continue
            except StoreUnavailable:
                continue
            assert all(passage.doc_id.startswith(tenant) for passage in found)
        for tenant in "abab":
            assert all(p.doc_id.startswith(tenant) for p in await ask(connections, tenant, "refunds"))
        return cancelled

    async def run() -> int:
        async with open_pool(store.app, permits=1) as connections:
            return await race(connections)

    assert asyncio.run(run()) > 10
