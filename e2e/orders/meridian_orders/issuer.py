"""DEVELOPMENT ONLY: an OIDC issuer that mints a token for whoever asks, for whatever they ask.

Anyone who reaches it is anyone. It exists so that `meridian up` and tests have real RS256 tokens
and a real JWKS to verify them against. Never let a production TenantPolicy name it as its issuer.
"""

import argparse
import base64
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import uvicorn
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

AUDIENCE = "meridian"
MAX_LIFE_S = 3600
_FIELDS = frozenset({"tenant", "sub", "groups", "roles", "ttlSeconds"})


@dataclass(frozen=True)
class SigningKey:
    """An RSA key with its id, which is the thumbprint of the public key (RFC 7638)."""

    private: rsa.RSAPrivateKey
    kid: str
    jwk: Mapping[str, Any]


def new_key() -> SigningKey:
    return _with_id(rsa.generate_private_key(public_exponent=65537, key_size=2048))


def load_or_create_key(file: Path) -> SigningKey:
    """The key in `file`; made and written there, readable by its owner alone, when it is absent.

    Raises ValueError when the file holds no RSA key, OSError when it cannot be read or written.
    """
    try:
        loaded = serialization.load_pem_private_key(file.read_bytes(), password=None)
    except FileNotFoundError:
        key = new_key()
        _write_private(file, key)
        return key
    if not isinstance(loaded, rsa.RSAPrivateKey):
        raise ValueError(f"{file} holds no RSA key")
    return _with_id(loaded)


def mint(
    key: SigningKey,
    *,
    issuer: str,
    tenant: str,
    sub: str = "u_8841",
    groups: Sequence[str] = (),
    roles: Sequence[str] = (),
    ttl_s: int = MAX_LIFE_S,
    audience: str = AUDIENCE,
    now: float | None = None,
) -> str:
    """A signed token with Meridian's claims; its life is cut to one hour."""
    issued = int(time.time() if now is None else now)
    claims = {
        "iss": issuer,
        "aud": audience,
        "sub": sub,
        "iat": issued,
        "exp": issued + min(ttl_s, MAX_LIFE_S),
        "tenant": tenant,
        "groups": list(groups),
        "roles": list(roles),
    }
    return jwt.encode(claims, key.private, algorithm="RS256", headers={"kid": key.kid})


def jwks(key: SigningKey) -> dict[str, Any]:
    return {"keys": [dict(key.jwk)]}


def build_app(key: SigningKey, issuer: str) -> Starlette:
    async def configuration(_: Request) -> Response:
        return JSONResponse(
            {
                "issuer": issuer,
                "jwks_uri": f"{issuer}/.well-known/jwks.json",
                "token_endpoint": f"{issuer}/token",
                "id_token_signing_alg_values_supported": ["RS256"],
                "response_types_supported": ["token"],
                "subject_types_supported": ["public"],
            }
        )

    async def keys(_: Request) -> Response:
        return JSONResponse(jwks(key), headers={"cache-control": "max-age=60"})

    async def token(request: Request) -> Response:
        try:
            asked = _read_request(await request.body())
        except ValueError as error:
            body = {"error": "invalid_request", "error_description": str(error)}
            return JSONResponse(body, 400)
        life = min(asked["ttlSeconds"], MAX_LIFE_S)
        minted = mint(
            key,
            issuer=issuer,
            tenant=asked["tenant"],
            sub=asked["sub"],
            groups=asked["groups"],
            roles=asked["roles"],
            ttl_s=life,
        )
        body = {"access_token": minted, "token_type": "Bearer", "expires_in": life}
        return JSONResponse(body, headers={"cache-control": "no-store"})

    async def health(_: Request) -> Response:
        return Response(status_code=200)

    return Starlette(
        routes=[
            Route("/.well-known/openid-configuration", configuration),
            Route("/.well-known/jwks.json", keys),
            Route("/token", token, methods=["POST"]),
            Route("/health", health),
        ]
    )


def _read_request(raw: bytes) -> dict[str, Any]:
    """The asked claims with their defaults. Raises ValueError that names the field."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(body, dict):
        raise ValueError("the body is not a JSON object")
    if unknown := sorted(body.keys() - _FIELDS):
        raise ValueError(f"unknown fields: {', '.join(unknown)}")
    defaults = {"sub": "u_8841", "groups": [], "roles": [], "ttlSeconds": MAX_LIFE_S}
    asked: dict[str, Any] = {**defaults, **body}
    for name in ("tenant", "sub"):
        if not isinstance(asked.get(name), str) or not asked[name]:
            raise ValueError(f"{name}: a non-empty string is required")
    for name in ("groups", "roles"):
        if not isinstance(asked[name], list) or not all(isinstance(v, str) for v in asked[name]):
            raise ValueError(f"{name}: a list of strings is required")
    life = asked["ttlSeconds"]
    if not isinstance(life, int) or isinstance(life, bool) or life < 1:
        raise ValueError("ttlSeconds: an integer of at least 1 is required")
    return asked


def _with_id(private: rsa.RSAPrivateKey) -> SigningKey:
    public = RSAAlgorithm.to_jwk(private.public_key(), as_dict=True)
    named = {"e": public["e"], "kty": "RSA", "n": public["n"]}
    canonical = json.dumps(named, separators=(",", ":"), sort_keys=True).encode()
    kid = base64.urlsafe_b64encode(hashlib.sha256(canonical).digest()).rstrip(b"=").decode()
    return SigningKey(private, kid, {**named, "kid": kid, "use": "sig", "alg": "RS256"})


def _write_private(file: Path, key: SigningKey) -> None:
    """Whole or not at all, and never readable by others, not even for a moment."""
    pem = key.private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(pem)
        out.flush()
        os.fsync(out.fileno())
    partial.replace(file)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="meridian_orders.issuer", description="DEVELOPMENT ONLY OIDC issuer.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8600)
    parser.add_argument("--key-file", type=Path, required=True, help="made (0600) when absent")
    parser.add_argument("--issuer", help="the iss claim; default http://HOST:PORT")
    args = parser.parse_args(argv)
    issuer = args.issuer or f"http://{args.host}:{args.port}"
    try:
        key = load_or_create_key(args.key_file)
    except (OSError, ValueError) as error:
        sys.exit(f"cannot use the key file {args.key_file}: {error}")
    print(f"DEVELOPMENT ONLY issuer {issuer}: anyone who reaches it is anyone", flush=True)
    uvicorn.run(
        build_app(key, issuer),
        host=args.host,
        port=args.port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
    )


if __name__ == "__main__":
    main()
