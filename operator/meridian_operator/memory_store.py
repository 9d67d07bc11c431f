"""The double of `store.postgres` for tests and dry runs: partitions are remembered, other queries are answered by a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meridian_operator.cluster import Unreadable
from meridian_operator.converge import StoreError
from meridian_operator.plan import EnsureEpoch, EnsureTenant
from meridian_operator.store.partitions import EPOCHS_OF_TENANT

Answer = Callable[[tuple[object, ...]], list[dict[str, Any]]]


class MemoryStore:
    """`answers` maps a query's exact text to what it returns for its parameters."""

    def __init__(self) -> None:
        self.tenants: dict[str, set[str]] = {}
        self.answers: dict[str, Answer] = {EPOCHS_OF_TENANT: self._epochs_of_tenant}
        self.down = False

    async def read(self, sql: str, parameters: tuple[object, ...] = ()) -> list[dict[str, Any]] | Unreadable:
        if self.down:
            return Unreadable("PostgreSQL", "OperationalError: down")
        return self.answers[sql](parameters) if sql in self.answers else []

    async def ensure(self, action: EnsureTenant | EnsureEpoch) -> None:
        if self.down:
            raise StoreError("PostgreSQL: down")
        epochs = self.tenants.setdefault(action.tenant, set())
        if isinstance(action, EnsureEpoch):
            epochs.add(action.epoch)

    def _epochs_of_tenant(self, parameters: tuple[object, ...]) -> list[dict[str, Any]]:
        tenant = str(parameters[0])
        if tenant not in self.tenants:
            return []
        return [{"bound": f"FOR VALUES IN ('{epoch}')"} for epoch in sorted(self.tenants[tenant])] or [{"bound": ""}]
