"""What a request leaves behind. Wraps the request from admission to its end; writes one record and the metrics, however it ends.

The record goes into a bounded spool, so that neither a cancelled client nor an absent store loses it. Only `done` waits for the
store, and for a moment: whoever has seen it may judge the answer at any replica at once.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from meridian_api.serving import Target
from meridian_dataplane.calls import CitedChunk, Pinned, RequestRecord, StreamState, Usage
from meridian_dataplane.ports import Clock
from meridian_dataplane.refusals import Refusal
from meridian_dataplane.run import Run
from meridian_dataplane.telemetry import Metrics

STORED_S = 0.15
"""How long `done` may be held back for the record to be stored."""
_BYTES_PER_TOKEN = 4


class ShuttingDown(Exception):
    """The process ends before the stream does; the client has been told."""


@contextmanager
def settled(
    pinned: Pinned,
    *,
    clock: Clock,
    metrics: Metrics,
    write: Callable[[RequestRecord], asyncio.Future[None] | None],
) -> Iterator[tuple[Run, Callable[[], Awaitable[None]]]]:
    """The run of one admitted request; at the end it is accounted, once, complete or not.

    With it goes what accounts a whole answer before its `done` and waits up to STORED_S seconds for the store.
    """
    run, accounted = Run(), False

    def account() -> asyncio.Future[None] | None:
        nonlocal accounted
        accounted = True
        record = record_of(pinned, run, clock)
        _count(record, metrics)
        return write(record)

    async def kept() -> None:
        if stored := account():
            await asyncio.wait([stored], timeout=STORED_S)

    try:
        yield run, kept
    except Refusal as refusal:
        run.refused, run.error_code = True, refusal.code
        raise
    except ShuttingDown:
        run.error_code = "shutting_down"
        raise
    except Exception:
        run.error_code = run.error_code or "internal"
        raise
    finally:
        if not run.ended:
            run.move(StreamState.INCOMPLETE if run.error_code else StreamState.CANCELLED)
        if not accounted:
            account()


def usage_of(run: Run) -> Usage:
    """As the engine reported it; estimated from what was sent and received when it did not (H-01, H-18)."""
    if run.usage is not None:
        return run.usage
    if run.target is None:
        return Usage()
    output = -(-run.received_chars // _BYTES_PER_TOKEN)
    return Usage(run.estimated_input_tokens, output, 0, estimated=True)


def cost_usd(used: Usage, target: Target | None) -> float:
    """US dollars of one call at the target's price."""
    if target is None:
        return 0.0
    price = target.price
    fresh = max(0, used.input_tokens - used.cached_input_tokens)
    total = fresh * price.input_usd + used.cached_input_tokens * price.cached_input_usd
    return round((total + used.output_tokens * price.output_usd) / 1_000_000, 8)


def outcome_of(run: Run) -> str:
    """answered | degraded | error | refused | cancelled"""
    if run.refused:
        return "refused"
    if run.state is StreamState.CANCELLED:
        return "cancelled"
    if run.state is StreamState.INCOMPLETE:
        return "error"
    return "answered" if run.degraded == "full" else "degraded"


def record_of(pinned: Pinned, run: Run, clock: Clock) -> RequestRecord:
    """Everything that influenced the answer, by version (S-19, S-42)."""
    manifest, received, now = pinned.manifest, pinned.received, clock.monotonic()
    used, first = usage_of(run), run.first_text_at
    target = run.target
    return RequestRecord(
        request_id=received.request_id,
        tenant_id=pinned.caller.tenant_id,
        subject=pinned.caller.subject,
        traceparent=received.traceparent,
        conversation_hash=_hashed(received.conversation_id),
        created_time=clock.now(),
        service=pinned.identified.snapshot.service,
        region=pinned.identified.snapshot.region,
        generation=pinned.identified.snapshot.generation,
        release=manifest.release,
        arm=pinned.arm,
        canary_eligible=pinned.caller.tenant.canary_eligible,
        app_version=manifest.app_version,
        prompt=manifest.prompt,
        model=f"{target.pool}@{target.version}" if target else None,
        model_region=target.region if target else None,
        epoch=manifest.index.epoch,
        embedding=manifest.index.embedding.ident,
        tools={tool.name: tool.schema_version for tool in manifest.tools},
        tool_outcome=run.tool_outcome,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cached_input_tokens=used.cached_input_tokens,
        usage_estimated=used.estimated,
        cost_usd=cost_usd(used, target),
        ttft_ms=None if first is None else round((first - received.arrived_at) * 1000, 1),
        total_ms=round((now - received.arrived_at) * 1000, 1),
        stage_ms=dict(run.stage_ms),
        retrieved=tuple(CitedChunk(p.doc_id, p.doc_version, p.chunk_id) for p in run.retrieved),
        cited=run.cited,
        citations_valid=run.citations_valid,
        citations_invalid=run.citations_invalid,
        uncited_claims=run.uncited_claims,
        abstained=run.abstained,
        degraded=run.degraded,
        state=run.state.value,
        outcome=outcome_of(run),
        error_code=run.error_code,
        stale_config=pinned.identified.stale,
    )


def _hashed(conversation_id: str | None) -> str | None:
    return hashlib.sha256(conversation_id.encode()).hexdigest() if conversation_id else None


def _count(record: RequestRecord, metrics: Metrics) -> None:
    arm = (record.release, record.arm)
    metrics.requests.labels(*arm, record.outcome).inc()
    for stage, milliseconds in record.stage_ms.items():
        metrics.stage.labels(stage).observe(milliseconds / 1000)
    if record.outcome in ("answered", "degraded"):
        metrics.duration.labels(*arm).observe(record.total_ms / 1000)
        if record.ttft_ms is not None:
            metrics.ttft.labels(*arm).observe(record.ttft_ms / 1000)
    if record.degraded != "full":
        metrics.degraded.labels(*arm, record.degraded).inc()
    metrics.citations.labels(*arm, "true").inc(record.citations_valid)
    metrics.citations.labels(*arm, "false").inc(record.citations_invalid)
    metrics.abstained.labels(*arm).inc(record.abstained)
    metrics.uncited.labels(*arm).inc(record.uncited_claims)
    metrics.cost.labels(*arm).inc(record.cost_usd)
    metrics.tokens.labels(*arm, "input").inc(record.input_tokens)
    metrics.tokens.labels(*arm, "output").inc(record.output_tokens)
