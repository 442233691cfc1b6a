"""Report on certificates that expire, and on changed files that are not in use."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterable
from functools import lru_cache
from typing import Generic, Literal, Protocol, TypeVar

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from evenmesh.wire.certificates import Certificates, Material
from evenmesh.wire.file_watch import Watched

T = TypeVar("T")
Role = Literal["server", "client", "triton"]
"""Use of a certificate: with callers, with services of the mesh, or with a Triton server."""
File = Literal["certificate", "api_keys", "limits", "jwks", "token", "models", "otlp_headers"]
"""A reloaded source."""

_log = logging.getLogger("evenmesh.kit.reload_monitor")


class CertificateHolder(Protocol):
    """A user of certificates."""

    @property
    def material(self) -> Material | None:
        """Return what the next handshake uses; None if there is none yet."""


class ReloadMonitor:
    """Reports on the certificates and reloaded files of a service; does nothing if telemetry is disabled.

    ``evenmesh.certificate.expires.timestamp`` by ``role``, ``evenmesh.reload.stale`` and
    ``evenmesh.reload.failures`` by ``file``. A reader of metrics checks the files in its own thread, as an
    idle service would not. The monitor holds weak references: it stops to report on unused material.

    Args:
        meter: makes the metrics.
        enabled: whether anybody reads them.
    """

    def __init__(self, meter: Meter, *, enabled: bool) -> None:
        self._enabled = enabled
        self._watched: _WeakReferences[Watched] = _WeakReferences()
        self._holders: _WeakReferences[CertificateHolder] = _WeakReferences()
        if enabled:
            meter.create_observable_gauge(
                "evenmesh.certificate.expires.timestamp",
                [self._expiries],
                "s",
                "Expiry of the certificate that the next handshake uses, since 1970.",
            )
            meter.create_observable_gauge(
                "evenmesh.reload.stale",
                [self._stale],
                description="1 if a file is unusable, so that earlier content is in use.",
            )
            meter.create_observable_counter(
                "evenmesh.reload.failures",
                [self._failures],
                "{failure}",
                "Times that a file became unusable.",
            )

    def watch(self, file: File, source: Watched) -> None:
        """Report whether the current content of ``source`` is in use; of several of one file, the worst."""
        if self._enabled:
            self._watched.add(file, source)

    def watch_certificates(self, role: Role, certificates: Certificates) -> None:
        """Report on reloaded certificates: their expiry, and as the file ``certificate``."""
        self.watch("certificate", certificates)
        self.watch_expiry(role, certificates)

    def watch_expiry(self, role: Role, holder: CertificateHolder) -> None:
        """Report when the certificates of ``holder`` expire."""
        if self._enabled:
            self._holders.add(role, holder)

    def _expiries(self, _: CallbackOptions) -> Iterable[Observation]:
        ends: dict[str, float] = {}
        for role, holder in self._holders.alive():
            material = holder.material
            if material is None:
                continue
            chain, authorities = _ends(material.chain), _ends(material.authorities)
            if chain:
                # A chain needs all of its certificates.
                ends[role] = min(chain[0], ends.get(role, chain[0]))
            if authorities:
                # One valid authority is enough, as during a change of authorities.
                ends["authority"] = min(authorities[-1], ends.get("authority", authorities[-1]))
        return [Observation(end, {"role": role}) for role, end in ends.items()]

    def _stale(self, _: CallbackOptions) -> Iterable[Observation]:
        found: dict[str, bool] = {}
        for file, source in self._watched.alive():
            found[file] = source.stale() or found.get(file, False)
        return [Observation(int(stale), {"file": file}) for file, stale in found.items()]

    def _failures(self, _: CallbackOptions) -> Iterable[Observation]:
        found: dict[str, int] = {}
        for file, source in self._watched.alive():
            # Not the sum: several channels of a process check the same files.
            found[file] = max(source.failures, found.get(file, 0))
        return [Observation(failures, {"file": file}) for file, failures in found.items()]


class _WeakReferences(Generic[T]):
    """Labelled weak references."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._references: list[tuple[str, weakref.ref[T]]] = []

    def add(self, label: str, thing: T) -> None:
        with self._lock:
            self._references.append((label, weakref.ref(thing)))

    def alive(self) -> list[tuple[str, T]]:
        with self._lock:
            self._references = [one for one in self._references if one[1]() is not None]
            found = [(label, reference()) for label, reference in self._references]
        return [(label, thing) for label, thing in found if thing is not None]


@lru_cache(maxsize=64)
def _ends(pem: bytes | None) -> tuple[float, ...]:
    """Return when the certificates of a file expire, ascending; empty without any. Seconds since 1970."""
    if pem is None:
        return ()
    try:
        from cryptography import x509
    except ModuleNotFoundError:
        _log.warning(
            "the expiry of certificates is not reported: in a checkout, pip install './libs/kit[telemetry]'"
        )
        return ()
    try:
        found = x509.load_pem_x509_certificates(pem)
        return tuple(sorted(one.not_valid_after_utc.timestamp() for one in found))
    except (ValueError, x509.InvalidVersion) as error:
        # OpenSSL accepted the certificate, so it is in use all the same.
        _log.warning("the expiry of a certificate cannot be read: %s", error)
        return ()
