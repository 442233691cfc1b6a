"""Check whether the servers of a model list it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import FailedPrecondition, MeshError, Overloaded, restored
from evenmesh_generator.backends.openai.wire import MODELS_PATH, ListedModel, listed_models
from evenmesh_kit.remote.client import RemoteClient

_log = logging.getLogger("evenmesh.generator.openai")

_ASIDE_S = 0.05


class NotListed(FailedPrecondition):
    """FAILED_PRECONDITION: a server answers and does not have the model.

    Attributes:
        offered: what it has, for operators.
    """

    def __init__(self, model: str, offered: list[str]) -> None:
        super().__init__("REMOTE_NOT_FOUND", f"the model server does not list {model!r}")
        self.offered = ", ".join(offered[:20]) + (", …" if len(offered) > 20 else "") or "no model"


class ListingMonitor:
    """Asks every server of a model, at intervals and after failures, whether it lists it. For one event loop.

    Args:
        client: calls the servers.
        model: the model's name there.
        interval_s: time between two checks. Seconds, (0, inf).
        probe_s: longest that a check may take. Seconds, (0, inf).
    """

    def __init__(self, client: RemoteClient, model: str, *, interval_s: float, probe_s: float) -> None:
        self._client = client
        self._model = model
        self._interval_s = interval_s
        self._probe_s = probe_s
        self.raised: MeshError | None = None
        """Why no server could be asked at the last check; None where one could."""
        self._wake = asyncio.Event()
        self.listed: ListedModel | None = None
        """What a server says of the model; None before the first check that finds it."""
        self.on_change: Callable[[], object] = lambda: None
        """Called when the model has gone away or come back."""

    @property
    def up(self) -> bool:
        """Return whether a server lists the model."""
        return self.raised is None and self.listed is not None

    @property
    def error(self) -> MeshError | None:
        """Return why no server can be asked; None where one can."""
        error = self.raised
        if error is None:
            return None
        # A copy: a raised error keeps the frames of those before.
        return restored(error.code, error.reason, error.message, error.field, error.retry_after_s)

    def check_now(self) -> None:
        """Check at once instead of at the next interval."""
        self._wake.set()

    async def run(self) -> None:
        """Check at intervals until cancelled."""
        while True:
            self._wake.clear()
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._wake.wait()
                await asyncio.sleep(_ASIDE_S)  # failures come in bursts: one check serves them all
            except TimeoutError:
                pass
            try:
                await self.check()
            except Exception:  # noqa: BLE001 - a later check may work
                _log.exception("the servers of a model cannot be checked", extra={"model": self._model})

    async def check(self) -> None:
        """Ask every server once."""
        checked = await self._client.check(
            MODELS_PATH,
            deadline=Deadline.after(self._probe_s),
            accept=self._missing,
            rest_s=2 * (self._interval_s + self._probe_s),
        )
        # A server that is asked too often has not lost the model.
        errors = [
            one.error
            for one in checked
            if one.error is not None and not (self.listed is not None and isinstance(one.error, Overloaded))
        ]
        before = self.up
        self.raised = errors[0] if len(errors) == len(checked) else None
        if before != self.up:
            level = logging.INFO if self.up else logging.WARNING
            state = "model is there" if self.up else "model is away"
            _log.log(
                level, state, extra={"model": self._model, "why": self.raised.reason if self.raised else ""}
            )
            self.on_change()

    def _missing(self, reply: Any) -> MeshError | None:
        try:
            models = listed_models(reply)
        except MeshError as error:
            return error
        found = next((one for one in models if one.name == self._model), None)
        if found is None:
            return NotListed(self._model, [one.name for one in models])
        self.listed = found
        return None
