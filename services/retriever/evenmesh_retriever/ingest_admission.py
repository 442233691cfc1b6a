"""Bound unfinished ingests: their number and memory by tenant, and the memory of all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import grpc

from evenmesh.wire.errors import MeshError
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.admission.shares import TenantShares
from evenmesh_kit.settings import variable
from evenmesh_retriever.settings import RetrieverSettings


class IngestAdmission:
    """Counts what unfinished ingests hold in memory, decoded.

    Nothing waits: streams that already hold memory could wait for each other for ever.

    Args:
        settings: the bounds.
    """

    def __init__(self, settings: RetrieverSettings) -> None:
        self.admission = Admission(settings.max_ingest_bytes, "bytes")
        field = min(("max_tenant_ingest_bytes", "max_ingest_bytes"), key=lambda one: getattr(settings, one))
        most: int = getattr(settings, field)
        self._setting = variable(settings, field)
        self._bytes = TenantShares(most, "bytes of unfinished ingests", self._setting)
        self._streams = TenantShares(
            settings.max_tenant_ingests, "ingest streams", variable(settings, "max_tenant_ingests")
        )

    @contextmanager
    def stream(self) -> Iterator[HeldBytes]:
        """Count a stream while the block runs, and what it holds.

        Raises:
            Overloaded: the tenant has as many streams as it may.
        """
        with self._streams.hold(1), self.request() as held:
            yield held

    @contextmanager
    def request(self) -> Iterator[HeldBytes]:
        """Count what a request holds while the block runs."""
        with ExitStack() as held:
            yield HeldBytes(self.admission, self._bytes, self._setting, held)


class HeldBytes:
    """What one stream or request holds.

    Args:
        admission: bounds what all hold.
        shares: bounds what the tenant holds.
        setting: name of the setting of the tenant's bound.
        held: ends with the stream.
    """

    def __init__(self, admission: Admission, shares: TenantShares, setting: str, held: ExitStack) -> None:
        self._admission = admission
        self._shares = shares
        self._setting = setting
        self._held = held
        self._size = 0

    def add(self, size: int) -> None:
        """Hold more. Bytes.

        Raises:
            MeshError: RESOURCE_EXHAUSTED, the stream alone is larger than the tenant's share.
            Overloaded: the tenant, or all, would hold too much now.
        """
        self._size += size
        if self._size > self._shares.most:
            raise MeshError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "REQUEST_TOO_LARGE",
                f"the stream takes more than {self._shares.most} bytes of memory: send it as several "
                f"streams, or raise {self._setting}",
                field="passages",
            )
        self._held.enter_context(self._shares.hold(size))
        self._held.enter_context(self._admission.admit(size))
