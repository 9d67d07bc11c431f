"""The tool gateway. Takes an Admitted; gives a ToolOutcome or None; never refuses: what fails becomes an outcome; writes audit.

An order id in the question calls `get_order` once, and once more when that failed at once. The model has no say in it: code
recognises, authorises, validates, bounds in time and keeps only the declared fields (S-14, S-90).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry

from meridian_api.digest import canonical_json
from meridian_api.serving import ServingTool
from meridian_dataplane.calls import Caller, Pinned, ToolAudit, ToolOutcome
from meridian_dataplane.ports import Clock, Tools

ORDER_TOOL = "get_order"
_ORDER_ID = re.compile(r"(?<![\w-])([A-Za-z]-[0-9]{4,8})(?![\w-])", re.ASCII)


def order_id_in(question: str) -> str | None:
    """The first order id that the question names, in capitals."""
    found = _ORDER_ID.search(question)
    return found[1].upper() if found else None


async def look_up(
    pinned: Pinned, *, tools: Tools, clock: Clock, may_retry: Callable[[], bool], audit: Callable[[ToolAudit], None]
) -> ToolOutcome | None:
    """None when no order is meant or the release has no such tool: then no live data exists and none is claimed."""
    order_id = order_id_in(pinned.received.question)
    if order_id is None:
        return None
    tool = next((t for t in pinned.manifest.tools if t.name == ORDER_TOOL), None)
    if tool is None:
        return ToolOutcome(ORDER_TOOL, "", "unavailable")
    arguments = {"order_id": order_id}
    began = clock.monotonic()
    outcome = await _authorised_call(tool, arguments, pinned, tools, clock, may_retry)
    audit(_row(pinned, outcome, arguments, clock, (clock.monotonic() - began) * 1000))
    return outcome


def allowed(tool: ServingTool, caller: Caller) -> bool:
    """Pure: the tenant's role must name the tool, and the tool must name the role; a side effect never runs here (S-06)."""
    return not tool.side_effect and any(
        role.name in caller.roles and role.name in tool.roles and tool.name in role.tools
        for role in caller.tenant.roles
    )


async def _authorised_call(
    tool: ServingTool,
    arguments: dict[str, Any],
    pinned: Pinned,
    tools: Tools,
    clock: Clock,
    may_retry: Callable[[], bool],
) -> ToolOutcome:
    if not allowed(tool, pinned.caller):
        return ToolOutcome(tool.name, tool.schema_version, "denied")
    if not _valid(arguments, tool):
        return ToolOutcome(tool.name, tool.schema_version, "invalid")
    settings = pinned.manifest.settings
    remaining = pinned.deadline_at - clock.monotonic()
    timeout = min(tool.timeout_ms / 1000, settings.order_calls.timeout_ms / 1000, remaining)
    if timeout <= 0:
        return ToolOutcome(tool.name, tool.schema_version, "timeout")
    until = clock.monotonic() + timeout
    found = await _call(tool, arguments, pinned, tools, timeout)
    for _ in range(settings.order_calls.retries):
        # A read that failed at once may be tried again in the time that it had; one that was slow has used it.
        left = until - clock.monotonic()
        if found.outcome != "unavailable" or tool.method != "GET" or left <= 0 or not may_retry():
            break
        found = await _call(tool, arguments, pinned, tools, left)
    kept = {name: found.fields[name] for name in tool.result_fields if name in found.fields}
    return ToolOutcome(tool.name, tool.schema_version, found.outcome, kept)


def _valid(arguments: dict[str, Any], tool: ServingTool) -> bool:
    """By the tool's schema and nothing else: with an empty registry no reference is ever fetched (T-44)."""
    try:
        return Draft202012Validator(tool.parameters, registry=Registry()).is_valid(arguments)
    except Exception:  # noqa: BLE001
        # Whatever is wrong with a declared schema is the tool's outcome, not the end of the question.
        return False


async def _call(
    tool: ServingTool, arguments: dict[str, Any], pinned: Pinned, tools: Tools, timeout_s: float
) -> ToolOutcome:
    return await tools.call(
        tool,
        arguments,
        pinned.caller,
        request_id=pinned.received.request_id,
        traceparent=pinned.received.traceparent,
        timeout_s=timeout_s,
    )


def _row(
    pinned: Pinned,
    outcome: ToolOutcome,
    arguments: dict[str, Any],
    clock: Clock,
    duration_ms: float,
) -> ToolAudit:
    return ToolAudit(
        request_id=pinned.received.request_id,
        tenant_id=pinned.caller.tenant_id,
        subject=pinned.caller.subject,
        tool=outcome.name,
        schema_version=outcome.schema_version,
        arguments_hash=hashlib.sha256(canonical_json(arguments)).hexdigest(),
        outcome=outcome.outcome,
        created_time=clock.now(),
        duration_ms=round(duration_ms, 3),
    )
