"""Use models of a Triton server. Needs ``tritonclient``; loads neither torch nor transformers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import DeadlineExceeded, MeshError, Unavailable
from evenmesh_generator.backends.triton.client import LOADING, READY, LoadError, TritonClient, VersionState
from evenmesh_generator.backends.triton.endpoint import MARGIN_S
from evenmesh_generator.backends.triton.health_monitor import HealthSettings
from evenmesh_generator.backends.triton.model import TritonModel
from evenmesh_generator.ports import HostedModel
from evenmesh_generator.settings import BUNDLED, GeneratorSettings
from evenmesh_generator.triton.tensors import RELEVANCE_SUFFIX
from evenmesh_kit.compute.tenant_places import TenantPlaces
from evenmesh_kit.rpc.readiness import Readiness
from evenmesh_kit.settings import SettingsError, variable
from evenmesh_kit.telemetry.spans import Spans

_POLL_S: Final = 0.2
_CALL_S: Final = 5.0
_log = logging.getLogger("evenmesh.generator.triton")


class TritonHost:
    """Finds every model at a Triton server.

    Attributes:
        places: those for running requests at the server, for the metrics.

    Args:
        readiness: shows whether the default model can answer.
        spans: makes a span of each request to the server; None makes none.
    """

    def __init__(self, settings: GeneratorSettings, readiness: Readiness, spans: Spans | None = None) -> None:
        self._spans = spans
        self._settings = settings
        self._readiness = readiness
        self._client: TritonClient | None = None
        self._models: list[TritonModel] = []
        self.places = (
            TenantPlaces(
                settings.triton_in_flight,
                share=settings.tenant_share,
                where="the Triton server",
                margin_s=MARGIN_S,
            ),
        )

    async def start(self) -> Sequence[HostedModel]:
        """Wait for the server and its models, and start to monitor them.

        Raises:
            SettingsError: the server, or a model, is not there in time, or certificates cannot be used; one
                line that names the setting.
        """
        settings = self._settings
        deadline = Deadline.after(settings.triton_start_s)
        client = TritonClient(settings.triton_target, settings.triton_credentials(), self._spans)
        self._client = client
        try:
            await self._wait_for_server(client, deadline)
            health = HealthSettings(
                settings.triton_probe_interval_s, settings.triton_probe_s, settings.triton_stuck_s
            )
            for name in settings.names:
                repository = await self._wait_for_model(client, name, deadline)
                model = TritonModel(
                    client,
                    name,
                    places=self.places[0],
                    health=health,
                    interval_s=settings.delta_interval_ms / 1000,
                    judges=name + RELEVANCE_SUFFIX in repository,
                )
                self._models.append(model)
                try:
                    await model.open(self._update_readiness)
                except MeshError as error:
                    raise SettingsError(f"{self._where(name)}: {error}") from None
        except BaseException:
            await self.stop()
            raise
        return self._models

    async def stop(self) -> None:
        """Stop monitoring the models, and close the connection."""
        for model in self._models:
            await model.close()
        if self._client is not None:
            await self._client.close()

    def _update_readiness(self) -> None:
        self._readiness.ready = self._models[0].up

    async def _wait_for_server(self, client: TritonClient, deadline: Deadline) -> None:
        why = "nobody answers"
        while not deadline.expired:
            try:
                await client.check_live(timeout_s=min(_CALL_S, deadline.budget()))
                name = await client.server_name(timeout_s=min(_CALL_S, deadline.budget()))
            except (Unavailable, DeadlineExceeded) as error:
                why = error.message
            else:
                _log.info("triton server found", extra={"target": client.target, "server": name})
                return
            await asyncio.sleep(_POLL_S)
        target = variable(self._settings, "triton_target")
        over = " that speaks TLS and is trusted" if self._settings.triton_ssl else ""
        raise SettingsError(
            f"{target}={client.target}: no Triton server{over} within {self._settings.triton_start_s:g} s: "
            f"{why}"
        )

    async def _wait_for_model(
        self, client: TritonClient, name: str, deadline: Deadline
    ) -> Mapping[str, Sequence[VersionState]]:
        """Return the server's repository once the model is ready; load it if needed."""
        asked = False
        while True:
            try:
                repository = await client.repository(timeout_s=min(_CALL_S, deadline.budget()))
            except DeadlineExceeded:
                raise SettingsError(f"{self._where(name)} is not loaded in time") from None
            except MeshError as error:
                raise SettingsError(f"{self._where(name)}: {error}") from None
            if name not in repository:
                offered = ", ".join(sorted(repository)) or "nothing"
                raise SettingsError(f"{self._where(name)} is not in its repository, which has {offered}")
            states = {version.state for version in repository[name]}
            if READY in states:
                return repository
            if LOADING not in states and not asked:
                asked = True
                try:
                    await client.load(name, timeout_s=deadline.budget())
                except (LoadError, DeadlineExceeded) as error:
                    raise SettingsError(f"{self._where(name)} cannot be loaded: {error}") from None
                continue
            if deadline.expired:
                raise SettingsError(f"{self._where(name)} is not loaded in time")
            await asyncio.sleep(_POLL_S)

    def _where(self, name: str) -> str:
        setting = variable(self._settings, "bundled" if name == BUNDLED else "models")
        return f"{setting}: model {name!r} of the Triton server at {self._settings.triton_target}"
