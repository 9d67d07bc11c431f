"""What runs on the store's connections: a transaction for one tenant, and proof that the role is harmless."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import LiteralString

from psycopg import sql

from meridian_dataplane.adapters.postgres_pool import Connection, Pool, Row
from meridian_dataplane.ports import StoreUnavailable, UnsafeRole

__all__ = ["Connection", "Pool", "PostgresRole", "Row", "tenant_transaction"]

# One round trip: without parameters these are one simple query.
_BEGIN = sql.SQL(
    "begin; select set_config('app.tenant', {tenant}, true), set_config('statement_timeout', {timeout}, true),"
    " set_config('enable_nestloop', {loops}, true)"
)


@asynccontextmanager
async def tenant_transaction(
    connections: Pool, tenant: str, timeout_s: float, *, nested_loops: bool = True
) -> AsyncIterator[Connection]:
    """A transaction that sees the rows of `tenant` and nothing else, and ends within `timeout_s` seconds.

    Raises StoreUnavailable when there is no connection, when the statement is too slow, or when the tenant is empty (T-24):
    an unset tenant would read as no rows, which is not the truth either. `nested_loops` false keeps the planner from them: on a
    fresh partition, which has no statistics yet, they are the plan that can go badly wrong.
    """
    if not tenant:
        raise StoreUnavailable("a transaction needs a tenant")
    if timeout_s <= 0:
        raise StoreUnavailable("no time left")
    async with connections.connection(timeout_s) as connection:
        begin = _BEGIN.format(
            tenant=tenant, timeout=str(max(1, int(timeout_s * 1000))), loops="on" if nested_loops else "off"
        )
        await connection.execute(begin, prepare=False)
        yield connection
        await connection.execute("commit", prepare=False)


_ROLE: LiteralString = """
select r.rolsuper or r.rolbypassrls as bypasses,
       exists (select 1 from pg_class c join pg_namespace n on n.oid = c.relnamespace
                where n.nspname = 'meridian' and pg_has_role(current_user, c.relowner, 'MEMBER')) as owns,
       exists (select 1 from pg_class c join pg_namespace n on n.oid = c.relnamespace
                join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id' and not a.attisdropped
                where n.nspname = 'meridian' and c.relkind in ('r', 'p')
                  and not (c.relrowsecurity and c.relforcerowsecurity)) as unprotected
  from pg_roles r where r.rolname = current_user
"""


@dataclass(frozen=True)
class PostgresRole:
    """Refuses a role that row-level security would not hold (T-26)."""

    connections: Pool

    async def check(self) -> None:
        """Raises UnsafeRole, or StoreUnavailable when the database cannot be asked."""
        async with self.connections.connection(3.0) as connection:
            found = await (await connection.execute(_ROLE)).fetchone()
        if found is None or found["bypasses"]:
            raise UnsafeRole("the database role is a superuser or bypasses row-level security")
        if found["owns"]:
            raise UnsafeRole("the database role owns Meridian's tables or is a member of their owner")
        if found["unprotected"]:
            raise UnsafeRole("a table with tenants has no forced row-level security")
