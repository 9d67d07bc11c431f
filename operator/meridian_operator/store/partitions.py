"""Which partitions exist, asked of the catalogue: tenants first, epochs inside them."""

from __future__ import annotations

from meridian_operator.cluster import Unreadable
from meridian_operator.converge import Store

EPOCHS_OF_TENANT = """
select coalesce(pg_get_expr(e.relpartbound, e.oid), '') as bound
  from pg_inherits i
  join pg_class t on t.oid = i.inhrelid
  left join (pg_inherits j join pg_class e on e.oid = j.inhrelid) on j.inhparent = t.oid
 where i.inhparent = to_regclass('meridian.chunks')
   and pg_get_expr(t.relpartbound, t.oid) = format('FOR VALUES IN (%%L)', %s::text)
"""


async def epochs_of_tenant(store: Store, tenant: str) -> frozenset[str] | None | Unreadable:
    """Epochs with a partition of `tenant`; None when the tenant itself has none yet."""
    rows = await store.read(EPOCHS_OF_TENANT, (tenant,))
    if isinstance(rows, Unreadable):
        return rows
    if not rows:
        return None
    bounds = (row["bound"] for row in rows)
    return frozenset(b.removeprefix("FOR VALUES IN ('").removesuffix("')").replace("''", "'") for b in bounds if b)
