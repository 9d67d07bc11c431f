"""Public keys of the registered issuers: in memory, refreshed in the background at a bounded rate, last good ones on disk.

A request never waits for an issuer. A bad answer keeps the good keys; a good one replaces them whole, so that a retired key ends
with the next refresh (T-08, T-09).
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import httpx
import jwt

from meridian_dataplane.configuration.keep import write_whole
from meridian_dataplane.settings import Issuer
from meridian_dataplane.telemetry import Metrics, log, log_failure

REFRESH_S = 300.0
LEAST_BETWEEN_S = 10.0
"""Between two fetches of one issuer, whatever tokens ask for."""
HARD_EXPIRY_S = 7 * 86_400.0
MAX_JWKS_BYTES = 262_144
MAX_KEYS = 64
_FETCH_S = 5.0
Keys = dict[str, jwt.PyJWK]


class JwksKeys:
    """The Keys port."""

    def __init__(
        self, issuers: tuple[Issuer, ...], client: httpx.AsyncClient, state_dir: Path, metrics: Metrics
    ) -> None:
        self._issuers = {one.issuer: one for one in issuers}
        self._client, self._file, self._metrics = client, state_dir / "jwks.json", metrics
        self._keys: dict[str, Keys] = {}
        self._raw: dict[str, dict[str, Any]] = {}
        """What is kept on disk: issuer -> {"fetched": Unix seconds, "keys": [...]}."""
        self._wanted = {one: asyncio.Event() for one in self._issuers}

    @property
    def ready(self) -> bool:
        """Keys of at least one issuer are here; without any, every token would be refused."""
        return any(self._keys.values())

    def knows(self, issuer: str) -> bool:
        return issuer in self._issuers

    def find(self, issuer: str, kid: str) -> jwt.PyJWK | None:
        """From memory. An unknown id asks for an early refresh, which the next request profits from."""
        key = self._keys.get(issuer, {}).get(kid)
        if key is None and issuer in self._wanted:
            self._wanted[issuer].set()
        return key

    async def load(self) -> None:
        """Keys kept by an earlier process, so that a start does not need the issuer."""
        stored = await asyncio.to_thread(_read, self._file)
        for issuer, entry in stored.items():
            fetched = entry.get("fetched") if isinstance(entry, dict) else None
            if issuer not in self._issuers or not isinstance(fetched, int | float):
                continue
            now = time.time()
            if now - fetched < HARD_EXPIRY_S:
                self._keys[issuer] = parse_keys(entry)
                # A clock that stepped back makes them look as if from the future: they are no older than now (F-27).
                self._raw[issuer] = {**entry, "fetched": min(fetched, now)}

    async def run(self) -> None:
        """Refreshes until cancelled."""
        async with asyncio.TaskGroup() as loops:
            for issuer in self._issuers.values():
                loops.create_task(self._refresh_on(issuer))

    async def refresh(self, issuer: Issuer) -> bool:
        """One fetch. False, and the old keys kept, when the answer holds no key."""
        try:
            raw = await self._fetch(issuer)
            keys = parse_keys(raw)
        except (httpx.HTTPError, TimeoutError, ValueError, RecursionError) as failure:
            return self._failed(issuer, failure)
        if not keys:
            return self._failed(issuer, ValueError("no keys"))
        self._keys[issuer.issuer] = keys
        self._raw[issuer.issuer] = {"fetched": time.time(), "keys": raw["keys"]}
        try:
            await asyncio.to_thread(_write, self._file, dict(self._raw))
        except (OSError, RecursionError) as failure:
            log_failure("jwks_not_kept", failure)
        return True

    def _failed(self, issuer: Issuer, failure: Exception) -> bool:
        self._metrics.jwks_failures.inc()
        log_failure("jwks_not_fetched", failure)
        entry = self._raw.get(issuer.issuer)
        if entry is not None and time.time() - entry["fetched"] > HARD_EXPIRY_S:
            self._keys.pop(issuer.issuer, None)
            log("jwks_expired")
        return False

    async def _refresh_on(self, issuer: Issuer) -> None:
        wanted = self._wanted[issuer.issuer]
        while True:
            wanted.clear()
            fetched = await self.refresh(issuer)
            have_any = bool(self._keys.get(issuer.issuer))
            least = LEAST_BETWEEN_S if have_any else 1.0
            await asyncio.sleep(least * random.uniform(1.0, 1.2))  # noqa: S311
            try:
                async with asyncio.timeout(REFRESH_S if fetched else least):
                    await wanted.wait()
            except TimeoutError:
                continue

    async def _fetch(self, issuer: Issuer) -> dict[str, Any]:
        raw = bytearray()
        async with asyncio.timeout(_FETCH_S), self._client.stream("GET", issuer.jwks_url) as answer:
            if answer.status_code != 200:
                raise ValueError("status")
            async for part in answer.aiter_bytes():
                raw += part
                if len(raw) > MAX_JWKS_BYTES:
                    raise ValueError("too large")
        found = json.loads(bytes(raw))
        if not isinstance(found, dict) or not isinstance(found.get("keys"), list):
            raise ValueError("not a key set")
        return found


def parse_keys(key_set: dict[str, Any]) -> Keys:
    """The RSA (2048 bits or more) and P-256 signing keys of `key_set` by id; everything else in it is passed over."""
    keys: Keys = {}
    entries = key_set.get("keys")
    for entry in entries[:MAX_KEYS] if isinstance(entries, list) else ():
        if not isinstance(entry, dict) or not isinstance(entry.get("kid"), str):
            continue
        algorithm = {"RSA": "RS256", "EC": "ES256"}.get(str(entry.get("kty")))
        if algorithm is None or entry.get("use", "sig") != "sig" or entry.get("alg", algorithm) != algorithm:
            continue
        if algorithm == "ES256" and entry.get("crv") != "P-256":
            continue
        try:
            # Only public parts are taken over: `d`, `x5c`, `jku` of an entry are nobody's business here.
            public = {k: entry[k] for k in ("kty", "kid", "n", "e", "crv", "x", "y") if k in entry}
            key = jwt.PyJWK(public, algorithm)
        except (jwt.PyJWTError, ValueError, TypeError):
            continue
        if algorithm == "RS256" and key.key.key_size < 2048:
            continue
        keys[entry["kid"]] = key
    return keys


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(file: Path, raw: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(raw).encode())
