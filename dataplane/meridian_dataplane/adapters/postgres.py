"""Connections to the store: a bounded pool, a tenant for each transaction, and proof that the role is harmless."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from meridian_dataplane.ports import StoreUnavailable, UnsafeRole

Row = dict[str, Any]
Connection = psycopg.AsyncConnection[Row]
Pool = AsyncConnectionPool[Connection]

# JIT costs more than these statements take; stop-word notices are of no use to anyone.
_OPTIONS = "-c jit=off -c client_min_messages=error -c idle_in_transaction_session_timeout=30000"


def pool(dsn: str, *, permits: int, name: str = "store") -> Pool:
    """A closed pool of at most `permits` connections; open it with `await pool.open()`.

    It opens even when the database is away: its state never decides whether the process lives.
    """
    return AsyncConnectionPool(
        dsn,
        min_size=min(2, permits),
        max_size=permits,
        open=False,
        name=name,
        connection_class=psycopg.AsyncConnection[Row],
        kwargs={
            "options": _OPTIONS,
            "row_factory": dict_row,
            "connect_timeout": 3,
            "application_name": f"meridian-{name}",
        },
        max_lifetime=1800,
        reconnect_timeout=10,
        reset=_nothing,
    )


async def _nothing(_: Connection) -> None:
    """With a reset to do, the pool's own workers take connections back. Without, the request does, and a deadline that ends
    while it waits for the pool's lock loses the connection for good: after a busy minute none is left."""


@asynccontextmanager
async def tenant_transaction(
    connections: Pool, tenant: str, timeout_s: float, *, nested_loops: bool = True
) -> AsyncIterator[Connection]:
    """A transaction that sees the rows of `tenant` and nothing else, and ends within `timeout_s` seconds.

    Raises StoreUnavailable when there is no connection, when the statement is too slow, or when the tenant is empty (T-24):
    an unset tenant would read as no rows, which is not the truth either. A connection whose command was cancelled or failed
    half-way is thrown away, so that no late reply can reach the next user (T-31). `nested_loops` false keeps the planner from
    them: on a fresh partition, which has no statistics yet, they are the plan that can go badly wrong.
    """
    if not tenant:
        raise StoreUnavailable("a transaction needs a tenant")
    if timeout_s <= 0:
        raise StoreUnavailable("no time left")
    try:
        async with connections.connection(timeout=timeout_s) as connection:
            try:
                async with connection.transaction():
                    await connection.execute(
                        "select set_config('app.tenant', %s, true), set_config('statement_timeout', %s, true),"
                        " set_config('enable_nestloop', %s, true)",
                        [tenant, str(max(1, int(timeout_s * 1000))), "on" if nested_loops else "off"],
                    )
                    yield connection
            except psycopg.errors.QueryCanceled:
                await connection.close()
                raise
            except psycopg.Error:
                raise
            except BaseException as ended:
                if not isinstance(ended, Exception):  # cancelled in the middle of a command
                    await connection.close()
                raise
    except (psycopg.Error, PoolTimeout) as failed:
        raise StoreUnavailable(f"{type(failed).__name__}: {failed}") from failed


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
        try:
            async with self.connections.connection(timeout=3) as connection:
                found = await (await connection.execute(_ROLE)).fetchone()
        except (psycopg.Error, PoolTimeout) as failed:
            raise StoreUnavailable(f"{type(failed).__name__}: {failed}") from failed
        if found is None or found["bypasses"]:
            raise UnsafeRole("the database role is a superuser or bypasses row-level security")
        if found["owns"]:
            raise UnsafeRole("the database role owns Meridian's tables or is a member of their owner")
        if found["unprotected"]:
            raise UnsafeRole("a table with tenants has no forced row-level security")
