"""Deliver observations to a log, from which the evaluators take them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from evenmesh.evaluator.v1.evaluator_service_pb2 import Observation, ObserveAck, ObserveResponse
from evenmesh.wire.errors import Unavailable
from evenmesh_kit.security import caller as callers
from evenmesh_kit.storage.tenant_log import TenantLog
from evenmesh_orchestrator.observations.relay import ObserveStream

_TOGETHER: Final = 64
_LOOK_S: Final = 1.0


class LogReceiver:
    """The log as the receiver of observations: an observation in the log is acknowledged.

    Args:
        log: the log.
        max_message_bytes: the largest observation that evaluators accept. Bytes, [1, inf).
    """

    def __init__(self, log: TenantLog, *, max_message_bytes: int) -> None:
        self._log = log
        self._max_message_bytes = max_message_bytes

    @property
    def gives_reports(self) -> bool:
        """Whether a report can follow an observation: evaluators are behind."""
        return False

    @property
    def max_message_bytes(self) -> int:
        """The largest observation; see the port."""
        return self._max_message_bytes

    def observe(self) -> ObserveStream:
        """Open a stream to the log for the current tenant; see the port."""
        return _LogStream(self._log, callers.current().tenant)

    async def is_serving(self) -> bool:
        """Return whether the log takes entries."""
        try:
            await self._log.open()
        except Unavailable:
            return False
        return True

    async def watch(self, on_change: Callable[[bool], None]) -> None:
        """Look again and again whether the log takes entries; see the port."""
        reachable: bool | None = None
        while True:
            now = await self.is_serving()
            if now is not reachable:
                reachable = now
                on_change(now)
            await asyncio.sleep(_LOOK_S)

    async def close(self) -> None:
        """Close the connections."""
        await self._log.close()


class _LogStream:
    """Adds observations of one tenant, those that wait together in one step."""

    def __init__(self, log: TenantLog, tenant: str) -> None:
        self._log = log
        self._tenant = tenant
        self._payloads: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def send(self, payload: bytes, *, want_report: bool) -> bool:
        del want_report  # there is none
        self._payloads.put_nowait(payload)  # the relay bounds how many are on their way
        return True

    async def responses(self) -> AsyncIterator[ObserveResponse]:
        ends = False
        while not ends:
            payloads = [await self._payloads.get()]
            while not self._payloads.empty() and len(payloads) < _TOGETHER:
                payloads.append(self._payloads.get_nowait())
            ends = None in payloads
            entries = [one for one in payloads if one is not None]
            if not entries:
                return
            await self._log.append(self._tenant, entries)
            for payload in entries:
                yield ObserveResponse(ack=ObserveAck(observation_id=Observation.FromString(payload).id))

    async def finish(self) -> None:
        self._payloads.put_nowait(None)

    def cancel(self) -> None:
        pass  # whoever reads the responses is cancelled
