"""The order service behind `get_order`. It enforces ownership again from the tenant that we verified (S-91)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from meridian_api.serving import ServingTool
from meridian_dataplane.calls import Caller, ToolOutcome

MAX_RESULT_BYTES = 65_536
_TOKEN_LIFE_S = 10.0


def tools_client() -> httpx.AsyncClient:
    """One client for every tenant, so it keeps no cookie: one tenant's would be sent for another (T-33)."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    none_kept = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
    return httpx.AsyncClient(limits=limits, timeout=None, follow_redirects=False, trust_env=False, cookies=none_kept)  # noqa: S113


class HttpTools:
    """The Tools port over HTTP. Addresses come from the administrator's settings, never from a release (T-44)."""

    def __init__(self, client: httpx.AsyncClient, endpoints: Mapping[str, str], token_file: Path | None) -> None:
        self._client, self._endpoints, self._token_file = client, endpoints, token_file
        self._token, self._token_at = "", float("-inf")

    async def call(
        self,
        tool: ServingTool,
        arguments: dict[str, Any],
        caller: Caller,
        *,
        request_id: str,
        traceparent: str,
        timeout_s: float,
    ) -> ToolOutcome:
        """Never raises but on cancellation: a failure is an outcome."""

        def ended(outcome: str, fields: dict[str, Any] | None = None) -> ToolOutcome:
            return ToolOutcome(tool.name, tool.schema_version, outcome, fields or {})

        base = self._endpoints.get(tool.endpoint)
        if base is None:
            return ended("unavailable")
        headers = {
            "x-tenant": caller.tenant_id,
            "x-request-id": request_id,
            "traceparent": traceparent,
            "accept": "application/json",
            "accept-encoding": "identity",
        }
        try:
            async with asyncio.timeout(timeout_s):
                headers |= await self._authorization()
                return ended(*await self._fetch(tool, base, arguments, headers))
        except TimeoutError:
            return ended("timeout")
        except (httpx.HTTPError, OSError, ValueError, KeyError, RecursionError):
            # KeyError: the tool's path names an argument that its call does not have.
            return ended("unavailable")

    async def _fetch(
        self, tool: ServingTool, base: str, arguments: dict[str, Any], headers: dict[str, str]
    ) -> tuple[str, dict[str, Any]]:
        path = re.sub(r"\{(\w+)\}", lambda m: quote(str(arguments[m[1]]), safe=""), tool.path)
        body = arguments if tool.method == "POST" else None
        async with self._client.stream(tool.method, f"{base}{path}", headers=headers, json=body) as answer:
            if answer.status_code in (403, 404):
                # Not there and not yours look alike, here too.
                return "not_found", {}
            if answer.status_code != 200:
                return "unavailable", {}
            raw = bytearray()
            async for part in answer.aiter_raw():
                raw += part
                if len(raw) > MAX_RESULT_BYTES:
                    return "unavailable", {}
        found = json.loads(bytes(raw))
        return ("ok", found) if isinstance(found, dict) else ("unavailable", {})

    async def _authorization(self) -> dict[str, str]:
        """The service token, read again every few seconds: it is rotated in its file."""
        if self._token_file is None:
            return {}
        now = asyncio.get_running_loop().time()
        if now - self._token_at > _TOKEN_LIFE_S:
            self._token = (await asyncio.to_thread(self._token_file.read_text, "utf-8")).strip()
            self._token_at = now
        return {"authorization": f"Bearer {self._token}"}
