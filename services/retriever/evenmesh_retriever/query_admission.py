"""Admit queries by the work that they ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NoReturn

import grpc

from evenmesh.wire.errors import MeshError
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.admission.shares import TenantShares

_REQUEST: Final = 20
_READ: Final = 18
_TENANT: Final = 2


class QueryAdmission:
    """Bounds the work of one query, of one tenant and of all, in the unit of :mod:`evenmesh_retriever.cost`.

    A query may ask for a twentieth of the capacity, and a tenant may have half of it in flight and waiting.
    At the default capacity a query takes less than five seconds of one processor so.

    Args:
        capacity: most work in flight, [1, inf).
        queue_s: longest wait for work that does not fit. Seconds, [0, inf).
        setting: name of the setting that the capacity comes from, for errors.
    """

    def __init__(self, capacity: int, *, queue_s: float = 0.0, setting: str) -> None:
        self.admission = Admission(capacity, "tokens", queue_s=queue_s)
        self.most = max(1, capacity // _REQUEST)
        """Most work of one query."""
        self._most_read = max(self.most, capacity // _READ)
        self._shares = TenantShares(max(1, capacity // _TENANT), "tokens of work", setting)
        self._setting = setting

    def check(self, work: int, field: str, advice: str) -> None:
        """Refuse a query that asks for too much, before anything of it is done.

        Args:
            work: what it asks for.
            field: the field to change.
            advice: what would fit.

        Raises:
            MeshError: RESOURCE_EXHAUSTED; trying again does not help.
        """
        if work > self.most:
            self._refuse(
                f"asks for about {work} tokens of work, and a query may ask for {self.most}", field, advice
            )

    def check_read(self, tokens: int, field: str, advice: str) -> None:
        """Refuse a query whose texts turn out to have more tokens than estimated, before they are encoded.

        Args:
            tokens: what the encoder would have read.
            field: the field to change.
            advice: what would fit.

        Raises:
            MeshError: RESOURCE_EXHAUSTED; trying again does not help.
        """
        if tokens > self._most_read:
            self._refuse(
                f"has {tokens} tokens to encode, and a query may have {self._most_read}", field, advice
            )

    @asynccontextmanager
    async def admit(self, work: int) -> AsyncIterator[None]:
        """Hold ``work`` while the block runs.

        Raises:
            Overloaded: too much work of the tenant, or of all, is in flight.
        """
        with self._shares.hold(work):
            async with self.admission.admit(work):
                yield

    def _refuse(self, what: str, field: str, advice: str) -> NoReturn:
        raise MeshError(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "REQUEST_TOO_LARGE",
            f"{what}: {advice}, or raise {self._setting}",
            field=field,
        )
