"""Tokens: what a third party signed, and nothing that only looks like it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from evenmesh.wire.errors import Unauthenticated, Unavailable
from evenmesh_kit.security.caller import AgentName, Caller, Role
from evenmesh_kit.security.key_server import KeyServer
from evenmesh_kit.security.tokens import Claims, Tokens, TokensError
from tests.support.clock import Clock
from tests.support.scripted_http import HttpReply, HttpRequest, in_thread
from tests.support.waiting import until

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CURVE = ec.generate_private_key(ec.SECP256R1())
CLAIMS = Claims("evenmesh", "https://issuer.example")


def jwks(**keys: Any) -> str:
    """A set of public keys by name."""
    found = []
    for name, key in keys.items():
        algorithm = (
            jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
        )
        found.append(algorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": name, "use": "sig"})
    return json.dumps({"keys": found})


def token(key: Any = KEY, name: str | None = "one", algorithm: str = "RS256", **claims: Any) -> str:
    """A token that is in order but for what a test changes."""
    content = {
        "sub": "ada",
        "aud": "evenmesh",
        "iss": "https://issuer.example",
        "exp": int(time.time()) + 600,
        "evenmesh_tenant": "acme",
        "evenmesh_roles": ["ask", "feedback"],
    } | claims
    content = {name: value for name, value in content.items() if value is not None}
    return jwt.encode(content, key, algorithm=algorithm, headers={"kid": name} if name else None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with two keys."""
    path = tmp_path / "jwks.json"
    path.write_text(jwks(one=KEY, two=CURVE))
    return path


def caller(path: Path, text: str) -> Caller:
    """Whom a token vouches for."""
    return asyncio.run(Tokens(str(path), CLAIMS).caller(text))


def test_a_token_says_who_for_whom_and_what(path: Path) -> None:
    assert caller(path, token()) == Caller("ada", "acme", frozenset({Role.ASK, Role.FEEDBACK}))
    assert caller(path, token(CURVE, "two", "ES256")).name == "ada"
    assert caller(path, token(evenmesh_roles="ask train nonsense")).roles == {Role.ASK, Role.TRAIN}
    assert caller(path, token(evenmesh_roles=None)) == Caller("ada", "acme", frozenset())


def test_a_token_names_the_provider_whose_statements_it_may_read(path: Path) -> None:
    found = caller(path, token(evenmesh_roles="provider", evenmesh_provider="Acme Press"))
    assert found == Caller("ada", "acme", frozenset({Role.PROVIDER}), "Acme Press")
    assert caller(path, token(evenmesh_provider="Acme Press")).provider == ""


def test_a_token_names_the_agents_that_it_may_act_as(path: Path) -> None:
    assert caller(path, token()).agents is None
    assert caller(path, token(evenmesh_agents="qa/t 5")).agents == frozenset({AgentName("qa", "t 5")})
    both = caller(path, token(evenmesh_agents=["qa/a", "qa/b"])).agents
    assert both == frozenset({AgentName("qa", "a"), AgentName("qa", "b")})


def test_a_token_without_a_tenant_has_the_one_of_the_settings(path: Path) -> None:
    claims = replace(CLAIMS, default_tenant="everybody")
    found = asyncio.run(Tokens(str(path), claims).caller(token(evenmesh_tenant=None)))
    assert found.tenant == "everybody"


def test_no_token_makes_a_service_of_its_bearer(path: Path) -> None:
    assert caller(path, token(evenmesh_roles=["service", "ask"])).roles == {Role.ASK}


@pytest.mark.parametrize(
    ("make", "why"),
    [  # made when they are shown: a token of when tests were collected may have expired
        (lambda: token(exp=int(time.time()) - 60), "expired"),
        (lambda: token(nbf=int(time.time()) + 600), "not yet valid"),
        (lambda: token(aud="another"), "udience"),
        (lambda: token(iss="https://evil.example"), "ssuer"),
        (lambda: token(exp=None), '"exp"'),
        (lambda: token(sub=None), '"sub"'),
        (lambda: token(OTHER), "ignature"),
        (lambda: token(name="three"), "no key 'three'"),
        (lambda: token(evenmesh_tenant="../etc"), "evenmesh_tenant"),
        (lambda: token(evenmesh_tenant=None), "evenmesh_tenant: must name a tenant"),
        (lambda: token(evenmesh_tenant=""), "evenmesh_tenant: must name a tenant"),
        (lambda: token(evenmesh_roles=5), "evenmesh_roles: must be a list"),
        (lambda: token(evenmesh_roles={"ask": True}), "evenmesh_roles: must be a list"),
        (lambda: token(evenmesh_agents=[]), "evenmesh_agents: must name an agent"),
        (lambda: token(evenmesh_agents="qa"), "evenmesh_agents: must be TASK/MODEL"),
        (lambda: token(evenmesh_agents=[5]), "evenmesh_agents: must be a list"),
        (lambda: token(evenmesh_agents={"qa": "m"}), "evenmesh_agents: must be a list"),
        (lambda: token(CURVE, "one", "ES256"), "not valid"),
        (lambda: "not.a.token", "not valid"),
        (lambda: "", "not valid"),
    ],
    ids=[
        *("expired", "early", "audience", "issuer", "no-expiry", "no-subject"),
        *("another-key", "unknown-key", "tenant", "no-tenant", "empty-tenant", "roles-number", "roles-table"),
        *("no-agents", "no-agent", "agents-number", "agents-table"),
        *("algorithm-of-another-key", "no-token", "empty"),
    ],
)
def test_what_is_not_in_order_is_refused(path: Path, make: Callable[[], str], why: str) -> None:
    with pytest.raises(Unauthenticated, match=why):
        caller(path, make())


def test_a_public_key_is_no_secret_to_sign_with(path: Path) -> None:
    import hashlib
    import hmac

    public = KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for algorithm in ("HS256", "none"):
        head = base64.urlsafe_b64encode(json.dumps({"alg": algorithm, "kid": "one"}).encode()).rstrip(b"=")
        body = token().split(".")[1].encode()
        signature = b""
        if algorithm == "HS256":
            digest = hmac.new(public, head + b"." + body, hashlib.sha256).digest()
            signature = base64.urlsafe_b64encode(digest).rstrip(b"=")
        with pytest.raises(Unauthenticated):
            caller(path, b".".join([head, body, signature]).decode())


@pytest.mark.parametrize(("key", "algorithm"), [(KEY, "RS256"), (CURVE, "ES256"), (OTHER, "RS256")])
def test_a_token_that_names_no_key_is_tried_with_each(path: Path, key: Any, algorithm: str) -> None:
    path.write_text(jwks(one=KEY, two=CURVE, three=OTHER))
    assert caller(path, token(key, None, algorithm)).name == "ada"


def test_a_token_that_names_no_key_is_refused_if_none_has_signed_it(path: Path) -> None:
    with pytest.raises(Unauthenticated, match="Signature verification failed"):
        caller(path, token(OTHER, None))
    with pytest.raises(Unauthenticated, match="expired"):
        caller(path, token(CURVE, None, "ES256", exp=1))


def test_keys_are_read_again_when_the_file_changes(path: Path) -> None:
    tokens = Tokens(str(path), CLAIMS)
    with pytest.raises(Unauthenticated):
        asyncio.run(tokens.caller(token(OTHER, "three")))
    path.write_text(jwks(three=OTHER))
    os.utime(path, ns=(1, 1))
    assert asyncio.run(tokens.caller(token(OTHER, "three"))).name == "ada"
    with pytest.raises(Unauthenticated):
        asyncio.run(tokens.caller(token()))
    path.write_text("{")
    os.utime(path, ns=(2, 2))
    assert asyncio.run(tokens.caller(token(OTHER, "three"))).name == "ada"
    assert (tokens.keys.stale(), tokens.keys.failures) == (True, 1)
    path.write_text(jwks(one=KEY))
    assert asyncio.run(tokens.caller(token())).name == "ada"
    assert not tokens.keys.stale()


@pytest.fixture
def issuer() -> Iterator[str]:
    """The address of a server of keys."""

    async def script(request: HttpRequest, reply: HttpReply) -> None:
        await reply.send(200, jwks(one=KEY) if request.path == "/jwks" else request.path[1:])

    with in_thread(script) as server:
        yield server.origin


def test_keys_come_from_an_address(issuer: str) -> None:
    tokens = Tokens(f"{issuer}/jwks", CLAIMS)
    assert asyncio.run(tokens.caller(token())).name == "ada"
    with pytest.raises(Unauthenticated):
        asyncio.run(tokens.caller(token(OTHER, "three")))


@pytest.mark.parametrize("answer", ["", "{", "[]", "{}", '{"keys":[]}'], ids=repr)
def test_an_address_without_keys_is_not_the_tokens_fault(issuer: str, answer: str) -> None:
    tokens = Tokens(f"{issuer}/{answer}", CLAIMS)
    assert not tokens.keys.stale()
    for _ in range(2):  # the second time it is not asked again
        with pytest.raises(Unavailable, match="cannot be fetched"):
            asyncio.run(tokens.caller(token()))
        assert (tokens.keys.stale(), tokens.keys.failures) == (True, 1)


def test_a_reply_that_is_no_http_is_not_tried_at_once_again() -> None:
    async def script(_: HttpRequest, reply: HttpReply) -> None:
        await reply.raw(b"nonsense\r\n\r\n")

    with in_thread(script) as server:
        tokens = Tokens(f"{server.origin}/jwks", CLAIMS)
        for _ in range(2):
            with pytest.raises(Unavailable, match="cannot be fetched"):
                asyncio.run(tokens.caller(token()))
            assert (tokens.keys.stale(), tokens.keys.failures) == (True, 1)


@pytest.mark.parametrize(
    "begin",
    [
        b"HTTP/1.1 200 OK\r\nx: ",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n",
    ],
)
def test_a_server_that_never_ends_its_reply_keeps_no_request(
    begin: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(_: HttpRequest, reply: HttpReply) -> None:
        await reply.raw(begin)
        while True:
            await reply.raw(b" ")
            await asyncio.sleep(0.05)

    with in_thread(script) as server:
        keys = KeyServer(f"{server.origin}/jwks", fetch_s=0.5)
        with pytest.raises(Unavailable, match="cannot be fetched"):
            asyncio.run(keys.key("one"))
        assert (keys.stale(), keys.failures) == (True, 1)
    assert "no whole reply within 0.5 s" in caplog.text


def test_a_reply_that_is_far_too_large_is_not_read(caplog: pytest.LogCaptureFixture) -> None:
    async def script(_: HttpRequest, reply: HttpReply) -> None:
        await reply.send(200, jwks(one=KEY) + " " * 2**20)

    with in_thread(script) as server, pytest.raises(Unavailable):
        asyncio.run(KeyServer(f"{server.origin}/jwks").key("one"))
    assert "larger than 1,048,576 bytes" in caplog.text


def test_a_redirect_is_not_followed(issuer: str, caplog: pytest.LogCaptureFixture) -> None:
    async def script(_: HttpRequest, reply: HttpReply) -> None:
        await reply.send(302, "", location=f"{issuer}/jwks")

    with in_thread(script) as server, pytest.raises(Unavailable):
        asyncio.run(KeyServer(f"{server.origin}/jwks").key("one"))
    assert "302" in caplog.text


def test_a_failure_is_reported_for_five_minutes() -> None:
    clock = Clock()
    tokens = Tokens("http://127.0.0.1:9/jwks", CLAIMS, clock=clock)
    with pytest.raises(Unavailable):
        asyncio.run(tokens.caller(token()))
    assert tokens.keys.stale()
    clock.now += 301
    assert not tokens.keys.stale()


class SlowIssuer:
    """A server of keys, whose answers wait until they are let go."""

    def __init__(self) -> None:
        self.keys = jwks(one=KEY)
        self.asked = 0
        self.go = threading.Event()

    async def __call__(self, _: HttpRequest, reply: HttpReply) -> None:
        self.asked += 1
        assert await asyncio.to_thread(self.go.wait, 30)
        await reply.send(200, self.keys)


@pytest.fixture
def slow() -> Iterator[tuple[SlowIssuer, str]]:
    """A slow server of keys, and its address."""
    issuer = SlowIssuer()
    with in_thread(issuer) as server:
        try:
            yield issuer, f"{server.origin}/jwks"
        finally:
            issuer.go.set()


async def asked(issuer: SlowIssuer, times: int) -> None:
    """Wait until the server has been asked that often."""
    await until(lambda: issuer.asked >= times, 30)


async def test_forged_tokens_do_not_delay_valid_ones(slow: tuple[SlowIssuer, str]) -> None:
    issuer, address = slow
    clock = Clock()
    tokens = Tokens(address, CLAIMS, clock=clock)
    issuer.go.set()
    assert (await tokens.caller(token())).name == "ada"
    issuer.go.clear()
    clock.now += 31
    forged = [asyncio.create_task(tokens.caller(token(OTHER, f"forged-{n}"))) for n in range(30)]
    await asked(issuer, 2)
    assert (await tokens.caller(token())).name == "ada"
    assert not any(one.done() for one in forged), (
        "the valid token is first, while the server has not answered"
    )
    issuer.go.set()
    ends = await asyncio.gather(*forged, return_exceptions=True)
    assert [type(end) for end in ends] == [Unauthenticated] * 30
    issuer.go.clear()
    with pytest.raises(Unauthenticated, match="no key 'forged'"):  # at once: the server would not answer
        await tokens.caller(token(OTHER, "forged"))
    assert issuer.asked == 2


async def test_keys_are_fetched_again_in_the_background(slow: tuple[SlowIssuer, str]) -> None:
    issuer, address = slow
    clock = Clock()
    tokens = Tokens(address, CLAIMS, clock=clock)
    issuer.go.set()
    await tokens.caller(token())
    issuer.go.clear()
    issuer.keys = jwks(two=OTHER)
    clock.now += 301
    assert (await tokens.caller(token())).name == "ada"
    await asked(issuer, 2)
    assert (await tokens.caller(token())).name == "ada", "until the new keys are there"
    waiting = asyncio.create_task(tokens.caller(token(OTHER, "two")))
    issuer.go.set()
    assert (await waiting).name == "ada"
    with pytest.raises(Unauthenticated, match="no key 'one'"):
        await tokens.caller(token())
    assert issuer.asked == 2


async def test_keys_that_nobody_can_fetch_again_end(slow: tuple[SlowIssuer, str]) -> None:
    issuer, address = slow
    clock = Clock()
    tokens = Tokens(address, CLAIMS, clock=clock)
    issuer.go.set()
    await tokens.caller(token())
    issuer.keys = "{}"
    clock.now += 599
    assert (await tokens.caller(token())).name == "ada"
    clock.now += 1
    with pytest.raises(Unavailable):
        await tokens.caller(token())


def test_an_address_that_does_not_answer_is_a_passing_failure() -> None:
    with pytest.raises(Unavailable, match="cannot be fetched"):
        asyncio.run(Tokens("http://127.0.0.1:9/jwks", CLAIMS).caller(token()))


@pytest.mark.parametrize(
    "source",
    ["http://issuer.example/jwks", "ftp://issuer.example/jwks", "http://127.0.0.1.issuer.example/jwks"],
)
def test_keys_that_anyone_between_could_change_are_refused(source: str) -> None:
    with pytest.raises(TokensError, match="https"):
        Tokens(source, CLAIMS)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"keys": [{"kty": "none"}]}'])
def test_a_file_without_keys_is_reported(tmp_path: Path, content: str) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(content)
    with pytest.raises(TokensError, match=r"jwks\.json"):
        Tokens(str(path), CLAIMS)
