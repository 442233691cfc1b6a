"""How a collector of traces and metrics is trusted, and what headers it is sent."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc

from evenmesh.wire.certificates import CertificateError, Certificates, channel_credentials
from evenmesh.wire.file_watch import WatchedFiles
from evenmesh_kit.settings import ServiceSettings, SettingsError, variable

MAX_HEADERS: Final = 32
"""Most headers in a file."""
MAX_BYTES: Final = 16 * 1024
"""Largest file of headers. Bytes."""

_NAME: Final = re.compile(r"[0-9a-z_.-]+")
_VALUE: Final = re.compile(r"[\x20-\x7e]+")

Headers = tuple[tuple[str, str], ...]


class HeadersError(Exception):
    """Raised for a file that does not have headers; says where and why, and nothing of its text."""


class CollectorHeaders(WatchedFiles[Headers]):
    """The headers of a file, such as the key of a vendor; read again when they change.

    Each line is ``name: value``; empty lines and those that begin with ``#`` mean nothing.

    Args:
        path: the file: at most ``MAX_HEADERS`` headers and ``MAX_BYTES``.

    Raises:
        HeadersError: the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        super().__init__([path], lambda: _read(path), HeadersError)


class _SendHeaders(grpc.AuthMetadataPlugin):
    """Adds the headers to each call, as they are then."""

    def __init__(self, headers: CollectorHeaders) -> None:
        self._headers = headers

    def __call__(
        self,
        context: grpc.AuthMetadataContext,
        callback: Callable[[Headers, Exception | None], None],
    ) -> None:
        callback(self._headers.content(), None)


def collector_headers(settings: ServiceSettings) -> CollectorHeaders | None:
    """Return the headers that settings name; None without any.

    Raises:
        SettingsError: the file cannot be used; names the setting.
    """
    if settings.otlp_headers is None:
        return None
    try:
        return CollectorHeaders(settings.otlp_headers)
    except HeadersError as error:
        raise SettingsError(f"{variable(settings, 'otlp_headers')}: {error}") from None


def collector_credentials(
    settings: ServiceSettings, headers: CollectorHeaders | None
) -> grpc.ChannelCredentials | None:
    """Return the credentials of channels to the collector; None for plain text.

    Raises:
        SettingsError: the authorities cannot be read; names the setting.
    """
    if settings.otlp_endpoint is None or not settings.otlp_endpoint.startswith("https://"):
        return None
    try:
        tls = channel_credentials(Certificates(None, None, settings.otlp_ca).material)
    except CertificateError as error:
        raise SettingsError(f"{variable(settings, 'otlp_ca')}: {error}") from None
    if headers is None:
        return tls
    return grpc.composite_channel_credentials(tls, grpc.metadata_call_credentials(_SendHeaders(headers)))


def _read(path: Path) -> Headers:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise HeadersError(f"{path}: {error.strerror or error}") from None
    if len(text) > MAX_BYTES:
        raise HeadersError(f"{path}: has more than {MAX_BYTES} bytes")
    found: list[tuple[str, str]] = []
    for number, line in enumerate(text.decode("utf-8", errors="replace").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, value = line.partition(":")
        name, value = name.strip().lower(), value.strip()
        if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise HeadersError(f"{path}, line {number}: must be `name: value`, in printable ASCII")
        if name.startswith("grpc-") or name.endswith("-bin"):
            raise HeadersError(f"{path}, line {number}: gRPC keeps names such as grpc-… and …-bin to itself")
        found.append((name, value))
    if not 1 <= len(found) <= MAX_HEADERS:
        raise HeadersError(f"{path}: must have between 1 and {MAX_HEADERS} headers")
    return tuple(found)
