"""Who asks. Takes the Authorization header's value; gives an Identified; refuses with 400, 401, 403; writes nothing.

Algorithms, keys, issuers, audiences and times are fixed here and in the snapshot; nothing in a token chooses them, and no check
waits for the network.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import jwt

from meridian_api.serving import ServingTenant, Snapshot
from meridian_dataplane.calls import Caller, Identified, Received
from meridian_dataplane.ports import Clock, Keys
from meridian_dataplane.refusals import Refusal, unauthenticated

ALGORITHMS = ("RS256", "ES256")
LEEWAY_S = 30
MAX_LIFE_S = 3600
MAX_GROUPS = 256
_MAX_KID = 256
_KEY_TYPES = {"RS256": "RSA", "ES256": "EC"}
_DEFAULT_AUDIENCE = "meridian"
_TENANT_ID = re.compile(r"[a-z0-9-]{1,40}")


def identify(received: Received, snapshot: Snapshot, *, stale: bool, keys: Keys, clock: Clock) -> Identified:
    """The request with its caller, by `snapshot` from now on."""
    token = bearer(received.authorization)
    claims = _verified(token, snapshot, keys)
    caller = _caller(claims, snapshot, clock.now())
    return Identified(received, caller, snapshot, stale)


def caller_of(tenant: ServingTenant, subject: str, groups: tuple[str, ...], roles: tuple[str, ...]) -> Caller:
    """A caller whose claims are known already: here after verification, in the evaluation Job from the golden set."""
    added = {group for role in tenant.roles if role.name in roles for group in role.groups}
    return Caller(tenant, subject, tuple(sorted({*groups, *added})), roles)


def bearer(authorization: str) -> str:
    """The token of a header that holds exactly one; nothing is verified yet."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token or token != token.strip() or " " in token:
        raise unauthenticated("token_missing")
    return token


def _verified(token: str, snapshot: Snapshot, keys: Keys) -> Mapping[str, Any]:
    try:
        header = jwt.get_unverified_header(token)
        issuer = jwt.decode(token, options={"verify_signature": False}).get("iss")
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise unauthenticated("token_malformed") from None
    algorithm, kid = header.get("alg"), header.get("kid")
    if algorithm not in ALGORITHMS:
        raise unauthenticated("token_algorithm")
    if not isinstance(issuer, str) or not keys.knows(issuer):
        raise unauthenticated("token_issuer")
    if not isinstance(kid, str) or not 0 < len(kid) <= _MAX_KID:
        raise unauthenticated("token_key")
    key = keys.find(issuer, kid)
    # Typed per algorithm: an RSA key never checks anything but RS256 (T-02).
    if key is None or key.key_type != _KEY_TYPES[algorithm]:
        raise unauthenticated("token_key")
    ours = [tenant.identity for tenant in snapshot.tenants if tenant.identity.issuer == issuer]
    audiences = sorted({identity.audience for identity in ours}) or [_DEFAULT_AUDIENCE]
    try:
        claims = jwt.decode(
            token,
            key.key,
            algorithms=[algorithm],
            issuer=issuer,
            audience=audiences,
            leeway=LEEWAY_S,
            options={"require": ["exp", "iat", "aud", "iss", "sub"]},
        )
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError):
        raise unauthenticated("token_invalid") from None
    _bounded_life(claims)
    return claims


def _bounded_life(claims: Mapping[str, Any]) -> None:
    issued, expires = claims["iat"], claims["exp"]
    if isinstance(issued, bool) or not isinstance(issued, int | float):
        raise unauthenticated("token_invalid")
    # Anything but "at most" is refused, so that NaN is too.
    if not int(expires) - issued <= MAX_LIFE_S:
        raise unauthenticated("token_life")


def _caller(claims: Mapping[str, Any], snapshot: Snapshot, now: datetime) -> Caller:
    subject = claims["sub"]
    if not isinstance(subject, str) or not 0 < len(subject) <= 256 or not subject.isprintable():
        raise unauthenticated("token_subject")
    tenant = _tenant(claims, snapshot)
    if f"{tenant.tenant_id}/{subject}" in snapshot.revoked_subjects:
        raise unauthenticated("subject_revoked")
    if tenant.not_after is not None and now >= datetime.fromisoformat(tenant.not_after):
        raise Refusal(403, "tenant_expired", "The tenant's policy has ended.")
    identity = tenant.identity
    return caller_of(
        tenant,
        subject,
        _names(claims.get(identity.groups_claim)),
        _names(claims.get(identity.roles_claim)),
    )


def _tenant(claims: Mapping[str, Any], snapshot: Snapshot) -> ServingTenant:
    """The one tenant whose issuer and claim value are exactly these; bytes are compared, never normalised (T-17).

    A token that two tenants could claim is refused, not given to the first.
    """
    ours = [t for t in snapshot.tenants if t.identity.issuer == claims["iss"]]
    names = {tenant.identity.tenant_claim for tenant in ours} or {"tenant"}
    if not any(isinstance(claims.get(name), str) for name in names):
        raise unauthenticated("token_tenant")
    audience = claims["aud"]
    audiences = [audience] if isinstance(audience, str) else audience
    named = [t for t in ours if claims.get(t.identity.tenant_claim) == t.identity.tenant_value]
    if len(named) > 1:
        # Tenants of one issuer may be told apart by different claims; a token with both could be either's.
        raise unauthenticated("token_tenant")
    for tenant in named:
        if tenant.identity.audience not in audiences:
            raise unauthenticated("token_audience")
        return tenant
    if not any(isinstance(value := claims.get(name), str) and _TENANT_ID.fullmatch(value) for name in names):
        raise Refusal(400, "tenant_malformed", "A tenant is named by 1 to 40 of a-z, 0-9 and -.")
    raise Refusal(403, "tenant_unknown", "The token is valid, but its tenant has no policy here.")


def _names(claim: object) -> tuple[str, ...]:
    """An array of names as it stands. Anything but an array gives no rights; nothing is split, nothing is a wildcard (T-18)."""
    if not isinstance(claim, list):
        return ()
    if len(claim) > MAX_GROUPS:
        raise Refusal(400, "too_many_groups", f"A token may name at most {MAX_GROUPS} groups.")
    plain = {n for n in claim if isinstance(n, str) and 0 < len(n) <= 120 and n.isprintable()}
    return tuple(sorted(plain))
