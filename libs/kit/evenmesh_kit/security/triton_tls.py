"""TLS to a Triton server: settings and credentials of a service that calls one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc
from pydantic import Field, PrivateAttr, ValidationInfo, field_validator

from evenmesh.wire.certificates import CertificateError, Certificates, Material, channel_credentials
from evenmesh_kit.settings import ServiceSettings, SettingsError, variable


@dataclass
class TritonCertificates:
    """The certificates used with a Triton server, from the first call on.

    A :class:`evenmesh_kit.telemetry.reload_monitor.CertificateHolder`.
    """

    material: Material | None = None


class TritonTls(ServiceSettings):
    """Settings of a service that calls a Triton server. Files are read at the start."""

    triton_ssl: bool = False
    """Whether to speak TLS with the Triton server."""
    triton_root_certificates: Path | None = None
    """PEM file of the authorities trusted for the Triton server; default: those that this machine trusts."""
    triton_certificate_chain: Path | None = None
    """PEM file of the certificate for a Triton server that asks for one."""
    triton_private_key: Path | None = Field(default=None, validate_default=True)
    """PEM file of its key."""

    _presented: TritonCertificates = PrivateAttr(default_factory=TritonCertificates)

    @property
    def triton_certificates(self) -> TritonCertificates:
        """Return the certificates behind :meth:`triton_credentials`."""
        return self._presented

    @field_validator("triton_private_key")
    @classmethod
    def _complete(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        given = info.data
        if (value is None) != (given.get("triton_certificate_chain") is None):
            named = variable(cls, "triton_certificate_chain")
            raise ValueError(
                f"a key needs its certificate ({named}), and a certificate its key: set both or none"
            )
        if not given.get("triton_ssl") and (value or given.get("triton_root_certificates")):
            raise ValueError(f"certificates without {variable(cls, 'triton_ssl')}=true would not be used")
        return value

    def triton_credentials(self) -> grpc.ChannelCredentials | None:
        """Return the credentials of a channel to the Triton server; None for plain text.

        Raises:
            SettingsError: files cannot be used; names the settings.
        """
        if not self.triton_ssl:
            return None
        fields = "triton_certificate_chain", "triton_private_key", "triton_root_certificates"
        chain, key, authorities = (getattr(self, field) for field in fields)
        try:
            material = self._presented.material = Certificates(chain, key, authorities).material
        except CertificateError as error:
            named = ", ".join(variable(self, field) for field in fields if getattr(self, field))
            raise SettingsError(f"{named}: {error}") from None
        return channel_credentials(material)
