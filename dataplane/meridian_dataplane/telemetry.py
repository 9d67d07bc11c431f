"""Metrics and logs. Neither ever carries a question, an answer, a token, a tenant's text or an exception's message."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# A quantile beyond the last bound is reported as that bound, and would pass any limit above it: both go to the longest deadline
# and the highest limit that a Release can declare.
_LONG = (12.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_TTFT = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 8.0, *_LONG)
_TOTAL = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, *_LONG)
_SHORT = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)


class Metrics:
    """Every metric of a replica, in a registry of its own so that two planes fit into one process."""

    def __init__(self) -> None:
        self.registry = on = CollectorRegistry()
        arm = ["release", "arm"]
        self.requests = Counter("meridian_requests", "Requests by outcome", [*arm, "outcome"], registry=on)
        self.refusals = Counter("meridian_refusals", "Refusals by code", ["code"], registry=on)
        self.degraded = Counter("meridian_degraded", "Answers below the full ladder rung", [*arm, "level"], registry=on)
        self.ttft = Histogram(
            "meridian_time_to_first_token_seconds",
            "From arrival to the first text sent",
            arm,
            buckets=_TTFT,
            registry=on,
        )
        self.duration = Histogram(
            "meridian_answer_duration_seconds",
            "From arrival to the terminal event",
            arm,
            buckets=_TOTAL,
            registry=on,
        )
        self.stage = Histogram("meridian_stage_seconds", "Time of a stage", ["stage"], buckets=_SHORT, registry=on)
        self.citations = Counter("meridian_citations", "Citations by validity", [*arm, "valid"], registry=on)
        self.abstained = Counter("meridian_abstained", "Answers that found nothing", arm, registry=on)
        self.uncited = Counter("meridian_uncited_answers", "Answers with claims and no citation", arm, registry=on)
        self.cost = Counter("meridian_cost_usd", "Cost of model calls", arm, registry=on)
        self.tokens = Counter("meridian_tokens", "Tokens by kind", [*arm, "kind"], registry=on)
        self.tools = Counter("meridian_tool_calls", "Tool calls by outcome", ["tool", "outcome"], registry=on)
        self.model_failures = Counter("meridian_model_failures", "Failed model calls", ["target", "code"], registry=on)
        self.retries = Counter("meridian_retries", "Retries of idempotent reads", registry=on)
        self.in_flight = Gauge("meridian_inflight_requests", "Admitted requests", registry=on)
        self.waiting = Gauge("meridian_waiting_requests", "Requests in the queue", registry=on)
        self.admission_wait = Histogram(
            "meridian_admission_wait_seconds", "Wait for a permit", buckets=_SHORT, registry=on
        )
        self.generation = Gauge("meridian_config_generation", "Applied generation", registry=on)
        self.stale = Gauge("meridian_config_stale", "1 past the soft expiry", registry=on)
        self.config_refused = Counter("meridian_config_refused", "Refused snapshots by reason", ["reason"], registry=on)
        self.config_contact = Gauge(
            "meridian_config_contact_age_seconds", "Since the control plane answered", registry=on
        )
        self.config_disk_failures = Counter(
            "meridian_config_disk_failures", "Generations that could not be kept", registry=on
        )
        self.jwks_failures = Counter("meridian_jwks_failures", "Failed key fetches", registry=on)
        self.records_lost = Counter("meridian_records_lost", "Rows dropped from a full spool", registry=on)
        self.records_pending = Gauge("meridian_records_pending", "Rows waiting for the store", registry=on)
        self.ready = Gauge("meridian_ready", "1 while ready", registry=on)


# What a log line may hold. Anything else is dropped, so that a careless call cannot leak (T-53).
ALLOWED_FIELDS = frozenset(
    {
        "arm",
        "attempt",
        "cause",
        "code",
        "count",
        "generation",
        "highest",
        "key_id",
        "kind",
        "outcome",
        "path",
        "port",
        "reason",
        "release",
        "request_id",
        "seconds",
        "source",
        "stage",
        "status",
        "target",
        "where",
    }
)
_logger = logging.getLogger("meridian.dataplane")


def log(event: str, *, level: int = logging.INFO, **values: object) -> None:
    """One structured line. Fields outside ALLOWED_FIELDS are dropped; texts are cut to 200 characters."""
    _logger.log(level, event, extra={"meridian": _allowed(values)})


def log_failure(event: str, failure: BaseException, **values: object) -> None:
    """`event` with the kind of the failure and of its cause, and its place; never a message, which may hold anything."""
    cause = failure.__cause__
    log(
        event,
        level=logging.WARNING,
        kind=type(failure).__name__,
        cause=type(cause).__name__ if cause else "",
        where=_where(failure.__traceback__),
        **values,
    )


def _allowed(values: dict[str, object]) -> dict[str, object]:
    plain = {k: v for k, v in values.items() if k in ALLOWED_FIELDS}
    return {k: v if isinstance(v, int | float) else str(v)[:200] for k, v in plain.items()}


def _where(traceback: TracebackType | None) -> str:
    """File and line of the innermost frame."""
    if traceback is None:
        return ""
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f"{traceback.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{traceback.tb_lineno}"


class _OneLine(logging.Formatter):
    """JSON lines. Records of libraries keep their logger's name and level only: their text is not ours to vouch for."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
        }
        if record.name == _logger.name:
            line |= {"event": record.msg, **getattr(record, "meridian", {})}
        else:
            line |= {"event": "library", "source": record.name}
            if record.exc_info and record.exc_info[1] is not None:
                failure = record.exc_info[1]
                line |= {"kind": type(failure).__name__, "where": _where(failure.__traceback__)}
        return json.dumps(line, ensure_ascii=True)


def configure_logging() -> None:
    """JSON lines on standard output, ours from INFO, libraries' from WARNING."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_OneLine())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    _logger.setLevel(logging.INFO)
