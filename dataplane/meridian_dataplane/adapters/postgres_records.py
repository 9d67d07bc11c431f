"""Request records, tool audit and outcomes: what must not be lost, and what evidence for a release is counted from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

import psycopg
from psycopg.types.json import Jsonb

from meridian_dataplane.adapters.postgres import Pool, tenant_transaction
from meridian_dataplane.calls import CitedChunk, RequestRecord, ToolAudit
from meridian_dataplane.ports import RowRefused, StoreUnavailable

SUCCESS = {
    "resolved": True,
    "thumbs_up": True,
    "unresolved": False,
    "escalated": False,
    "reopened": False,
    "thumbs_down": False,
}
"""What each signal says of the request."""

_WRITE: LiteralString = """
insert into meridian.request_records
  (tenant_id, request_id, conversation_id, subject_hash, service, region, release, arm, generation, app_version, prompt, model,
   target_region, epoch, embedding_model, tools, tool_outcome, canary_eligible, state, stream_state, error_code, degraded,
   abstained, input_tokens, output_tokens, cached_input_tokens, usage_estimated, cost_usd, ttft_ms, total_ms,
   stage_ms, retrieved, citations,
   citations_total, citations_invalid, uncited_claims, stale_config, traceparent, started_at, finished_at)
values
  (%(tenant)s, %(request)s, %(conversation)s, %(subject)s, %(service)s, %(region)s, %(release)s, %(arm)s, %(generation)s,
   %(app_version)s, %(prompt)s, %(model)s, %(target_region)s, %(epoch)s, %(embedding)s, %(tools)s, %(tool_outcome)s,
   %(eligible)s, %(state)s, %(stream_state)s, %(error)s, %(degraded)s, %(abstained)s, %(input)s, %(output)s, %(cached)s,
   %(estimated)s,
   %(cost)s, %(ttft)s, %(total)s, %(stages)s, %(retrieved)s, %(citations)s, %(citations_total)s, %(citations_invalid)s,
   %(uncited)s, %(stale)s, %(traceparent)s, least(%(created)s::timestamptz, now()), now())
on conflict (tenant_id, request_id) do nothing
"""

_AUDIT: LiteralString = """
insert into meridian.tool_audit
  (tenant_id, request_id, subject_hash, tool, schema_version, outcome, arguments_hash, duration_ms, at)
values (%s, %s, %s, %s, %s, %s, %s, %s, %s)
"""

# The first judgement counts. A later sign of failure overturns a success; nothing turns a failure into a success.
_OUTCOME: LiteralString = """
with mine as (
  select tenant_id, request_id from meridian.request_records
   where tenant_id = %(tenant)s::text and request_id = %(request)s::text and subject_hash = %(subject)s::text
), judged as (
  insert into meridian.outcomes (tenant_id, request_id, success, signal)
  select tenant_id, request_id, %(success)s, %(signal)s::text from mine
  on conflict (tenant_id, request_id) do update
    set success = false, signal = excluded.signal, overturned_at = now()
    where outcomes.success and not excluded.success
)
select count(*) as known from mine
"""


def subject_hash(tenant: str, subject: str) -> str:
    """Binds a record to its user without storing who that is (T-34, T-53)."""
    return hashlib.sha256(f"{tenant}\0{subject}".encode()).hexdigest()


@dataclass(frozen=True)
class PostgresRecords:
    """The Records port."""

    connections: Pool
    timeout_s: float = 2.0
    """Of one write."""

    async def write(self, record: RequestRecord) -> None:
        """One record; the same request id again changes nothing. Raises StoreUnavailable, or RowRefused for ever."""
        await self._insert(record.tenant_id, _WRITE, _parameters(record))

    async def audit(self, row: ToolAudit) -> None:
        """Append one row; there is no right to change it."""
        parameters = [
            row.tenant_id, row.request_id, subject_hash(row.tenant_id, row.subject), row.tool, row.schema_version,
            row.outcome, row.arguments_hash, row.duration_ms, row.created_time,
        ]  # fmt: skip
        await self._insert(row.tenant_id, _AUDIT, parameters)

    async def outcome(self, *, tenant: str, subject: str, request_id: str, outcome: str, at: datetime) -> bool:
        """See ports.Records. `at` is the caller's clock and only told apart in logs: the database dates the judgement.

        Raises KeyError for a signal outside SUCCESS, which the route refuses before.
        """
        success = SUCCESS[outcome]
        if "\x00" in request_id:
            return False
        parameters = {
            "tenant": tenant,
            "request": request_id,
            "subject": subject_hash(tenant, subject),
            "success": success,
            "signal": outcome,
        }
        async with tenant_transaction(self.connections, tenant, self.timeout_s) as connection:
            row = await (await connection.execute(_OUTCOME, parameters)).fetchone()
        return bool(row and row["known"])

    async def _insert(self, tenant: str, statement: LiteralString, parameters: Any) -> None:
        try:
            async with tenant_transaction(self.connections, tenant, self.timeout_s) as connection:
                await connection.execute(statement, parameters)
        except StoreUnavailable as failed:
            # Neither table has a foreign key, so no row waits for another: what breaks a rule now breaks it for ever.
            if isinstance(failed.__cause__, psycopg.DataError | psycopg.IntegrityError):
                raise RowRefused(type(failed.__cause__).__name__) from failed.__cause__
            raise


def _reference(chunk: CitedChunk) -> str:
    return f"{chunk.doc_id}@{chunk.doc_version}#{chunk.chunk_id}"


def _parameters(record: RequestRecord) -> dict[str, Any]:
    return {
        "tenant": record.tenant_id,
        "request": record.request_id,
        "conversation": record.conversation_hash or "",
        "subject": subject_hash(record.tenant_id, record.subject),
        "service": record.service,
        "region": record.region,
        "release": record.release,
        "arm": record.arm,
        "generation": record.generation,
        "app_version": record.app_version,
        "prompt": record.prompt,
        "model": record.model or "",
        "target_region": record.model_region or "",
        "epoch": record.epoch,
        "embedding": record.embedding,
        "tools": Jsonb(record.tools),
        "tool_outcome": record.tool_outcome or "",
        "eligible": record.canary_eligible,
        "state": record.outcome,
        "stream_state": record.state,
        "error": record.error_code or "",
        "degraded": record.degraded,
        "abstained": record.abstained,
        "input": record.input_tokens,
        "output": record.output_tokens,
        "cached": record.cached_input_tokens,
        "estimated": record.usage_estimated,
        "cost": record.cost_usd,
        "ttft": record.ttft_ms,
        "total": record.total_ms,
        "stages": Jsonb(record.stage_ms),
        "retrieved": Jsonb([_reference(chunk) for chunk in record.retrieved]),
        "citations": Jsonb([_reference(chunk) for chunk in record.cited]),
        "citations_total": record.citations_valid + record.citations_invalid,
        "citations_invalid": record.citations_invalid,
        "uncited": record.uncited_claims,
        "stale": record.stale_config,
        "traceparent": record.traceparent,
        "created": record.created_time,
    }
