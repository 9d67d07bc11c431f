"""The development issuer: real RS256 tokens, verifiable with what its JWKS says, for at most an
hour."""

import stat

import httpx
import jwt
import pytest

from meridian_orders.issuer import build_app, jwks, load_or_create_key, mint, new_key

ISSUER = "http://issuer.test"
KEY = new_key()


async def ask(method: str, path: str, **sent):
    transport = httpx.ASGITransport(app=build_app(KEY, ISSUER))
    async with httpx.AsyncClient(transport=transport, base_url=ISSUER) as http:
        return await http.request(method, path, **sent)


def verify(token: str) -> dict:
    header = jwt.get_unverified_header(token)
    (found,) = [k for k in jwks(KEY)["keys"] if k["kid"] == header["kid"]]
    public = jwt.PyJWK(found).key
    return jwt.decode(token, public, algorithms=["RS256"], audience="meridian", issuer=ISSUER)


async def test_a_minted_token_verifies_against_the_published_keys():
    asked = {"tenant": "acme-eu", "sub": "u_1", "groups": ["support_agent"], "roles": ["r"]}
    answered = (await ask("POST", "/token", json=asked)).json()
    claims = verify(answered["access_token"])
    assert {name: claims[name] for name in asked} == asked
    assert answered["expires_in"] == claims["exp"] - claims["iat"] == 3600


async def test_life_is_at_most_an_hour():
    """T-05."""
    answered = await ask("POST", "/token", json={"tenant": "acme-eu", "ttlSeconds": 10**9})
    claims = verify(answered.json()["access_token"])
    assert claims["exp"] - claims["iat"] == 3600


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "tenant"),
        ({"tenant": ""}, "tenant"),
        ({"tenant": "a", "groups": "a,b"}, "groups"),
        ({"tenant": "a", "ttlSeconds": 0}, "ttlSeconds"),
        ({"tenant": "a", "admin": True}, "admin"),
        ([], "object"),
    ],
)
async def test_a_malformed_request_is_told_its_field(body, named):
    answered = await ask("POST", "/token", json=body)
    assert answered.status_code == 400
    assert named in answered.json()["error_description"]


async def test_discovery_points_at_the_keys_and_no_private_part_is_published():
    found = (await ask("GET", "/.well-known/openid-configuration")).json()
    assert found["issuer"] == ISSUER
    assert found["jwks_uri"] == f"{ISSUER}/.well-known/jwks.json"
    (key,) = (await ask("GET", "/.well-known/jwks.json")).json()["keys"]
    assert set(key) == {"kty", "n", "e", "kid", "use", "alg"}


def test_the_key_outlives_a_restart_and_only_its_owner_reads_it(tmp_path):
    file = tmp_path / "state" / "issuer.pem"
    made = load_or_create_key(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert load_or_create_key(file).kid == made.kid
    assert [p.name for p in file.parent.iterdir()] == ["issuer.pem"]


def test_mint_makes_expired_and_foreign_tokens_for_tests():
    old = mint(KEY, issuer=ISSUER, tenant="acme-eu", now=0)
    with pytest.raises(jwt.ExpiredSignatureError):
        verify(old)
