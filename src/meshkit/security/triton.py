"""TLS with a Triton server: the settings of a service that calls one, and the credentials they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc
from pydantic import Field, PrivateAttr, ValidationInfo, field_validator

from meshkit.security.certificates import CertificateError, Certificates, Material, channel_credentials
from meshkit.settings import ServiceSettings, SettingsError, variable


@dataclass
class Shown:
    """What a Triton server is shown, from when it is first called; :class:`meshkit.freshness.Holder`."""

    material: Material | None = None


class TritonTls(ServiceSettings):
    """Settings of a service that calls a Triton server. Files are read at the start."""

    triton_ssl: bool = False
    """Whether the Triton server is spoken with over TLS."""
    triton_root_certificates: Path | None = None
    """PEM file of the authorities whose Triton server is trusted; unset: those that this machine trusts."""
    triton_certificate_chain: Path | None = None
    """PEM file of what is shown to a Triton server that asks for a certificate."""
    triton_private_key: Path | None = Field(default=None, validate_default=True)
    """PEM file of its key."""

    _shown: Shown = PrivateAttr(default_factory=Shown)

    @property
    def triton_shown(self) -> Shown:
        """What :meth:`triton_credentials` were made of."""
        return self._shown

    @field_validator("triton_private_key")
    @classmethod
    def _used_as_one(cls, value: Path | None, info: ValidationInfo) -> Path | None:
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
        """Credentials of a channel to the Triton server; None where it is spoken with plainly.

        Raises:
            SettingsError: files cannot be used; names the settings.
        """
        if not self.triton_ssl:
            return None
        fields = "triton_certificate_chain", "triton_private_key", "triton_root_certificates"
        chain, key, authorities = (getattr(self, field) for field in fields)
        try:
            material = self._shown.material = Certificates(chain, key, authorities).material
        except CertificateError as error:
            named = ", ".join(variable(self, field) for field in fields if getattr(self, field))
            raise SettingsError(f"{named}: {error}") from None
        return channel_credentials(material)
