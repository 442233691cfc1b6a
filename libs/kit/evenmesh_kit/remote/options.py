"""What a client of model servers needs to know, checked before the first call."""

from __future__ import annotations

import ipaddress
import math
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

MOST_URLS: Final = 64
"""Most base URLs of one client."""
MOST_URL_CHARACTERS: Final = 2048
"""Longest base URL. Characters."""


class RemoteOptionError(ValueError):
    """Raised for an option that cannot be used; the message is one line.

    Attributes:
        option: name of the option, a field of :class:`RemoteOptions`.
    """

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


_SCHEMES: Final = ("http", "https", "grpc", "grpcs")
_WITH_TLS: Final = ("https", "grpcs")


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Where the servers are, and how they are called.

    Attributes:
        urls: base URLs of servers that answer alike; a path such as ``/models`` is appended.
        api_key_file: file of the key that is sent as ``Authorization: Bearer``; None sends none.
        ca_file: PEM file of the trusted authorities; None: those that this machine trusts.
        certificate_file: PEM file of the certificate for servers that ask for one; None presents none.
        key_file: PEM file of its key.
        proxies: whether HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY apply.
        in_flight: most requests at the servers at a time; more wait within their deadlines. [1, 65536].
        tenant_share: largest part of ``in_flight`` that one authenticated tenant may hold, (0, 1].
        connect_s: longest time to connect. Seconds, (0, 3600].
        idle_s: longest silence of a server that is computing. Seconds, (0, 86400].
        rest_s: time that a failed endpoint is left alone while another one is there. Seconds, [0, 3600].
        keep_alive_s: time that an unused connection stays open; below the servers' own, so that they do not
            close it under a request. Seconds, [0, 3600].
        reply_bytes: largest reply, all events of a stream together. Bytes, [1024, 2^31 - 1].
        key_setting: name of the setting of ``api_key_file``, for errors.
        urls_setting: name of the setting of ``urls``, for errors.
    """

    urls: tuple[str, ...]
    api_key_file: Path | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    proxies: bool = True
    in_flight: int = 64
    tenant_share: float = 1.0
    connect_s: float = 5.0
    idle_s: float = 60.0
    rest_s: float = 5.0
    keep_alive_s: float = 2.0
    reply_bytes: int = 16 * 2**20
    key_setting: str = "the API key"
    urls_setting: str = "the base URL"

    def __post_init__(self) -> None:
        if not 1 <= len(self.urls) <= MOST_URLS:
            raise RemoteOptionError("urls", f"must be 1 to {MOST_URLS} base URLs, has {len(self.urls)}")
        for url in self.urls:
            check_url(url)
        if len(set(self.urls)) < len(self.urls):
            raise RemoteOptionError("urls", "names a base URL twice")
        if (self.certificate_file is None) != (self.key_file is None):
            raise RemoteOptionError("key_file", "a certificate needs its key, and a key its certificate")
        for option, low, high in (
            ("in_flight", 1, 65_536),
            ("tenant_share", 1e-9, 1),
            ("connect_s", 0.001, 3600),
            ("idle_s", 0.001, 86_400),
            ("rest_s", 0, 3600),
            ("keep_alive_s", 0, 3600),
            ("reply_bytes", 1024, 2**31 - 1),
        ):
            value = getattr(self, option)
            if not math.isfinite(value) or not low <= value <= high:
                raise RemoteOptionError(option, f"must be {low} to {high}, is {value}")

    def tls(self) -> ssl.SSLContext:
        """Return what connections with TLS trust and present.

        Raises:
            RemoteOptionError: a file cannot be used.
        """
        try:
            context = ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
        except OSError as error:
            raise RemoteOptionError("ca_file", f"{self.ca_file}: {_reason(error)}") from None
        if self.certificate_file is not None and self.key_file is not None:
            try:
                # An empty password: an encrypted key fails instead of asking the terminal.
                context.load_cert_chain(self.certificate_file, self.key_file, password="")
            except OSError as error:
                files = f"{self.certificate_file}, {self.key_file}"
                raise RemoteOptionError("certificate_file", f"{files}: {_reason(error)}") from None
        return context

    @property
    def sends_key_in_the_clear(self) -> bool:
        """Return whether the key goes to another machine without TLS."""
        return self.api_key_file is not None and any(
            urlsplit(url).scheme not in _WITH_TLS and not _is_loopback(urlsplit(url).hostname or "")
            for url in self.urls
        )


def check_url(url: str) -> None:
    """Raise if ``url`` is no base URL of a server.

    Raises:
        RemoteOptionError: says what is wrong, without what may be a password.
    """
    if len(url) > MOST_URL_CHARACTERS:
        raise RemoteOptionError("urls", f"a base URL has more than {MOST_URL_CHARACTERS} characters")
    try:
        parts = urlsplit(url)
        port_is_one = parts.port is None or parts.port > 0
    except ValueError:
        raise RemoteOptionError("urls", "a base URL cannot be read; http://HOST:PORT/v1 is one") from None
    if "@" in parts.netloc:
        raise RemoteOptionError("urls", "a base URL must not hold a user or password; name a key file")
    if parts.scheme not in _SCHEMES or not parts.hostname or not port_is_one:
        raise RemoteOptionError("urls", f"{url!r} is not a base URL, such as http://HOST:PORT/v1")
    if speaks_grpc(url) and parts.path not in ("", "/"):
        raise RemoteOptionError("urls", f"{url!r} must have no path: grpc://HOST:PORT is one of gRPC")
    if (
        "?" in url
        or "#" in url
        or any(character.isspace() or not character.isprintable() for character in url)
    ):
        raise RemoteOptionError("urls", f"{url!r} must have no query, fragment or blank")


def speaks_grpc(url: str) -> bool:
    """Return whether a base URL is of a server that speaks gRPC."""
    return url.startswith(("grpc://", "grpcs://"))


def server_name(url: str) -> str:
    """Return the ``host:port`` of a base URL."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme in _WITH_TLS else 80)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or "cannot be read"
