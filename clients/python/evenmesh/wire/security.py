"""Transport security of a process that calls services: TLS and its credential."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from evenmesh.wire.certificates import CertificateError, Certificates
from evenmesh.wire.credentials import Credential

SYSTEM: Final = "system"
"""Value of EVENMESH_TLS_CA for the authorities that this machine trusts."""


class ChannelSecurityError(Exception):
    """Raised for environment variables that no channel can be made with; names them and says why."""


@dataclass(frozen=True, slots=True)
class ChannelSecurity:
    """The security that channels are made with.

    Attributes:
        certificates: trusted authorities, and this side's certificate if it has one; None for no TLS.
        credential: API key or token sent with every call.
    """

    certificates: Certificates | None = None
    credential: Credential = field(default_factory=Credential)

    @classmethod
    def find(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Return the security that the environment asks for.

        ``EVENMESH_TLS_CA``: PEM file of the authorities to trust, or ``system``; without it, no TLS.
        ``EVENMESH_TLS_CERT`` and ``EVENMESH_TLS_KEY``: certificate for services that ask for one.
        ``EVENMESH_API_KEY``, or ``EVENMESH_TOKEN_FILE``, which is read at every call.

        Raises:
            ChannelSecurityError: a file cannot be used, or both credentials are set.
        """
        given = os.environ if environment is None else environment
        names = ("TLS_CA", "TLS_CERT", "TLS_KEY", "API_KEY", "TOKEN_FILE")
        authorities, chain, key, api_key, token_file = (given.get(f"EVENMESH_{name}", "") for name in names)
        if api_key and token_file:
            raise ChannelSecurityError("EVENMESH_API_KEY and EVENMESH_TOKEN_FILE: set one of them")
        certificates = None
        if authorities:
            try:
                certificates = Certificates(
                    Path(chain) if chain else None,
                    Path(key) if key else None,
                    None if authorities == SYSTEM else Path(authorities),
                )
            except CertificateError as error:
                raise ChannelSecurityError(f"EVENMESH_TLS_CA, _CERT, _KEY: {error}") from None
        return cls(certificates, Credential(api_key, Path(token_file) if token_file else None))
