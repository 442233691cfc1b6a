"""Settings of a service that calls model servers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import NoDecode

from evenmesh_kit.remote.options import RemoteOptionError, RemoteOptions, check_url, speaks_grpc
from evenmesh_kit.settings import ServiceSettings, SettingsError, variable
from evenmesh_kit.telemetry.spans import Spans

if TYPE_CHECKING:
    from evenmesh_kit.remote.client import RemoteClient


class RemoteSettings(ServiceSettings):
    """Settings of a service that calls model servers of other projects over HTTP, or TEI over gRPC."""

    remote_urls: Annotated[tuple[str, ...], NoDecode] = ()
    """Base URLs of the model servers, separated by commas, such as ``http://127.0.0.1:8000/v1``, or
    ``grpc://127.0.0.1:8080`` (``grpcs://`` with TLS) of a TEI that speaks gRPC; several must answer alike."""
    remote_api_key: Path | None = None
    """File of the key that the model servers ask for, read again when it changes."""
    remote_ca: Path | None = None
    """PEM file of the authorities trusted for https addresses; default: those that this machine trusts."""
    remote_certificate: Path | None = None
    """PEM file of the certificate for model servers that ask for one."""
    remote_certificate_key: Path | None = Field(default=None, validate_default=True)
    """PEM file of its key."""
    remote_proxies: bool = True
    """Whether HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY apply to model servers."""
    remote_in_flight: int = Field(default=64, ge=1, le=65_536)
    """Most requests at the model servers at a time; more wait within their deadlines, tenants in turns.
    [1, 65536]."""
    remote_connect_s: float = Field(default=5.0, ge=0.001, le=3600)
    """Longest time to connect to a model server. Seconds, [0.001, 3600]."""
    remote_idle_s: float = Field(default=60.0, ge=0.001, le=86_400)
    """Longest silence of a model server that is computing, the time in its queue included. Seconds,
    [0.001, 86400]."""
    remote_rest_s: float = Field(default=5.0, ge=0, le=3600)
    """Time that a failed model server is left alone while another one is there. Seconds, [0, 3600]."""
    remote_keep_alive_s: float = Field(default=2.0, ge=0, le=3600)
    """Time that an unused connection to a model server stays open; keep it below the server's own, so that it
    does not close one under a request. Seconds, [0, 3600]."""
    remote_reply_bytes: int = Field(default=16 * 2**20, ge=1024, le=2**31 - 1)
    """Largest reply of a model server. Bytes, [1024, 2^31 - 1]."""

    @field_validator("remote_urls", mode="before")
    @classmethod
    def _separated(cls, value: Any) -> Any:
        return [one.strip() for one in value.split(",") if one.strip()] if isinstance(value, str) else value

    @field_validator("remote_urls")
    @classmethod
    def _base_urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            check_url(url)
        return value

    @field_validator("remote_certificate_key")
    @classmethod
    def _both_or_none(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if (value is None) != (info.data.get("remote_certificate") is None):
            named = variable(cls, "remote_certificate")
            raise ValueError(
                f"a key needs its certificate ({named}), and a certificate its key: set both or none"
            )
        return value

    def remote_client(
        self, urls: tuple[str, ...] = (), spans: Spans | None = None, *, tei: bool = False
    ) -> RemoteClient:
        """Return a client of the model servers; call it on the event loop.

        Args:
            urls: base URLs; empty: those of the settings.
            spans: makes a span of each request; None makes none.
            tei: whether they are TEI's, which may speak gRPC.

        Raises:
            SettingsError: there is no base URL, or a file cannot be used; names the setting.
        """
        if not urls and not self.remote_urls:
            raise SettingsError(
                f"{variable(self, 'remote_urls')}: must name a model server, such as http://127.0.0.1:8000/v1"
            )
        # Where there is no model server, nobody waits for a client of HTTP to be imported.
        from evenmesh_kit.remote.client import RemoteClient
        from evenmesh_kit.remote.tei_grpc import TeiGrpcClient

        chosen = urls or self.remote_urls
        kind = TeiGrpcClient if tei and any(map(speaks_grpc, chosen)) else RemoteClient
        try:
            return kind(
                RemoteOptions(
                    urls=chosen,
                    api_key_file=self.remote_api_key,
                    ca_file=self.remote_ca,
                    certificate_file=self.remote_certificate,
                    key_file=self.remote_certificate_key,
                    proxies=self.remote_proxies,
                    in_flight=self.remote_in_flight,
                    tenant_share=self.tenant_share,
                    connect_s=self.remote_connect_s,
                    idle_s=self.remote_idle_s,
                    rest_s=self.remote_rest_s,
                    keep_alive_s=self.remote_keep_alive_s,
                    reply_bytes=self.remote_reply_bytes,
                    key_setting=variable(self, "remote_api_key"),
                    urls_setting=variable(self, "remote_urls"),
                ),
                spans,
            )
        except RemoteOptionError as error:
            field = _FIELDS.get(error.option, f"remote_{error.option}")
            raise SettingsError(f"{variable(self, field)}: {error}") from None


_FIELDS = {
    "api_key_file": "remote_api_key",
    "ca_file": "remote_ca",
    "certificate_file": "remote_certificate",
    "key_file": "remote_certificate_key",
}
"""Fields of the settings by the options that they set, where the names differ."""
