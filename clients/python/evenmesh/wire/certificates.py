"""A certificate, its key and the trusted authorities: files, read again when they change."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc

from evenmesh.wire.file_watch import WatchedFiles


class CertificateError(Exception):
    """Raised for files without a usable certificate and its key; names the files and says why."""


@dataclass(frozen=True, slots=True)
class Material:
    """The content of the files when they were read, in PEM; None for a file that is not named."""

    chain: bytes | None
    key: bytes | None
    authorities: bytes | None


class Certificates(WatchedFiles[Material]):
    """Certificate, key and trusted authorities of a process, as its files have them now.

    If the files become unusable, as while a new certificate waits for its key, the earlier material stays in
    use and the log says so once.

    Args:
        chain: PEM file of the certificate and its intermediates; None for no certificate.
        key: PEM file of its key; required with ``chain``, not allowed without.
        authorities: PEM file of the trusted authorities; None for the system's.

    Raises:
        CertificateError: the files cannot be used.
    """

    def __init__(self, chain: Path | None, key: Path | None, authorities: Path | None) -> None:
        if (chain is None) != (key is None):
            raise CertificateError("a certificate needs its key, and a key its certificate: name both files")
        self._chain, self._key, self._authorities = chain, key, authorities
        paths = [path for path in (chain, key, authorities) if path is not None]
        super().__init__(paths, self._loaded, CertificateError, every_s=0.0)

    @property
    def material(self) -> Material:
        """Check the files and return what the next handshake uses; the same object until it changes."""
        return self.content()

    def _loaded(self) -> Material:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if self._chain is not None and self._key is not None:
            _try_load(lambda: context.load_cert_chain(self._chain, self._key), self._chain, self._key)  # type: ignore[arg-type]
        if self._authorities is not None:
            _try_load(lambda: context.load_verify_locations(self._authorities), self._authorities)
        return Material(_bytes(self._chain), _bytes(self._key), _bytes(self._authorities))


def server_credentials(certificates: Certificates, *, require_client: bool) -> grpc.ServerCredentials:
    """Return a server's credentials; each handshake uses the material current at that time.

    Args:
        certificates: material with a certificate.
        require_client: whether callers must present a certificate of the trusted authorities (mutual TLS).
    """

    given = certificates.material

    def configuration(material: Material) -> grpc.ServerCertificateConfiguration:
        if material.key is None or material.chain is None:
            raise CertificateError("a server needs a certificate and its key")
        return grpc.ssl_server_certificate_configuration(
            [(material.key, material.chain)],
            root_certificates=material.authorities if require_client else None,
        )

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal given
        material = certificates.material
        if material is given:
            return None
        given = material
        return configuration(material)

    credentials: grpc.ServerCredentials = grpc.dynamic_ssl_server_credentials(
        configuration(given),
        cast(Any, renewed),  # gRPC takes None for "unchanged", unlike its type
        require_client_authentication=require_client,
    )
    return credentials


def channel_credentials(material: Material) -> grpc.ChannelCredentials:
    """Return a caller's credentials, which present its certificate if there is one."""
    return grpc.ssl_channel_credentials(material.authorities, material.key, material.chain)


def _try_load(read: Callable[[], object], *paths: Path) -> None:
    names = " and ".join(map(str, paths))
    try:
        read()
    except ssl.SSLError as error:
        why = error.reason or str(error)
        raise CertificateError(
            f"{names}: not a PEM certificate and its key, or they do not belong together ({why})"
        ) from None
    except OSError as error:
        raise CertificateError(f"{names}: {error.strerror or error}") from None


def _bytes(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(f"{path}: {error.strerror}") from None
