"""The store on a real PostgreSQL: the schema as its owner, partitions, reads as `meridian_evidence`, and being down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from meridian_operator.cluster import Unreadable
from meridian_operator.converge import StoreError
from meridian_operator.indexepoch.observe import BUILD, PROGRESS
from meridian_operator.plan import EnsureEpoch, EnsureTenant
from meridian_operator.store.partitions import epochs_of_tenant
from meridian_operator.store.postgres import Postgres

DOWN = "postgresql://u:secret-password@127.0.0.1:1/db"


@pytest.fixture(scope="module")
def dsns() -> Iterator[Any]:
    postgres = pytest.importorskip("meridian_cluster.postgres")
    with postgres.temporary() as found:
        yield found


async def test_the_schema_runs_as_the_owner_and_again_without_change(dsns: Any) -> None:
    for _ in range(2):
        store = Postgres(dsns.owner, dsns.evidence)
        await store.open()
        try:
            await store.migrate()
            assert await store.read("select count(*) as n from meridian.epochs") == [{"n": 0}]
        finally:
            await store.close()


async def test_partitions_are_made_once_and_seen_by_tenant_and_epoch(dsns: Any) -> None:
    """S-61: onboarding and building by the first action, without a migration step before."""
    store = Postgres(dsns.owner, dsns.evidence)
    await store.open()
    try:
        assert await epochs_of_tenant(store, "acme") is None
        for _ in range(2):
            await store.ensure(EnsureTenant("acme"))
        assert await epochs_of_tenant(store, "acme") == frozenset()
        for epoch in ("2026.06", "it-2"):
            await store.ensure(EnsureEpoch("acme", epoch))
        assert await epochs_of_tenant(store, "acme") == {"2026.06", "it-2"}
        assert await epochs_of_tenant(store, "globex") is None
    finally:
        await store.close()


async def test_names_from_outside_are_values_and_never_sql(dsns: Any) -> None:
    store = Postgres(dsns.owner, dsns.evidence)
    await store.open()
    try:
        with pytest.raises(StoreError):
            await store.ensure(EnsureTenant("x'; drop schema meridian cascade; --"))
        await store.ensure(EnsureEpoch("acme", "quo'te"))
        found = await epochs_of_tenant(store, "acme")
        assert isinstance(found, frozenset) and "quo'te" in found
    finally:
        await store.close()


async def test_the_queries_of_an_epoch_fit_the_schema(dsns: Any) -> None:
    store = Postgres(dsns.owner, dsns.evidence)
    await store.open()
    try:
        await store.migrate()
        assert await store.read(BUILD, ("none", "uid")) == []
        assert await store.read(PROGRESS, ("none",)) == [{"documents": 0, "documents_total": 0, "chunks": 0}]
    finally:
        await store.close()


async def test_a_wrong_query_is_a_value(dsns: Any) -> None:
    store = Postgres(dsns.owner, dsns.evidence)
    await store.open()
    try:
        assert isinstance(await store.read("select * from meridian.tool_audit"), Unreadable), "evidence may not read it"
        assert isinstance(await store.read("select nonsense"), Unreadable)
    finally:
        await store.close()


async def test_a_server_that_is_down_is_a_value_to_readers_and_an_error_to_actors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("meridian_operator.store.postgres.READ_LIMIT", 0.5)
    store = Postgres(DOWN, DOWN)
    await store.open()
    try:
        found = await store.read("select 1")
        assert isinstance(found, Unreadable) and "secret-password" not in found.why
        with pytest.raises(StoreError) as caught:
            await store.ensure(EnsureTenant("acme"))
        assert "secret-password" not in str(caught.value)
    finally:
        await store.close()
