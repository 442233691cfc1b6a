"""The door of a service, as its settings have it: TLS or not, and who is let in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshkit.security.authentication import Authentication, Unguarded
from meshkit.security.certificates import CertificateError, Certificates, server_credentials
from meshkit.security.channel_security import SYSTEM
from meshkit.security.keys import ApiKeys, KeysError

if TYPE_CHECKING:
    import grpc

    from meshkit.security.tokens import Tokens
    from meshkit.settings import ServiceSettings


class DoorError(Exception):
    """Files that the settings name cannot be used; a line per problem, with the variable."""


@dataclass(frozen=True, slots=True)
class Door:
    """What stands before a server.

    Attributes:
        credentials: of TLS; None where it speaks plainly.
        authentication: finds out who calls.
    """

    credentials: grpc.ServerCredentials | None
    authentication: Authentication | Unguarded
    described: str
    """Who gets in, in a line: for logs, and for whoever set it up."""

    @classmethod
    def of(cls, settings: ServiceSettings) -> Door:
        """Reads what the settings name.

        Raises:
            DoorError: it cannot be used.
        """
        credentials, authentication = _credentials(settings), _authentication(settings)
        return cls(credentials, authentication, _description(settings))


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


def _credentials(settings: ServiceSettings) -> grpc.ServerCredentials | None:
    if settings.tls_cert is None:
        return None
    authorities = settings.tls_ca if settings.tls_ca is not None and str(settings.tls_ca) != SYSTEM else None
    try:
        certificates = Certificates(settings.tls_cert, settings.tls_key, authorities)
    except CertificateError as error:
        raise DoorError(f"RAGMESH_TLS_CERT, _KEY, _CA: {error}") from None
    return server_credentials(certificates, require_client=settings.tls_clients == "required")


def _authentication(settings: ServiceSettings) -> Authentication | Unguarded:
    keys: ApiKeys | None = None
    tokens: Tokens | None = None
    if settings.api_keys is not None:
        try:
            keys = ApiKeys(settings.api_keys)
        except KeysError as error:
            raise DoorError(f"RAGMESH_API_KEYS: {error}") from None
    if settings.jwks:
        tokens = _tokens(settings)
    services = frozenset(settings.tls_services)
    return Authentication(keys, tokens, services) if keys or tokens or services else Unguarded()


def _tokens(settings: ServiceSettings) -> Tokens:
    try:
        from meshkit.security.tokens import Claims, Tokens, TokensError
    except ModuleNotFoundError:
        raise DoorError("RAGMESH_JWKS: tokens need PyJWT: pip install 'ragmesh[jwt]'") from None
    try:
        return Tokens(settings.jwks, Claims(settings.jwt_audience, settings.jwt_issuer))
    except TokensError as error:
        raise DoorError(f"RAGMESH_JWKS: {error}") from None
