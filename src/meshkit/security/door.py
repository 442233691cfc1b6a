"""The door of a service, as its settings have it: TLS or not, and who is let in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshkit.security.authentication import Authentication, Unguarded
from meshkit.security.certificates import CertificateError, Certificates, server_credentials
from meshkit.security.channel_security import SYSTEM
from meshkit.security.keys import ApiKeys, KeysError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import grpc

    from meshkit.file_watch import Watched
    from meshkit.freshness import File
    from meshkit.security.tokens import Tokens
    from meshkit.settings import ServiceSettings


class DoorError(Exception):
    """Files that the settings name cannot be used; a line per problem, with the variable."""


@dataclass(frozen=True, slots=True)
class Door:
    """What stands before a server.

    Attributes:
        certificates: what TLS is spoken with; None where it speaks plainly.
        credentials: the same for gRPC.
        authentication: finds out who calls.
        watched: what callers are held against and is read again, by the name that metrics have for it.
    """

    certificates: Certificates | None
    credentials: grpc.ServerCredentials | None
    authentication: Authentication | Unguarded
    watched: Mapping[File, Watched]
    described: str
    """Who gets in, in a line: for logs, and for whoever set it up."""

    @classmethod
    def of(cls, settings: ServiceSettings) -> Door:
        """Reads what the settings name.

        Raises:
            DoorError: it cannot be used.
        """
        certificates = _certificates(settings)
        credentials = None
        if certificates is not None:
            required = settings.tls_clients == "required"
            credentials = server_credentials(certificates, require_client=required)
        keys, tokens = _keys(settings), _tokens(settings) if settings.jwks else None
        services = frozenset(settings.tls_services)
        asks = keys is not None or tokens is not None or services
        watched: dict[File, Watched] = {}
        if keys is not None:
            watched["api_keys"] = keys.file
        if tokens is not None:
            watched["jwks"] = tokens.keys
        return cls(
            certificates,
            credentials,
            Authentication(keys, tokens, services) if asks else Unguarded(),
            watched,
            _description(settings),
        )


def _description(settings: ServiceSettings) -> str:
    by = [
        name
        for name, given in (
            ("API keys", settings.api_keys),
            ("tokens", settings.jwks),
            ("certificates of services", settings.tls_services),
        )
        if given
    ]
    if settings.tls_cert is None:
        lines = "plain text"
    elif settings.tls_clients == "required":
        lines = "TLS, both sides show certificates"
    else:
        lines = "TLS"
    return f"{lines}; {'asks for ' + ', '.join(by) if by else 'asks nobody: open to all who reach it'}"


def _certificates(settings: ServiceSettings) -> Certificates | None:
    if settings.tls_cert is None:
        return None
    authorities = settings.tls_ca if settings.tls_ca is not None and str(settings.tls_ca) != SYSTEM else None
    try:
        return Certificates(settings.tls_cert, settings.tls_key, authorities)
    except CertificateError as error:
        raise DoorError(f"RAGMESH_TLS_CERT, _KEY, _CA: {error}") from None


def _keys(settings: ServiceSettings) -> ApiKeys | None:
    if settings.api_keys is None:
        return None
    try:
        return ApiKeys(settings.api_keys)
    except KeysError as error:
        raise DoorError(f"RAGMESH_API_KEYS: {error}") from None


def _tokens(settings: ServiceSettings) -> Tokens:
    try:
        from meshkit.security.tokens import Claims, Tokens, TokensError
    except ModuleNotFoundError:
        raise DoorError("RAGMESH_JWKS: tokens need PyJWT: pip install 'ragmesh[jwt]'") from None
    try:
        return Tokens(settings.jwks, Claims(settings.jwt_audience, settings.jwt_issuer))
    except TokensError as error:
        raise DoorError(f"RAGMESH_JWKS: {error}") from None
