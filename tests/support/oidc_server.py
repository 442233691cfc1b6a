"""A small issuer of OpenID Connect: the authorization code flow with PKCE for public clients, and refreshing."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

_FORM = (
    '<!doctype html><title>Issuer</title><form method="post"><label>Name <input name="name"></label>'
    '<button>Let me in</button><button name="deny" value="1">No</button></form>'
)


class OidcServer:
    """A context manager that runs the issuer on a free port of this machine.

    Args:
        client_id: the one client that it knows.
        audience: of its access tokens.

    Attributes:
        redirects: addresses that it sends browsers back to.
        roles: claimed by tokens.
        lifetime_s: of access tokens. Seconds.
        refreshes: whether it gives refresh tokens.
        granted: by which grant each token was given.
    """

    def __init__(self, client_id: str, audience: str) -> None:
        self.client_id, self.audience = client_id, audience
        self.redirects: list[str] = []
        self.roles = ["ask"]
        self.lifetime_s = 3600.0
        self.refreshes = False
        self.granted: list[str] = []
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._codes: dict[str, dict[str, str]] = {}
        self._refresh: dict[str, str] = {}
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner._get(self)

            def do_POST(self) -> None:
                owner._post(self)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _get(self, request: BaseHTTPRequestHandler) -> None:
        match urlsplit(request.path).path:
            case "/.well-known/openid-configuration":
                _send(
                    request,
                    {
                        "issuer": self.url,
                        "authorization_endpoint": f"{self.url}/authorize",
                        "token_endpoint": f"{self.url}/token",
                        "jwks_uri": f"{self.url}/jwks",
                        "response_types_supported": ["code"],
                        "subject_types_supported": ["public"],
                        "id_token_signing_alg_values_supported": ["ES256"],
                        "code_challenge_methods_supported": ["S256"],
                    },
                )
            case "/jwks":
                key = ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
                _send(request, {"keys": [{**key, "kid": "one", "use": "sig", "alg": "ES256"}]})
            case "/authorize" if self._asked(request) is not None:
                _send(request, _FORM)
            case _:
                _send(request, {"error": "invalid_request"}, HTTPStatus.BAD_REQUEST)

    def _post(self, request: BaseHTTPRequestHandler) -> None:
        given = _fields(request.rfile.read(int(request.headers["content-length"])).decode())
        if urlsplit(request.path).path == "/token":
            reply = self._token(given)
            _send(request, reply, HTTPStatus.BAD_REQUEST if "error" in reply else HTTPStatus.OK)
            return
        asked = self._asked(request)
        assert asked is not None
        answer = {"state": asked["state"]}
        if "deny" in given:
            answer["error"] = "access_denied"
        else:
            answer["code"] = secrets.token_urlsafe()
            self._codes[answer["code"]] = {**asked, "name": given["name"]}
        request.send_response(HTTPStatus.FOUND)
        request.send_header("location", f"{asked['redirect_uri']}?{urlencode(answer)}")
        request.send_header("content-length", "0")
        request.end_headers()

    def _asked(self, request: BaseHTTPRequestHandler) -> dict[str, str] | None:
        """Return the parameters of a request to sign in; None if it is not one of the client's with PKCE."""
        asked = _fields(urlsplit(request.path).query)
        wanted = {"client_id": self.client_id, "response_type": "code", "code_challenge_method": "S256"}
        right = all(asked.get(name) == value for name, value in wanted.items())
        known = asked.get("redirect_uri") in self.redirects and "openid" in asked.get("scope", "").split()
        return asked if right and known and {"state", "nonce", "code_challenge"} <= asked.keys() else None

    def _token(self, given: dict[str, str]) -> dict[str, Any]:
        if given.get("client_id") != self.client_id:
            return {"error": "invalid_client"}
        grant = given.get("grant_type", "")
        nonce = None
        if grant == "refresh_token":
            name = self._refresh.pop(given.get("refresh_token", ""), None)
        else:
            asked = self._codes.pop(given.get("code", ""), {})
            digest = hashlib.sha256(given.get("code_verifier", "").encode()).digest()
            proven = base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == asked.get("code_challenge")
            same = given.get("redirect_uri") == asked.get("redirect_uri")
            name, nonce = (asked["name"], asked["nonce"]) if proven and same else (None, None)
        if name is None:
            return {"error": "invalid_grant"}
        self.granted.append(grant)
        now = time.time()
        claims = {"iss": self.url, "sub": name, "iat": now, "exp": now + self.lifetime_s}
        access = {"aud": self.audience, "evenmesh_tenant": "acme", "evenmesh_roles": self.roles}
        reply = {
            "access_token": self._signed(claims | access),
            "token_type": "Bearer",
            "expires_in": self.lifetime_s,
            "id_token": self._signed(claims | {"aud": self.client_id, "nonce": nonce}),
        }
        if self.refreshes:
            reply["refresh_token"] = secrets.token_urlsafe()
            self._refresh[reply["refresh_token"]] = name
        return reply

    def _signed(self, claims: dict[str, Any]) -> str:
        whole = {name: int(value) if name in ("iat", "exp") else value for name, value in claims.items()}
        return jwt.encode(whole, self._key, "ES256", {"kid": "one"})


def _fields(text: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(text).items()}


def _send(
    request: BaseHTTPRequestHandler, body: dict[str, Any] | str, status: HTTPStatus = HTTPStatus.OK
) -> None:
    raw = (body if isinstance(body, str) else json.dumps(body)).encode()
    request.send_response(status)
    request.send_header("content-type", "text/html" if isinstance(body, str) else "application/json")
    request.send_header("content-length", str(len(raw)))
    request.send_header("access-control-allow-origin", "*")
    request.end_headers()
    request.wfile.write(raw)
