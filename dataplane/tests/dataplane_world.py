"""A small world for the data plane's tests: two tenants, two passages, a model that cites, tokens; change by keyword."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from meridian_api.digest import sha256_hex
from meridian_api.serving import Snapshot, pack
from meridian_dataplane.app import public_app
from meridian_dataplane.calls import Event, ModelCall, Passage, Piece, Received, Usage
from meridian_dataplane.clock import SystemClock
from meridian_dataplane.configuration.live import Live, Source
from meridian_dataplane.doubles import (
    MemoryIndex,
    MemoryKeys,
    MemoryRecords,
    MemoryRole,
    MemoryTools,
    ScriptedModel,
    StoredChunk,
)
from meridian_dataplane.pipeline import answer
from meridian_dataplane.plane import Plane, assemble_plane
from meridian_dataplane.ports import ModelFailed
from meridian_dataplane.telemetry import Metrics

ISSUER = "https://idp.example"
SIGNING = Ed25519PrivateKey.generate()
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
OTHER_RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def jwk(key: Any, kid: str) -> jwt.PyJWK:
    algorithm = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    name = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
    return jwt.PyJWK({**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid}, name)


def a_token(*, key: Any = RSA_KEY, kid: Any = "k1", headers: dict[str, Any] | None = None, **changed: Any) -> str:
    """A good token of acme-eu's agent; `changed` replaces claims, None removes one."""
    now = int(time.time())
    claims: dict[str, Any] = {
        "iss": ISSUER,
        "aud": "meridian",
        "sub": "u_1",
        "iat": now,
        "exp": now + 600,
        "tenant": "acme-eu",
        "groups": ["staff"],
        "roles": ["support_agent"],
        **changed,
    }
    algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
    kept = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(kept, key, algorithm=algorithm, headers={"kid": kid, **(headers or {})})


def a_target(pool: str = "small", **changed: Any) -> dict[str, Any]:
    return {
        "pool": pool,
        "version": "1",
        "region": "eu-1",
        "model": "small-8b",
        "provider": "KServe",
        "baseUrl": "http://engine.test:8080",
        "price": {"inputUsd": 1.0, "cachedInputUsd": 0.5, "outputUsd": 4.0},
        **changed,
    }


GET_ORDER = {
    "name": "get_order",
    "schemaVersion": "2",
    "description": "Looks up one order.",
    "parameters": {
        "type": "object",
        "properties": {"order_id": {"type": "string", "pattern": "^[A-Z]-[0-9]{4,8}$"}},
        "required": ["order_id"],
        "additionalProperties": False,
    },
    "endpoint": "orders",
    "path": "/orders/{order_id}",
    "method": "GET",
    "sideEffect": False,
    "timeoutMs": 2000,
    "roles": ["support_agent"],
    "resultFields": ["orderId", "status"],
}


def a_manifest(release: str = "r1", **changed: Any) -> dict[str, Any]:
    return {
        "release": release,
        "appVersion": "1",
        "prompt": "prompt-support-1",
        "systemPrompt": "Answer from the passages.",
        "historyFormat": "1",
        "primary": a_target(),
        "fallback": a_target("large"),
        "index": {
            "epoch": "e1",
            "region": "eu-1",
            "embedding": {"model": "wordllama", "revision": "1", "dimension": 256},
            "normaliser": "1",
        },
        "tools": [GET_ORDER],
        "settings": {},
        **changed,
    }


def a_tenant(tenant_id: str = "acme-eu", **changed: Any) -> dict[str, Any]:
    return {
        "tenantId": tenant_id,
        "identity": {"issuer": ISSUER, "tenantValue": tenant_id},
        "tier": "standard",
        "allowedRegions": ["eu-1"],
        "overflow": False,
        "budgets": {},
        "roles": [{"name": "support_agent", "groups": ["support"], "tools": ["get_order"]}, {"name": "customer"}],
        "cache": {},
        "canaryEligible": True,
        **changed,
    }


def a_snapshot(generation: int = 1, **changed: Any) -> Snapshot:
    """Changes are in wire form, camelCase."""
    return Snapshot.from_wire(
        {
            "service": "support",
            "region": "eu-1",
            "generation": generation,
            "leaseEpoch": 1,
            "issuedAt": "2026-01-01T00:00:00Z",
            "serving": a_manifest(),
            "tenants": [a_tenant(), a_tenant("globex")],
            **changed,
        }
    )


def a_candidate(release: str = "r2", weight: int = 50, **changed: Any) -> dict[str, Any]:
    return {"manifest": a_manifest(release, **changed), "weightPercent": weight, "salt": "s1"}


def an_envelope(snapshot: Snapshot, key: Ed25519PrivateKey = SIGNING, key_id: str = "key-1", **changed: Any) -> bytes:
    packed = pack(snapshot)
    wire = {
        "generation": snapshot.generation,
        "payload": base64.b64encode(packed).decode(),
        "signature": base64.b64encode(key.sign(packed)).decode(),
        "keyId": key_id,
        "digest": sha256_hex(packed),
        **changed,
    }
    return json.dumps(wire).encode()


def write_key(folder: Path, key: Ed25519PrivateKey = SIGNING, key_id: str = "key-1") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / f"{key_id}.pem").write_bytes(pem)


def a_passage(doc_id: str = "POL-1", text: str = "Refunds take 5 days.", **changed: Any) -> Passage:
    passage = Passage(doc_id, 3, f"{doc_id}#0", f"Title of {doc_id}", f"https://docs.example/{doc_id}", text)
    return replace(passage, **changed)


def a_chunk(passage: Passage, *, tenant: str = "acme-eu", groups: Sequence[str] = ("support",)) -> StoredChunk:
    return StoredChunk(tenant, "e1", frozenset(groups), passage)


def markers_in(call: ModelCall) -> list[str]:
    return re.findall(r'<passage id="(\w+)"', call.user)


def citing(call: ModelCall) -> list[Piece | ModelFailed | float]:
    """An answer that cites the first passage, its marker cut in two."""
    marker = markers_in(call)[0]
    pieces = [Piece("Refunds take "), Piece("5 days ["), Piece(marker[:3]), Piece(marker[3:] + "].")]
    return [*pieces, Piece("", "stop", Usage(100, 10, 40))]


SOME_USAGE = Usage(10, 5, 0)


def saying(*texts: str, usage: Usage | None = SOME_USAGE) -> Any:
    return lambda call: [*(Piece(text) for text in texts), Piece("", "stop", usage)]


def failing(code: str = "unreachable", *before: str) -> Any:
    return lambda call: [*(Piece(text) for text in before), ModelFailed(code)]


@dataclass
class World:
    """A plane over doubles, with the doubles at hand."""

    plane: Plane
    index: MemoryIndex
    records: MemoryRecords
    model: ScriptedModel
    tools: MemoryTools
    keys: MemoryKeys
    clock: Any = field(default_factory=SystemClock)

    def client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=public_app(self.plane), raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://plane.test")

    async def ask(self, question: str = "How long do refunds take?", **changed: Any) -> list[Event]:
        async with answer(a_request(question, clock=self.clock, **changed), self.plane) as events:
            return [event async for event in events]

    def serve(self, snapshot: Snapshot) -> None:
        self.plane.live.snapshot = snapshot

    async def settled(self) -> None:
        """Rows of ended requests reach the records without a running spool."""
        for waiting in list(self.plane.spool._rows):
            await self.plane.spool._store(waiting.row)
        self.plane.spool._rows.clear()


def a_world(snapshot: Snapshot | None = None, script: Any = citing, *, clock: Any = None, **doubles: Any) -> World:
    clock = clock or SystemClock()
    metrics = Metrics()
    nowhere = Path("/nonexistent")
    live = Live(Source("support", "eu-1", nowhere, nowhere, nowhere), clock, metrics)
    live.snapshot = snapshot or a_snapshot()
    index = doubles.get("index") or MemoryIndex([a_chunk(a_passage()), a_chunk(a_passage("POL-2", "Shoes fit."))])
    world = {
        "index": index,
        "records": MemoryRecords(),
        "model": ScriptedModel(script),
        "tools": MemoryTools({("acme-eu", "A-77120"): {"orderId": "A-77120", "status": "paid", "secret": "x"}}),
        "keys": MemoryKeys({ISSUER: {"k1": jwk(RSA_KEY, "k1"), "e1": jwk(EC_KEY, "e1")}}),
        **doubles,
    }
    plane = assemble_plane(
        clock=clock, live=live, documents=world["index"], role=MemoryRole(), metrics=metrics, **world
    )
    return World(plane, clock=clock, **world)


def a_request(
    question: str = "How long do refunds take?",
    *,
    token: str | None = None,
    conversation: str | None = None,
    clock: Any = None,
    request_id: str = "0" * 32,
) -> Received:
    return Received(
        request_id=request_id,
        traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01",
        authorization=f"Bearer {token or a_token()}",
        question=question,
        conversation_id=conversation,
        locale=None,
        arrived_at=(clock or SystemClock()).monotonic(),
    )


def named(events: Sequence[Event], name: str) -> list[dict[str, Any]]:
    return [event.data for event in events if event.name == name]


def text_of(events: Sequence[Event]) -> str:
    return "".join(data["text"] for data in named(events, "token"))


def bearer(token: str | None = None) -> dict[str, str]:
    return {"authorization": f"Bearer {token or a_token()}"}
