"""What metrics tell of certificates that end, and of files that changed and are not in force."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterable
from functools import lru_cache
from typing import Generic, Literal, Protocol, TypeVar

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from meshkit.file_watch import Watched
from meshkit.security.certificates import Certificates, Material

T = TypeVar("T")
Role = Literal["server", "client", "triton"]
"""To whom a certificate is shown: callers, services of the mesh, or a Triton server."""
File = Literal["certificate", "api_keys", "limits", "jwks", "token", "models"]
"""What is read again."""

_log = logging.getLogger("ragmesh.meshkit.freshness")


class Holder(Protocol):
    """Who uses certificates."""

    @property
    def material(self) -> Material | None:
        """What is used for the next handshake; None while there is none."""


class Freshness:
    """Tells of what a service holds that has an end, or is read again; nothing where telemetry is disabled.

    ``ragmesh.certificate.expires.timestamp`` by ``role``, ``ragmesh.reload.stale`` and
    ``ragmesh.reload.failures`` by ``file``. Files are looked at when metrics are read, by a thread of theirs:
    a service that nobody calls would not find out. What is no longer used by anybody is no longer told of.

    Args:
        meter: makes the metrics.
        enabled: whether anybody reads them.
    """

    def __init__(self, meter: Meter, *, enabled: bool) -> None:
        self._enabled = enabled
        self._watched: _Labelled[Watched] = _Labelled()
        self._holders: _Labelled[Holder] = _Labelled()
        if enabled:
            meter.create_observable_gauge(
                "ragmesh.certificate.expires.timestamp",
                [self._expiries],
                "s",
                "End of the certificate that the next handshake uses, since 1970.",
            )
            meter.create_observable_gauge(
                "ragmesh.reload.stale",
                [self._stale],
                description="1 where a file holds what cannot be used, so that what was before is in force.",
            )
            meter.create_observable_counter(
                "ragmesh.reload.failures",
                [self._failures],
                "{failure}",
                "Changes of a file to what cannot be used.",
            )

    def watch(self, file: File, source: Watched) -> None:
        """Tells whether ``source`` is in force as it is now; of several that are one file, the worst.

        It is not kept alive.
        """
        if self._enabled:
            self._watched.add(file, source)

    def certificates(self, role: Role, certificates: Certificates) -> None:
        """Tells of certificates that are read again: when they end, and as the file ``certificate``."""
        self.watch("certificate", certificates)
        self.holder(role, certificates)

    def holder(self, role: Role, holder: Holder) -> None:
        """Tells when what ``holder`` uses ends; it is not kept alive."""
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
                # Of a chain each one is needed.
                ends[role] = min(chain[0], ends.get(role, chain[0]))
            if authorities:
                # Of authorities one is enough, as when they change; the last leaves nobody to trust.
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
            # Not their sum: channels of a process look at the same files, each for itself.
            found[file] = max(source.failures, found.get(file, 0))
        return [Observation(failures, {"file": file}) for file, failures in found.items()]


class _Labelled(Generic[T]):
    """Things under labels, for as long as somebody else has them."""

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
    """When the certificates of a file end, in that order. Seconds since 1970; nothing without any."""
    if pem is None:
        return ()
    try:
        from cryptography import x509
    except ModuleNotFoundError:
        _log.warning("when certificates end is not told: pip install 'ragmesh[telemetry]'")
        return ()
    try:
        found = x509.load_pem_x509_certificates(pem)
        return tuple(sorted(one.not_valid_after_utc.timestamp() for one in found))
    except (ValueError, x509.InvalidVersion) as error:
        # OpenSSL has taken it, and speaks with it: it is used all the same.
        _log.warning("when a certificate ends cannot be read: %s", error)
        return ()
