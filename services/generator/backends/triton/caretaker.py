"""Looks after one model of a Triton server: is it really there, and what brings it back.

Triton calls a model ready whose process has died, and does not start that process again; and what the dead
process was computing is never answered. So a probe inference tells what is up, and a model whose process is
dead is unloaded and loaded.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import grpc

from meshkit.errors import DeadlineExceeded, MeshError, NotFound, Unavailable
from services.generator.backends.triton.backend import Backend
from services.generator.backends.triton.client import LOADING, READY, LoadError, TritonClient
from services.generator.backends.triton.errors import ModelAway, ModelProcessGone, ServerGone

_log = logging.getLogger("ragmesh.generator.triton")

_LIVE_S: Final = 3.0
_AGAIN_S: Final = 1.0
_ASIDE_S: Final = 0.5
_LONGEST_BACKOFF_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Care:
    """How models are looked after. Seconds, (0, inf).

    Attributes:
        interval_s: between two looks at a model that is well.
        probe_s: longest a probe inference may take.
        stuck_s: a model that answers nothing for so long is loaded anew.
        load_s: longest that loading a model may take.
    """

    interval_s: float = 5.0
    probe_s: float = 10.0
    stuck_s: float = 120.0
    load_s: float = 600.0


class Caretaker:
    """Keeps a :class:`Backend` told of how its model is. For one event loop.

    Args:
        probe: a real inference, given the seconds it may take; raises what the model says.
    """

    def __init__(
        self, client: TritonClient, backend: Backend, probe: Callable[[float], Awaitable[None]], care: Care
    ) -> None:
        self._client = client
        self._backend = backend
        self._probe = probe
        self._care = care
        self._wake = asyncio.Event()
        self._timeouts = 0
        self._well_at = time.monotonic()
        self._load_at = 0.0
        self._backoff_s = _AGAIN_S
        backend.on_trouble = self._wake.set

    def hurry(self) -> None:
        """Has a look at once."""
        self._wake.set()

    async def run(self) -> None:
        """Looks after the model until cancelled."""
        while True:
            self._wake.clear()
            await self.look()
            wait_s = self._care.interval_s if self._backend.up else min(_AGAIN_S, self._care.interval_s)
            if self._timeouts:
                wait_s = min(_AGAIN_S, wait_s)
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                continue
            # Trouble comes in swarms: one look is for all of it.
            await asyncio.sleep(0.05)

    async def look(self) -> None:
        """One look at the server and the model, and what follows from it."""
        try:
            await self._client.check_live(timeout_s=min(_LIVE_S, self._care.probe_s))
        except ServerGone as error:
            self._gone(error, for_good=False)
            return
        except DeadlineExceeded:
            # One may be lost on a busy machine; two in a row mean that nobody is there.
            self._timeouts += 1
            if self._timeouts > 1:
                self._gone(ServerGone("the Triton server does not answer"), for_good=True)
            return
        try:
            await self._probe(self._care.probe_s)
        except DeadlineExceeded:
            await self._on_silence()
        except ModelProcessGone as error:
            self._gone(error, for_good=True)
            await self._load_anew()
        except (ModelAway, NotFound):
            self._gone(ModelAway(f"{self._backend.name} is not loaded at the Triton server"), for_good=False)
            await self._load()
        except ServerGone as error:
            self._gone(error, for_good=False)
        except MeshError as error:
            if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED:  # busy, so alive
                self._back()
            else:
                await self._on_sickness(error)
        else:
            self._back()

    async def _on_silence(self) -> None:
        """The probe was not answered in time: the model is busy, stuck, or its process stopped."""
        self._timeouts += 1
        if self._backend.silent_s < self._care.probe_s:
            self._back()
            return
        why = ModelAway(f"{self._backend.name} does not answer at the Triton server")
        self._gone(why, for_good=False)
        if time.monotonic() - self._well_at > self._care.stuck_s:
            self._gone(why, for_good=True)
            await self._load_anew()

    async def _on_sickness(self, error: MeshError) -> None:
        """The probe failed: the model is there and cannot compute."""
        _log.warning("probe failed", extra={"model": self._backend.name, "reason": error.reason})
        self._gone(ModelAway(f"{self._backend.name} fails its probe at the Triton server"), for_good=False)
        if time.monotonic() - self._well_at > self._care.stuck_s:
            await self._load_anew()

    def _back(self) -> None:
        if not self._backend.up:
            _log.info("triton model is back", extra={"model": self._backend.name})
        self._timeouts, self._well_at, self._backoff_s = 0, time.monotonic(), _AGAIN_S
        self._backend.back()

    def _gone(self, why: Unavailable, *, for_good: bool) -> None:
        if self._backend.up:
            _log.warning("triton model is away", extra={"model": self._backend.name, "why": why.message})
        self._backend.gone(why, for_good=for_good)

    async def _load_anew(self) -> None:
        """Unloads and loads a model that will not come back by itself; loading alone would change nothing."""
        if time.monotonic() < self._load_at:
            return
        # Other generators see the same: whoever comes second finds the model well.
        await asyncio.sleep(random.uniform(0, _ASIDE_S))
        try:
            await self._probe(self._care.probe_s)
        except MeshError:
            pass
        else:
            self._back()
            return
        try:
            await self._client.unload(self._backend.name, timeout_s=self._care.load_s)
        except LoadError as error:
            self._refused(error)
            return
        await self._load()

    async def _load(self) -> None:
        """Loads a model that is not loaded, unless that is under way or has just failed."""
        name = self._backend.name
        if time.monotonic() < self._load_at:
            return
        try:
            repository = await self._client.repository(timeout_s=_LIVE_S)
        except MeshError:
            return  # the next look tells
        states = {one.state for one in repository.get(name, ())}
        if READY in states or LOADING in states:
            self._wake.set()
            return
        _log.info("loading", extra={"model": name, "states": sorted(states)})
        try:
            await self._client.load(name, timeout_s=self._care.load_s)
        except LoadError as error:
            self._refused(error)
            return
        self._well_at = time.monotonic()
        self._wake.set()

    def _refused(self, error: LoadError) -> None:
        """Loading failed: said in full to operators, in short to callers, and tried again later."""
        name = self._backend.name
        self._load_at = time.monotonic() + self._backoff_s
        _log.error("cannot load", extra={"model": name, "said": str(error), "again_s": self._backoff_s})
        self._backoff_s = min(2 * self._backoff_s, _LONGEST_BACKOFF_S)
        self._gone(
            ModelAway(f"{name} cannot be loaded at the Triton server; its log says why"), for_good=True
        )
