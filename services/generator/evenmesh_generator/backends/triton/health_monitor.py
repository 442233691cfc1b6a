"""Check whether one model of a Triton server really answers, and reload it if not.

Triton reports a model ready whose process has died, does not restart that process, and never answers what it
was computing. So a probe inference shows whether the model is up, and a model whose process is
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

from evenmesh.wire.errors import DeadlineExceeded, MeshError, NotFound, Unavailable
from evenmesh_generator.backends.triton.client import LOADING, READY, LoadError, TritonClient
from evenmesh_generator.backends.triton.endpoint import ModelEndpoint
from evenmesh_generator.backends.triton.errors import ModelProcessGone, ModelUnavailable, ServerGone

_log = logging.getLogger("evenmesh.generator.triton")

_LIVE_S: Final = 3.0
_AGAIN_S: Final = 1.0
_ASIDE_S: Final = 0.5
_LONGEST_BACKOFF_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """How models are monitored. Seconds, (0, inf).

    Attributes:
        interval_s: between two checks of a healthy model.
        probe_s: longest a probe inference may take.
        stuck_s: a model that answers nothing for this long is reloaded.
        load_s: longest that loading a model may take.
    """

    interval_s: float = 5.0
    probe_s: float = 10.0
    stuck_s: float = 120.0
    load_s: float = 600.0


class HealthMonitor:
    """Checks one model, and marks its :class:`ModelEndpoint` available or not. For one event loop.

    Args:
        probe: a real inference, given the seconds it may take; raises what the model says.
    """

    def __init__(
        self,
        client: TritonClient,
        endpoint: ModelEndpoint,
        probe: Callable[[float], Awaitable[None]],
        health: HealthSettings,
    ) -> None:
        self._client = client
        self._endpoint = endpoint
        self._probe = probe
        self._health = health
        self._wake = asyncio.Event()
        self._timeouts = 0
        self._healthy_at = time.monotonic()
        self._load_at = 0.0
        self._backoff_s = _AGAIN_S
        endpoint.on_failure = self._wake.set

    @property
    def _where(self) -> dict[str, object]:
        return {"model": self._endpoint.name, "server": self._endpoint.server}

    def check_now(self) -> None:
        """Check the model now instead of at the next interval."""
        self._wake.set()

    async def run(self) -> None:
        """Check the model at intervals until cancelled."""
        while True:
            self._wake.clear()
            await self.check()
            wait_s = self._health.interval_s if self._endpoint.up else min(_AGAIN_S, self._health.interval_s)
            if self._timeouts:
                wait_s = min(_AGAIN_S, wait_s)
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                continue
            # Failures come in bursts: one check serves them all.
            await asyncio.sleep(0.05)

    async def check(self) -> None:
        """Check the server and the model once, and act on the result."""
        try:
            await self._client.check_live(timeout_s=min(_LIVE_S, self._health.probe_s))
        except ServerGone as error:
            self._mark_unavailable(error, fail_running=False)
            return
        except DeadlineExceeded:
            # One check may time out on a busy machine; two in a row mean that the server is gone.
            self._timeouts += 1
            if self._timeouts > 1:
                self._mark_unavailable(ServerGone("the Triton server does not answer"), fail_running=True)
            return
        try:
            await self._probe(self._health.probe_s)
        except DeadlineExceeded:
            await self._on_timeout()
        except ModelProcessGone as error:
            self._mark_unavailable(error, fail_running=True)
            await self._reload()
        except (ModelUnavailable, NotFound):
            self._mark_unavailable(
                ModelUnavailable(f"{self._endpoint.name} is not loaded at the Triton server"),
                fail_running=False,
            )
            await self._load()
        except ServerGone as error:
            self._mark_unavailable(error, fail_running=False)
        except MeshError as error:
            if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED:  # busy, so alive
                self._mark_available()
            else:
                await self._on_probe_failure(error)
        else:
            self._mark_available()

    async def _on_timeout(self) -> None:
        """Handle a probe that timed out: the model is busy or stuck, or its process has stopped."""
        self._timeouts += 1
        if self._endpoint.silent_s < self._health.probe_s:
            self._mark_available()
            return
        why = ModelUnavailable(f"{self._endpoint.name} does not answer at the Triton server")
        self._mark_unavailable(why, fail_running=False)
        if time.monotonic() - self._healthy_at > self._health.stuck_s:
            self._mark_unavailable(why, fail_running=True)
            await self._reload()

    async def _on_probe_failure(self, error: MeshError) -> None:
        """Handle a probe that failed: the model is loaded and cannot compute."""
        _log.warning("probe failed", extra=self._where | {"reason": error.reason})
        self._mark_unavailable(
            ModelUnavailable(f"{self._endpoint.name} fails its probe at the Triton server"),
            fail_running=False,
        )
        if time.monotonic() - self._healthy_at > self._health.stuck_s:
            await self._reload()

    def _mark_available(self) -> None:
        if not self._endpoint.up:
            _log.info("triton model is there", extra=self._where)
        self._timeouts, self._healthy_at, self._backoff_s = 0, time.monotonic(), _AGAIN_S
        self._endpoint.mark_available()

    def _mark_unavailable(self, why: Unavailable, *, fail_running: bool) -> None:
        if self._endpoint.up:
            _log.warning("triton model is away", extra=self._where | {"why": why.message})
        self._endpoint.mark_unavailable(why, fail_running=fail_running)

    async def _reload(self) -> None:
        """Unload and load a model that will not recover by itself; loading alone would change nothing."""
        if time.monotonic() < self._load_at:
            return
        # Other generators see the same: the second one finds the model healthy.
        await asyncio.sleep(random.uniform(0, _ASIDE_S))
        try:
            await self._probe(self._health.probe_s)
        except MeshError:
            pass
        else:
            self._mark_available()
            return
        try:
            await self._client.unload(self._endpoint.name, timeout_s=self._health.load_s)
        except LoadError as error:
            self._on_load_failure(error)
            return
        await self._load()

    async def _load(self) -> None:
        """Load a model that is not loaded, unless loading is in progress or has just failed."""
        name = self._endpoint.name
        if time.monotonic() < self._load_at:
            return
        try:
            repository = await self._client.repository(timeout_s=_LIVE_S)
        except MeshError:
            return  # the next check sees
        states = {one.state for one in repository.get(name, ())}
        if READY in states or LOADING in states:
            self._wake.set()
            return
        _log.info("loading", extra=self._where | {"states": sorted(states)})
        try:
            await self._client.load(name, timeout_s=self._health.load_s)
        except LoadError as error:
            self._on_load_failure(error)
            return
        self._healthy_at = time.monotonic()
        self._wake.set()

    def _on_load_failure(self, error: LoadError) -> None:
        """Log a failed load in full, tell callers in short, and retry later."""
        name = self._endpoint.name
        self._load_at = time.monotonic() + self._backoff_s
        _log.error("cannot load", extra=self._where | {"said": str(error), "again_s": self._backoff_s})
        self._backoff_s = min(2 * self._backoff_s, _LONGEST_BACKOFF_S)
        self._mark_unavailable(
            ModelUnavailable(f"{name} cannot be loaded at the Triton server; its log says why"),
            fail_running=True,
        )
