"""What the database refuses by itself (T-24 to T-29): rights, row security, keys, asked of the catalogue and tried as each role."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import psycopg
import pytest
from psycopg import sql
from store_writing import SCHEMA

from meridian_cluster.postgres_roles import Dsns
from meridian_dataplane.adapters.postgres import Pool, PostgresRole
from meridian_dataplane.ports import UnsafeRole

ROLES = ("meridian_owner", "meridian_app", "meridian_ingest", "meridian_evidence")


@pytest.fixture(scope="module", autouse=True)
def two_tenants(make_epoch: Callable[[str, str], None]) -> None:
    for tenant in ("a", "b"):
        make_epoch(tenant, "e1")
        make_epoch(tenant, "e2")


def rows(dsn: str, query: str) -> list[tuple]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(query).fetchall()


TENANT_TABLES = """
select c.oid::regclass::text, c.relrowsecurity, c.relforcerowsecurity,
       (select array_agg(p.polname::text order by 1) from pg_policy p where p.polrelid = c.oid)
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
  join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id' and not a.attisdropped
 where n.nspname = 'meridian' and c.relkind in ('r', 'p', 'v', 'm', 'f')
"""


def test_the_schema_can_be_run_again_and_by_two_at_once(store: Dsns) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with psycopg.connect(store.owner) as connection:
                connection.execute(SCHEMA.read_bytes())
        except BaseException as failed:  # noqa: BLE001
            failures.append(failed)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_every_table_with_a_tenant_forces_row_security_and_has_policies(store: Dsns) -> None:
    """T-26: partitions too, although no role but the owner may name them."""
    found = rows(store.owner, TENANT_TABLES)
    assert len(found) >= 7 + 2 * 3
    for table, enabled, forced, policies in found:
        assert enabled and forced, table
        assert "own_tenant" in policies, table


def test_every_key_of_such_a_table_begins_with_the_tenant(store: Dsns) -> None:
    """T-29: no primary, unique or foreign key, and no unique index, tells about another tenant."""
    keys = rows(
        store.owner,
        """
        select i.indexrelid::regclass::text, a.attname from pg_index i
          join pg_class c on c.oid = i.indrelid join pg_namespace n on n.oid = c.relnamespace
          join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
         where n.nspname = 'meridian' and (i.indisunique or i.indisprimary)
           and exists (select 1 from pg_attribute t where t.attrelid = i.indrelid and t.attname = 'tenant_id')
        union all
        select k.conname, a.attname from pg_constraint k
          join pg_namespace n on n.oid = k.connamespace
          join pg_attribute a on a.attrelid = k.conrelid and a.attnum = k.conkey[1]
         where n.nspname = 'meridian' and k.contype = 'f'
           and exists (select 1 from pg_attribute t where t.attrelid = k.conrelid and t.attname = 'tenant_id')
        """,
    )
    assert len(keys) > 8
    assert {column for _, column in keys} == {"tenant_id"}


def test_no_view_and_no_function_leads_round_row_security(store: Dsns) -> None:
    """T-28."""
    views = rows(
        store.owner,
        "select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'meridian'"
        " and (c.relkind = 'm' or c.relkind = 'v' and not coalesce(c.reloptions, '{}') && '{security_invoker=true}')",
    )
    functions = rows(
        store.owner,
        "select p.proname, p.prosecdef, p.proconfig from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
        " where n.nspname = 'meridian'",
    )
    assert views == []
    for name, definer, config in functions:
        assert not definer, name
        assert any(setting.startswith("search_path=") for setting in config or ()), name


def test_no_role_is_a_superuser_bypasses_row_security_or_belongs_to_another(store: Dsns) -> None:
    """T-26."""
    for role, superuser, bypasses, creates in rows(
        store.superuser,
        "select rolname, rolsuper, rolbypassrls, rolcreaterole or rolcreatedb from pg_roles where rolname like 'meridian%'",
    ):
        assert not (superuser or bypasses or creates), role
    members = rows(
        store.superuser,
        "select 1 from pg_auth_members m join pg_roles r on r.oid in (m.member, m.roleid) where r.rolname like 'meridian%'",
    )
    assert members == []


FORBIDDEN_TO_APP = [
    "truncate meridian.chunks",
    "lock table meridian.documents in access exclusive mode",
    "create table meridian.mine (x int references meridian.epochs)",
    "create table public.mine (x int)",
    "create temporary table mine (x int)",
    "copy meridian.documents to '/tmp/x'",
    "copy meridian.documents to program 'true'",
    "select pg_read_file('/etc/passwd')",
    "set role meridian_owner",
    "set role postgres",
    "delete from meridian.request_records",
    "update meridian.request_records set release = 'x'",
    "update meridian.tool_audit set outcome = 'x'",
    "delete from meridian.tool_audit",
    "delete from meridian.outcomes",
    "update meridian.outcomes set request_id = 'x'",
    "insert into meridian.documents (tenant_id, epoch, doc_id, current_version, content_hash, chunk_count) values ('a','e','d',1,'',0)",  # noqa: E501
    "update meridian.chunks set acl_groups = '{x}'",
    "select * from meridian.evaluation_reports",
    "select error from meridian.epochs",
    "update meridian.epochs set state = 'built'",
    "select meridian.ensure_tenant('x')",
    "select meridian.drop_epoch('a', 'e1')",
    "alter table meridian.chunks disable row level security",
    "drop policy own_tenant on meridian.chunks",
]


@pytest.mark.parametrize("statement", FORBIDDEN_TO_APP)
def test_the_data_planes_role_may_do_row_operations_only(store: Dsns, statement: str) -> None:
    """T-26, T-27."""
    with psycopg.connect(store.app) as connection:
        connection.execute("select set_config('app.tenant', 'a', true)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement.encode())


def test_partitions_cannot_be_named_by_the_roles_that_serve(store: Dsns) -> None:
    (name,) = rows(store.owner, "select meridian.partition_name('a', 'e1')")[0]
    for dsn in (store.app, store.ingest, store.evidence):
        with psycopg.connect(dsn) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(sql.SQL("select * from meridian.{}").format(sql.Identifier(name)))


def test_turning_row_security_off_is_an_error_not_a_way_in(store: Dsns) -> None:
    """T-26."""
    with psycopg.connect(store.app) as connection:
        connection.execute("set row_security = off")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("select * from meridian.documents")


DOCUMENT = """
insert into meridian.documents (tenant_id, epoch, doc_id, current_version, acl_groups, content_hash, chunk_count)
values (%s, 'e1', 'same-key', 1, '{g}', '', 0) on conflict do nothing
"""


def put(dsn: str, tenant: str, statement: str = DOCUMENT) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("select set_config('app.tenant', %s, true)", [tenant])
        connection.execute(statement.encode(), [tenant])


@pytest.mark.parametrize("setting", [None, "", "nobody", "A", "a "])
def test_without_a_tenant_or_with_a_wrong_one_every_table_is_empty(store: Dsns, setting: str | None) -> None:
    """T-24: also on a connection whose earlier transaction had a tenant (the setting then reads as '')."""
    put(store.ingest, "a")
    tables = [
        table
        for (table, *_) in rows(store.owner, TENANT_TABLES)
        if "chunks_t" not in table and "epoch_sources" not in table
    ]
    with psycopg.connect(store.app) as connection:
        connection.execute("select set_config('app.tenant', 'a', true)")
        assert connection.execute("select count(*) from meridian.documents").fetchone() == (1,)
        connection.commit()
        for table in tables:
            if setting is not None:
                connection.execute("select set_config('app.tenant', %s, true)", [setting])
            assert connection.execute(f"select count(*) from {table}".encode()).fetchone() == (0,), table
            connection.commit()


def test_a_key_that_another_tenant_uses_is_free(store: Dsns) -> None:
    """T-29."""
    put(store.ingest, "a")
    put(store.ingest, "b", DOCUMENT.replace(" on conflict do nothing", ""))


def test_a_row_of_another_tenant_can_be_neither_written_nor_moved(store: Dsns) -> None:
    put(store.ingest, "a")
    with psycopg.connect(store.ingest) as connection:
        connection.execute("select set_config('app.tenant', 'b', true)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(DOCUMENT.encode(), ["a"])
        connection.rollback()
        connection.execute("select set_config('app.tenant', 'a', true)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("update meridian.documents set tenant_id = 'b' where doc_id = 'same-key'")


def test_evidence_reads_counts_of_all_tenants_and_no_content(store: Dsns) -> None:
    for table in ("request_records", "outcomes", "evaluation_reports", "epochs", "epoch_shards", "epoch_sources"):
        rows(store.evidence, f"select * from meridian.{table}")
    for table in ("documents", "document_versions", "chunks", "tool_audit"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            rows(store.evidence, f"select * from meridian.{table}")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        rows(store.evidence, "delete from meridian.outcomes")


@pytest.mark.parametrize("tenant", ["", "A", "a b", "a'; drop table x; --", "-a", "x" * 41, "acmе"])
def test_what_is_no_tenant_id_gets_no_partition(store: Dsns, tenant: str) -> None:
    """T-17, T-30."""
    with psycopg.connect(store.owner) as connection, pytest.raises(psycopg.errors.InvalidParameterValue):
        connection.execute("select meridian.ensure_tenant(%s)", [tenant])


def test_any_epoch_name_gets_a_partition_of_its_own(store: Dsns) -> None:
    with psycopg.connect(store.owner) as connection:
        names = [
            connection.execute("select meridian.ensure_epoch('a', %s)", [epoch]).fetchone()
            for epoch in ("e.1", "e-1", "e'1", "e%I1", "e" * 200, "e.1")
        ]
        connection.rollback()
    assert len(set(names)) == 5


def test_dropping_an_epoch_leaves_the_other_epoch_and_the_other_tenant(store: Dsns) -> None:
    """Offboarding keeps audit and records; here only the index of one tenant and epoch goes."""
    put(store.ingest, "a")
    put(store.ingest, "b")
    with psycopg.connect(store.owner) as connection:
        connection.execute("select meridian.drop_epoch('a', 'e1')")
    left = rows(store.superuser, "select tenant_id from meridian.documents where doc_id = 'same-key'")
    partitions = rows(
        store.superuser, "select count(*) from pg_class where relname ~ '^chunks_t.*_e' and relkind = 'r'"
    )
    with psycopg.connect(store.owner) as connection:
        connection.execute("select meridian.ensure_epoch('a', 'e1')")
    assert left == [("b",)]
    assert partitions == [(3,)]


def test_a_process_refuses_to_serve_as_owner_or_superuser(store: Dsns) -> None:
    """T-26."""

    async def check(dsn: str) -> None:
        connections = Pool(dsn, permits=1)
        await connections.open()
        try:
            await PostgresRole(connections).check()
        finally:
            await connections.close()

    asyncio.run(check(store.app))
    asyncio.run(check(store.ingest))
    for dsn in (store.owner, store.superuser):
        with pytest.raises(UnsafeRole):
            asyncio.run(check(dsn))
