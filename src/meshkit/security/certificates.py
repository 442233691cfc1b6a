"""A certificate with its key and the authorities that are trusted: files, read again when they change."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc

from meshkit.file_watch import WatchedFiles


class CertificateError(Exception):
    """Files that hold no certificate, no key, or not the key of the certificate; says which and why."""


@dataclass(frozen=True, slots=True)
class Material:
    """What the files held when they were read; PEM. Nothing where a file is not named."""

    chain: bytes | None
    key: bytes | None
    authorities: bytes | None


class Certificates:
    """Certificate, key and trusted authorities of a process, as they are in their files now.

    Material that cannot be used, such as a new certificate whose key has not arrived yet, leaves the one
    before in use; the log says so once. It is :class:`meshkit.file_watch.Watched`.

    Args:
        chain: PEM file of the certificate and those between it and an authority; None for none.
        key: PEM file of its key; with ``chain`` or not at all.
        authorities: PEM file of authorities whose certificates are trusted; None for the system's.

    Raises:
        CertificateError: the files cannot be used as they are.
    """

    def __init__(self, chain: Path | None, key: Path | None, authorities: Path | None) -> None:
        if (chain is None) != (key is None):
            raise CertificateError("a certificate needs its key, and a key its certificate: name both files")
        self._chain, self._key, self._authorities = chain, key, authorities
        paths = [path for path in (chain, key, authorities) if path is not None]
        self._files = WatchedFiles(paths, self._read, CertificateError, every_s=0.0)

    @property
    def material(self) -> Material:
        """What is used for the next handshake: looks at the files. The same object until it is another."""
        return self._files.content()

    @property
    def failures(self) -> int:
        """How often the files held what cannot be used."""
        return self._files.failures

    def stale(self) -> bool:
        """Whether the files hold what cannot be used, so that the material before is; looks at them."""
        return self._files.stale()

    def _read(self) -> Material:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if self._chain is not None and self._key is not None:
            _tried(lambda: context.load_cert_chain(self._chain, self._key), self._chain, self._key)  # type: ignore[arg-type]
        if self._authorities is not None:
            _tried(lambda: context.load_verify_locations(self._authorities), self._authorities)
        return Material(_bytes(self._chain), _bytes(self._key), _bytes(self._authorities))


def server_credentials(certificates: Certificates, *, require_client: bool) -> grpc.ServerCredentials:
    """Credentials of a server; each handshake uses the material that there is then.

    Args:
        certificates: with a certificate.
        require_client: whether callers must show a certificate of the trusted authorities (mutual TLS).
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
        # Compared, and not asked for changes: whoever else looks, as metrics do, takes none away.
        given = material
        return configuration(material)

    credentials: grpc.ServerCredentials = grpc.dynamic_ssl_server_credentials(
        configuration(given),
        cast(Any, renewed),  # None is for "as before", whatever its type says
        require_client_authentication=require_client,
    )
    return credentials


def channel_credentials(material: Material) -> grpc.ChannelCredentials:
    """Credentials of a caller, who shows a certificate if there is one."""
    return grpc.ssl_channel_credentials(material.authorities, material.key, material.chain)


def _tried(read: Callable[[], object], *paths: Path) -> None:
    names = " and ".join(map(str, paths))
    try:
        read()
    except ssl.SSLError as error:
        why = error.reason or str(error)
        raise CertificateError(
            f"{names}: not a PEM certificate and its key, or not of each other ({why})"
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
