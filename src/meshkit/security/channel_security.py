"""How a process speaks to services: over TLS or not, and with which credential."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from meshkit.security.certificates import CertificateError, Certificates
from meshkit.security.outgoing import Credential

SYSTEM: Final = "system"
"""Value of RAGMESH_TLS_CA that stands for the authorities this machine trusts."""


class ChannelSecurityError(Exception):
    """Variables that no channel can be made with; names them and says why."""


@dataclass(frozen=True, slots=True)
class ChannelSecurity:
    """What channels are made with.

    Attributes:
        certificates: whom to trust, and what to show if there is a certificate; None for no TLS.
        credential: API key or token that goes with every call.
    """

    certificates: Certificates | None = None
    credential: Credential = field(default_factory=Credential)

    @classmethod
    def find(cls, environment: Mapping[str, str] | None = None) -> Self:
        """What the environment says.

        ``RAGMESH_TLS_CA``: PEM file of the authorities to trust, or ``system``; without it, no TLS.
        ``RAGMESH_TLS_CERT`` and ``RAGMESH_TLS_KEY``: what to show to services that ask for a certificate.
        ``RAGMESH_API_KEY``, or ``RAGMESH_TOKEN_FILE``, which is read at every call.

        Raises:
            ChannelSecurityError: a file cannot be used, or both credentials are given.
        """
        given = os.environ if environment is None else environment
        names = ("TLS_CA", "TLS_CERT", "TLS_KEY", "API_KEY", "TOKEN_FILE")
        authorities, chain, key, api_key, token_file = (given.get(f"RAGMESH_{name}", "") for name in names)
        if api_key and token_file:
            raise ChannelSecurityError("RAGMESH_API_KEY and RAGMESH_TOKEN_FILE: set one of them")
        certificates = None
        if authorities:
            try:
                certificates = Certificates(
                    Path(chain) if chain else None,
                    Path(key) if key else None,
                    None if authorities == SYSTEM else Path(authorities),
                )
            except CertificateError as error:
                raise ChannelSecurityError(f"RAGMESH_TLS_CA, _CERT, _KEY: {error}") from None
        return cls(certificates, Credential(api_key, Path(token_file) if token_file else None))
