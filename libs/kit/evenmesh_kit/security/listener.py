"""Transport security and authentication of a service, from its settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from evenmesh.wire.certificates import CertificateError, Certificates, server_credentials
from evenmesh.wire.security import SYSTEM
from evenmesh_kit.security.authentication import Authentication, NoAuthentication
from evenmesh_kit.security.keys import ApiKeys, KeysError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import grpc

    from evenmesh.wire.file_watch import Watched
    from evenmesh_kit.security.tokens import Tokens
    from evenmesh_kit.settings import ServiceSettings
    from evenmesh_kit.telemetry.reload_monitor import File


class ListenerSecurityError(Exception):
    """Raised for files of the settings that cannot be used; names the variables."""


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """The security of a server's listener.

    Attributes:
        certificates: certificates of TLS; None for plain text.
        credentials: the same for gRPC.
        authentication: interceptor that authenticates callers.
        watched: reloaded sources of authentication, by their name in metrics.
        description: one line on both, for logs and reports.
    """

    certificates: Certificates | None
    credentials: grpc.ServerCredentials | None
    authentication: Authentication | NoAuthentication
    watched: Mapping[File, Watched]
    description: str

    @classmethod
    def of(cls, settings: ServiceSettings) -> ListenerSecurity:
        """Return the security that the settings ask for.

        Raises:
            ListenerSecurityError: a file cannot be used.
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
            Authentication(keys, tokens, services) if asks else NoAuthentication(),
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
        transport = "plain text"
    elif settings.tls_clients == "required":
        transport = "mutual TLS"
    else:
        transport = "TLS"
    return f"{transport}; {'authentication by ' + ', '.join(by) if by else 'no authentication'}"


def _certificates(settings: ServiceSettings) -> Certificates | None:
    if settings.tls_cert is None:
        return None
    authorities = settings.tls_ca if settings.tls_ca is not None and str(settings.tls_ca) != SYSTEM else None
    try:
        return Certificates(settings.tls_cert, settings.tls_key, authorities)
    except CertificateError as error:
        raise ListenerSecurityError(f"EVENMESH_TLS_CERT, _KEY, _CA: {error}") from None


def _keys(settings: ServiceSettings) -> ApiKeys | None:
    if settings.api_keys is None:
        return None
    try:
        return ApiKeys(settings.api_keys, default_tenant=settings.api_keys_default_tenant)
    except KeysError as error:
        raise ListenerSecurityError(f"EVENMESH_API_KEYS: {error}") from None


def _tokens(settings: ServiceSettings) -> Tokens:
    try:
        from evenmesh_kit.security.tokens import Claims, Tokens, TokensError
    except ModuleNotFoundError:
        raise ListenerSecurityError(
            "EVENMESH_JWKS: tokens need PyJWT: in a checkout, pip install './libs/kit[jwt]'"
        ) from None
    try:
        claims = Claims(
            settings.jwt_audience, settings.jwt_issuer, default_tenant=settings.jwt_default_tenant
        )
        return Tokens(settings.jwks, claims)
    except TokensError as error:
        raise ListenerSecurityError(f"EVENMESH_JWKS: {error}") from None
