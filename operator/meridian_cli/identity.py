"""Tokens for the command line: from the development issuer, or given."""

import shlex
from dataclasses import dataclass
from typing import Any

import httpx

DEFAULT_ISSUER = "http://10.200.0.1:8600"
DEFAULT_SUB = "u_8841"
ISSUER_VARIABLE = "MERIDIAN_ISSUER"
TIMEOUT_S = 5.0


class NoToken(Exception):
    """The issuer gave no token; the message says why and what to do."""


@dataclass(frozen=True)
class Identity:
    """Who asks. The claims of a token, without its times."""

    tenant: str
    sub: str = DEFAULT_SUB
    groups: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()


def ask_command(identity: Identity, question: str) -> str:
    """The `meridian ask` that a person would type to ask this as the same user."""
    flags = ["--tenant", identity.tenant]
    flags += ["--sub", identity.sub] if identity.sub != DEFAULT_SUB else []
    flags += [part for group in identity.groups for part in ("--group", group)]
    flags += [part for role in identity.roles for part in ("--role", role)]
    quoted = f'"{question}"' if not set(question) & set('"$`\\!') else shlex.quote(question)
    return f"meridian ask {shlex.join(flags)} {quoted}"


def token_request(identity: Identity, ttl_s: int) -> dict[str, Any]:
    """The body of the development issuer's POST /token."""
    return {
        "tenant": identity.tenant,
        "sub": identity.sub,
        "groups": list(identity.groups),
        "roles": list(identity.roles),
        "ttlSeconds": ttl_s,
    }


def mint_token(issuer: str, identity: Identity, ttl_s: int = 3600, transport: httpx.BaseTransport | None = None) -> str:
    """A fresh token. Raises NoToken."""
    try:
        with httpx.Client(transport=transport, timeout=TIMEOUT_S, trust_env=False) as client:
            answered = client.post(f"{issuer}/token", json=token_request(identity, ttl_s))
    except httpx.HTTPError as error:
        raise _unreachable(issuer, error) from None
    return read_token(issuer, answered)


async def mint_token_async(client: httpx.AsyncClient, issuer: str, identity: Identity, ttl_s: int = 3600) -> str:
    """A fresh token over a client that is open already. Raises NoToken."""
    try:
        answered = await client.post(f"{issuer}/token", json=token_request(identity, ttl_s))
    except httpx.HTTPError as error:
        raise _unreachable(issuer, error) from None
    return read_token(issuer, answered)


def read_token(issuer: str, answered: httpx.Response) -> str:
    """The token in the issuer's answer. Raises NoToken."""
    try:
        body = answered.json()
    except ValueError:
        body = {}
    token = body.get("access_token") if isinstance(body, dict) else None
    if answered.status_code != 200 or not isinstance(token, str):
        said = body.get("error_description", "") if isinstance(body, dict) else ""
        raise NoToken(f"the issuer {issuer} answered {answered.status_code}: {said}")
    return token


def _unreachable(issuer: str, error: Exception) -> NoToken:
    return NoToken(
        f"the development issuer {issuer} does not answer ({type(error).__name__}). "
        "Is the installation up (`meridian status`)? Or give a token with --token."
    )
