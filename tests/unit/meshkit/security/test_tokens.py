"""Tokens: what a third party signed, and nothing that only looks like it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from meshkit.errors import Unauthenticated, Unavailable
from meshkit.security.caller import Caller, Role
from meshkit.security.tokens import Claims, Tokens, TokensError

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CURVE = ec.generate_private_key(ec.SECP256R1())
CLAIMS = Claims("ragmesh", "https://issuer.example")


def jwks(**keys: Any) -> str:
    """A set of public keys by name."""
    found = []
    for name, key in keys.items():
        algorithm = (
            jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
        )
        found.append(algorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": name, "use": "sig"})
    return json.dumps({"keys": found})


def token(key: Any = KEY, name: str = "one", algorithm: str = "RS256", **claims: Any) -> str:
    """A token that is in order but for what a test changes."""
    content = {
        "sub": "ada",
        "aud": "ragmesh",
        "iss": "https://issuer.example",
        "exp": int(time.time()) + 600,
        "ragmesh_tenant": "acme",
        "ragmesh_roles": ["ask", "feedback"],
    } | claims
    content = {name: value for name, value in content.items() if value is not None}
    return jwt.encode(content, key, algorithm=algorithm, headers={"kid": name})


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
    assert caller(path, token(ragmesh_roles="ask train nonsense")).roles == {Role.ASK, Role.TRAIN}
    assert caller(path, token(ragmesh_tenant=None, ragmesh_roles=None)) == Caller(
        "ada", "default", frozenset()
    )


def test_no_token_makes_a_service_of_its_bearer(path: Path) -> None:
    assert caller(path, token(ragmesh_roles=["service", "ask"])).roles == {Role.ASK}


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
        (lambda: token(ragmesh_tenant="../etc"), "ragmesh_tenant"),
        (lambda: token(ragmesh_roles=5), "ragmesh_roles: must be a list"),
        (lambda: token(ragmesh_roles={"ask": True}), "ragmesh_roles: must be a list"),
        (lambda: token(CURVE, "one", "ES256"), "not valid"),
        (lambda: "not.a.token", "not valid"),
        (lambda: "", "not valid"),
    ],
    ids=[
        *("expired", "early", "audience", "issuer", "no-expiry", "no-subject"),
        *("another-key", "unknown-key", "tenant", "roles-number", "roles-table"),
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
def issuer() -> Iterator[HTTPServer]:
    """A server of keys."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.path[1:].encode() if self.path != "/jwks" else jwks(one=KEY).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_keys_come_from_an_address(issuer: HTTPServer) -> None:
    tokens = Tokens(f"http://127.0.0.1:{issuer.server_port}/jwks", CLAIMS)
    assert asyncio.run(tokens.caller(token())).name == "ada"
    with pytest.raises(Unauthenticated):
        asyncio.run(tokens.caller(token(OTHER, "three")))


@pytest.mark.parametrize("answer", ["", "{", "[]", "{}", '{"keys":[]}'], ids=repr)
def test_an_address_without_keys_is_not_the_tokens_fault(issuer: HTTPServer, answer: str) -> None:
    tokens = Tokens(f"http://127.0.0.1:{issuer.server_port}/{answer}", CLAIMS)
    assert not tokens.keys.stale()
    for failures in (1, 2):
        with pytest.raises(Unavailable, match="cannot be had"):
            asyncio.run(tokens.caller(token()))
        assert (tokens.keys.stale(), tokens.keys.failures) == (True, failures)


def test_an_address_that_has_keys_again_is_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Tokens("http://127.0.0.1:9/jwks", CLAIMS)
    assert isinstance(tokens.keys, jwt.PyJWKClient)
    with pytest.raises(Unavailable):
        asyncio.run(tokens.caller(token()))
    assert tokens.keys.stale()
    now = time.monotonic()
    with monkeypatch.context() as patched:  # five minutes without anybody who would ask it
        patched.setattr("meshkit.security.tokens.time.monotonic", lambda: now + 301)
        assert not tokens.keys.stale()


def test_an_address_that_does_not_answer_is_a_passing_failure() -> None:
    with pytest.raises(Unavailable, match="cannot be had"):
        asyncio.run(Tokens("http://127.0.0.1:9/jwks", CLAIMS).caller(token()))


@pytest.mark.parametrize(
    "source",
    ["http://issuer.example/jwks", "ftp://issuer.example/jwks", "http://127.0.0.1.issuer.example/jwks"],
)
def test_keys_that_anyone_between_could_change_are_refused(source: str) -> None:
    with pytest.raises(TokensError, match="https"):
        Tokens(source, CLAIMS)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"keys": [{"kty": "none"}]}'])
def test_a_file_without_keys_is_told(tmp_path: Path, content: str) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(content)
    with pytest.raises(TokensError, match=r"jwks\.json"):
        Tokens(str(path), CLAIMS)
