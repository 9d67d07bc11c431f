"""Story: callers send what they should not. Each is refused in the agreed way, and nothing they send chooses for them."""

from __future__ import annotations

import base64
import json
import time

import asking
import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from live_cluster import LiveCluster

from meridian_cli.identity import DEFAULT_ISSUER, Identity

pytestmark = pytest.mark.e2e
QUESTION = {"question": "Until when may I withdraw from an order that was placed online?"}


def _claims(**changes: object) -> dict[str, object]:
    now = int(time.time())
    claims = {"iss": DEFAULT_ISSUER, "aud": "meridian", "sub": "u_1", "iat": now, "exp": now + 600, "tenant": "acme-eu"}
    return {**claims, "groups": ["support_agent"], "roles": ["support_agent"], **changes}


def _signed_by_a_stranger() -> str:
    kid = jwt.get_unverified_header(asking.token(asking.ACME_CUSTOMER))["kid"]
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return jwt.encode(_claims(), key, algorithm="RS256", headers={"kid": kid})


def _altered() -> str:
    head, body, signature = asking.token(asking.ACME_CUSTOMER).split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    changed = json.dumps({**claims, "tenant": "globex"}).encode()
    return f"{head}.{base64.urlsafe_b64encode(changed).rstrip(b'=').decode()}.{signature}"


def _signed_with_the_public_key() -> str:
    """Algorithm confusion: the public key used as an HMAC secret."""
    keys = httpx.get(f"{DEFAULT_ISSUER}/.well-known/jwks.json", trust_env=False).json()["keys"]
    return jwt.encode(_claims(), keys[0]["n"], algorithm="HS256", headers={"kid": keys[0]["kid"]})


FORGED = {
    "no token": dict,
    "not a token": lambda: {"authorization": "Bearer abc"},
    "basic": lambda: {"authorization": "Basic YTpi"},
    "a stranger's key": lambda: asking.bearer(_signed_by_a_stranger()),
    "altered claims": lambda: asking.bearer(_altered()),
    "alg none": lambda: asking.bearer(jwt.encode(_claims(), None, algorithm="none")),
    "public key as secret": lambda: asking.bearer(_signed_with_the_public_key()),
}


@pytest.mark.parametrize("forged", FORGED)
@pytest.mark.parametrize("endpoint", ["answers", "feedback", "documents"])
def test_without_a_verified_token_nothing_is_served(url: str, endpoint: str, forged: str) -> None:
    """S-10: 401 with the same words for every cause."""
    answered = _send(url, endpoint, FORGED[forged]())
    assert (answered.status_code, answered.headers["content-type"]) == (401, "application/problem+json"), answered.text
    assert answered.json()["detail"] == _send(url, endpoint, {}).json()["detail"]


@pytest.mark.parametrize(
    "extra", [{"tenant": "globex"}, {"release": "r1"}, {"region": "us-1"}, {"model": "x"}, {"groups": ["billing_lead"]}]
)
def test_unknown_fields_are_refused(url: str, headers, extra: dict) -> None:
    """S-10: nothing in a body can choose tenant, release or region."""
    reply = asking.ask_once(url, headers(asking.ACME_CUSTOMER), {**QUESTION, **extra})
    assert reply.status == 422, reply.raw


def test_a_tenant_without_policy_is_refused_with_a_reason(url: str, headers) -> None:
    reply = asking.ask_once(url, headers(Identity("initech", "u_1", ("customers",), ("customer",))), QUESTION)
    assert (reply.status, reply.problem_code) == (403, "tenant_unknown"), reply.raw


def test_headers_choose_nothing(cluster: LiveCluster, url: str, headers) -> None:
    """S-10, S-20: tenant, release, region and groups asked for in headers have no effect."""
    own = headers(asking.ACME_CUSTOMER)
    conversation = {"conversationId": f"headers-{time.time_ns()}"}
    plain = asking.ask_once(url, own, {**QUESTION, **conversation})
    asked = {
        "x-tenant-id": "globex",
        "x-meridian-release": "another",
        "x-meridian-arm": "candidate",
        "x-meridian-region": "us-1",
        "x-acl-groups": "billing_lead",
    }
    steered = asking.ask_once(url, {**own, **asked}, {**QUESTION, **conversation})
    assert (plain.end, steered.end) == ("done", "done")
    assert [steered.meta[k] for k in ("release", "arm", "epoch")] == [
        plain.meta[k] for k in ("release", "arm", "epoch")
    ]
    assert (steered.text, steered.cited) == (plain.text, plain.cited)

    opened = httpx.get(f"{url}/v1/documents/POL-EU-009", headers={**own, **asked}, trust_env=False)
    assert opened.status_code == 404, "a customer opened a document of agents"


def _send(url: str, endpoint: str, headers: dict[str, str]) -> httpx.Response:
    with httpx.Client(base_url=url, headers=headers, timeout=10, trust_env=False) as client:
        if endpoint == "documents":
            return client.get("/v1/documents/POL-EU-001?version=1")
        body = QUESTION if endpoint == "answers" else {"requestId": "req-1", "outcome": "resolved"}
        return client.post(f"/v1/{endpoint}", json=body)
