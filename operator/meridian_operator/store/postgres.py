"""The real `Store`: two small pools. PostgreSQL being down is a value to observers and an exception to actors, never a crash."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from meridian_operator.cluster import Unreadable
from meridian_operator.converge import StoreError
from meridian_operator.logs import log
from meridian_operator.plan import EnsureEpoch, EnsureTenant

READ_LIMIT = 5.0
"""Seconds for one read, waiting for a connection included."""
ACTION_LIMIT = 30.0
RETRY = 5.0


class Postgres:
    """Opened by `open`; it does not wait for the server, which may come later."""

    def __init__(self, owner_dsn: str, evidence_dsn: str) -> None:
        self._owner = _pool(owner_dsn, largest=2)
        self._evidence = _pool(evidence_dsn, largest=8)
        self._migrated = False

    async def open(self) -> None:
        await self._owner.open(wait=False)
        await self._evidence.open(wait=False)

    async def close(self) -> None:
        await self._owner.close()
        await self._evidence.close()

    async def migrate(self) -> None:
        """Run schema.sql, idempotently, until it has worked once; for the leader's start."""
        while not self._migrated:
            try:
                await self._migrate_once()
            except StoreError as error:
                log("schema-not-applied", detail=str(error), seconds=RETRY)
                await asyncio.sleep(RETRY)

    async def read(self, sql: str, parameters: tuple[object, ...] = ()) -> list[dict[str, Any]] | Unreadable:
        try:
            async with asyncio.timeout(READ_LIMIT), self._evidence.connection(timeout=READ_LIMIT) as connection:
                cursor = connection.cursor(row_factory=dict_row)
                await cursor.execute(sql, parameters)  # type: ignore[arg-type]  # texts of ours, never a user's
                return await cursor.fetchall()
        except (psycopg.Error, TimeoutError, OSError) as error:
            return Unreadable("PostgreSQL", _plainly(error))

    async def ensure(self, action: EnsureTenant | EnsureEpoch) -> None:
        if not self._migrated:
            await self._migrate_once()
        if isinstance(action, EnsureTenant):
            await self._as_owner("select meridian.ensure_tenant(%s)", (action.tenant,))
        else:
            await self._as_owner("select meridian.ensure_epoch(%s, %s)", (action.tenant, action.epoch))

    async def _migrate_once(self) -> None:
        await self._as_owner(files("meridian_operator.store").joinpath("schema.sql").read_text(encoding="utf-8"), None)
        self._migrated = True

    async def _as_owner(self, sql: str, parameters: tuple[object, ...] | None) -> None:
        """One transaction. Raises StoreError."""
        try:
            async with asyncio.timeout(ACTION_LIMIT), self._owner.connection(timeout=READ_LIMIT) as connection:
                await connection.execute(sql, parameters)  # type: ignore[arg-type]
        except (psycopg.Error, TimeoutError, OSError) as error:
            raise StoreError(f"PostgreSQL: {_plainly(error)}") from error


def _pool(dsn: str, *, largest: int) -> AsyncConnectionPool[psycopg.AsyncConnection[Any]]:
    return AsyncConnectionPool(
        dsn,
        min_size=0,
        max_size=largest,
        open=False,
        check=AsyncConnectionPool.check_connection,
        reconnect_timeout=READ_LIMIT,
        kwargs={"connect_timeout": 5, "options": "-c statement_timeout=25000", "application_name": "meridian-operator"},
    )


def _plainly(error: BaseException) -> str:
    """The error without connection strings, which psycopg never puts into its texts but hosts and user names it does."""
    text = str(error).splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no answer in time'}"[:200]
