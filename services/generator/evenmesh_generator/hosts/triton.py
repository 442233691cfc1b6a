"""Use models of Triton servers. Needs ``tritonclient``; loads neither torch nor transformers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

import grpc
from tritonclient.grpc.model_config_pb2 import ModelConfig

from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import DeadlineExceeded, InvalidField, MeshError, NotFound, Unavailable
from evenmesh_generator.backends.remote_prompter import (
    CONTEXT_TOKENS,
    MOST_WRITTEN,
    PromptOptions,
    RemotePrompter,
    text_augmentations,
)
from evenmesh_generator.backends.triton import vllm_wire
from evenmesh_generator.backends.triton.client import LOADING, READY, LoadError, TritonClient, VersionState
from evenmesh_generator.backends.triton.endpoint import MARGIN_S
from evenmesh_generator.backends.triton.health_monitor import HealthSettings
from evenmesh_generator.backends.triton.model import TritonModel
from evenmesh_generator.backends.triton.servers import TritonServer, TritonServers, is_address
from evenmesh_generator.backends.triton.vllm import Sampling, VllmModel
from evenmesh_generator.backends.triton.wire import ENGINE
from evenmesh_generator.domain import Augmentation, ModelDescription
from evenmesh_generator.ports import HostedModel
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.settings import BUNDLED, OF_SERVERS, GeneratorSettings, ModelSource
from evenmesh_generator.triton.tensors import RELEVANCE_SUFFIX
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.compute.tenant_places import TenantPlaces
from evenmesh_kit.rpc.readiness import Readiness
from evenmesh_kit.settings import SettingsError, variable
from evenmesh_kit.telemetry.spans import Spans

_POLL_S: Final = 0.2
_CALL_S: Final = 5.0
_log = logging.getLogger("evenmesh.generator.triton")


class TritonHost:
    """Finds every model at Triton servers, which may come and go.

    Attributes:
        places: those for running requests at the servers, for the metrics.

    Args:
        templates: the prompts of models of the vLLM backend; other models have theirs at the server.
        readiness: shows whether the default model can answer.
        spans: makes a span of each request to a server; None makes none.
    """

    def __init__(
        self,
        settings: GeneratorSettings,
        templates: TemplateLibrary,
        readiness: Readiness,
        spans: Spans | None = None,
    ) -> None:
        self._spans = spans
        self._settings = settings
        self._templates = templates
        self._readiness = readiness
        self._pool = ComputePool(settings.workers, "generator-prompts")
        self._models: list[TritonModel | VllmModel] = []
        self._credentials: grpc.ChannelCredentials | None = None
        self._servers = TritonServers(
            settings.triton_targets,
            self._connect,
            lambda: TenantPlaces(
                settings.triton_in_flight,
                share=settings.tenant_share,
                where="the Triton server",
                margin_s=MARGIN_S,
            ),
            interval_s=settings.triton_resolve_interval_s,
        )
        self.places = (self._servers,)

    async def start(self) -> Sequence[HostedModel]:
        """Wait for the server and its models, and start to monitor them.

        Raises:
            SettingsError: the server, or a model, is not there in time, or certificates cannot be used; one
                line that names the setting.
        """
        settings = self._settings
        deadline = Deadline.after(settings.triton_start_s)
        self._credentials = settings.triton_credentials()
        try:
            first = await self._wait_for_server(deadline)
            client = first.client
            health = HealthSettings(
                settings.triton_probe_interval_s, settings.triton_probe_s, settings.triton_stuck_s
            )
            for name in settings.names:
                repository = await self._wait_for_model(client, name, deadline)
                try:
                    model: TritonModel | VllmModel
                    config = await client.config(name, timeout_s=_CALL_S)
                    if vllm_wire.speaks(one.name for one in config.input):
                        versions = [one.version for one in repository[name] if one.state == READY]
                        model = self._vllm(config, versions[-1], health)
                    else:
                        model = self._own(name, health, judges=name + RELEVANCE_SUFFIX in repository)
                    self._models.append(model)
                    await model.open(first, self._update_readiness)
                except MeshError as error:
                    raise SettingsError(f"{self._where(name)}: {error}") from None
            for server in self._servers.all:
                if server is not first:
                    await self._join(server)
            self._servers.on_join, self._servers.on_leave = self._join, self._leave
            self._servers.in_use = lambda server: any(model.up_at(server) for model in self._models)
            self._servers.watch()
        except BaseException:
            await self.stop()
            raise
        return self._models

    async def stop(self) -> None:
        """Stop monitoring the models, and close the connections."""
        for model in self._models:
            await model.close()
        await self._servers.close()
        self._pool.close()

    def _connect(self, address: str, host: str) -> TritonClient:
        # A certificate names the target's host, not the addresses that it resolves to.
        return TritonClient(address, self._credentials, self._spans, "" if is_address(host) else host)

    async def _join(self, server: TritonServer) -> None:
        for model in self._models:
            model.join(server)

    async def _leave(self, server: TritonServer) -> None:
        for model in self._models:
            await model.leave(server)

    def _own(self, name: str, health: HealthSettings, *, judges: bool) -> TritonModel:
        unused = sorted(set(OF_SERVERS) & self._source(name).model_fields_set)
        if unused:
            raise SettingsError(
                f"{self._where(name)} has {', '.join(unused)}, which only models of its vLLM backend use"
            )
        interval_s = self._settings.delta_interval_ms / 1000
        return TritonModel(name, health=health, interval_s=interval_s, judges=judges)

    def _vllm(self, config: ModelConfig, version: str, health: HealthSettings) -> VllmModel:
        source, inputs = self._source(config.name), [one.name for one in config.input]
        if lacking := vllm_wire.missing(inputs):
            raise SettingsError(
                f"{self._where(source.name)} has no inputs {', '.join(lacking)}: its vLLM backend must be of "
                "release 24.12 or newer"
            )
        if source.template:
            try:
                self._templates.suiting(source.template, Augmentation.IN_PROMPT)
            except (NotFound, InvalidField) as error:
                raise SettingsError(f"{self._where(source.name)}: {error}") from None
        context = source.context_tokens or CONTEXT_TOKENS
        if source.context_tokens is None:
            _log.warning(
                "the server does not say how long prompts may be; set context_tokens",
                extra={"model": source.name, "context_tokens": context},
            )
        judges = vllm_wire.judges(inputs)
        description = ModelDescription(
            name=source.name,
            version=f"{source.name}/{version}",
            engine=ENGINE,
            architecture="",
            device=self._settings.triton_target,
            dtype="",
            scores_relevance=judges,
            max_input_tokens=context,
            max_new_tokens=min(MOST_WRITTEN, context - 1),
            augmentations=text_augmentations(bool(source.instruction)),
            runtime=config.backend,
            max_beams=1,
        )
        options = PromptOptions(source.name, False, source.template, context, source.bytes_per_token)
        return VllmModel(
            description,
            Sampling(source.request, vllm_wire.optional(inputs), source.top_logprobs if judges else 0),
            RemotePrompter(self._templates, options),
            self._pool,
            health=health,
            interval_s=self._settings.delta_interval_ms / 1000,
        )

    def _source(self, name: str) -> ModelSource:
        return next((one for one in self._settings.models if one.name == name), ModelSource(name=name))

    def _update_readiness(self) -> None:
        self._readiness.ready = self._models[0].up

    async def _wait_for_server(self, deadline: Deadline) -> TritonServer:
        """Return the first server that answers, of all that the target resolves to."""
        why = "its name cannot be resolved"
        while not deadline.expired:
            await self._servers.refresh()
            servers = self._servers.all
            for server, error in zip(
                servers, await asyncio.gather(*(self._answers(one, deadline) for one in servers)), strict=True
            ):
                if error is None:
                    return server
                why = error
            await asyncio.sleep(_POLL_S)
        target = variable(self._settings, "triton_target")
        over = " that speaks TLS and is trusted" if self._settings.triton_ssl else ""
        raise SettingsError(
            f"{target}={self._settings.triton_target}: no Triton server{over} within "
            f"{self._settings.triton_start_s:g} s: {why}"
        )

    async def _answers(self, server: TritonServer, deadline: Deadline) -> str | None:
        """Return why a server does not answer; None where it does."""
        try:
            await server.client.check_live(timeout_s=min(_CALL_S, deadline.budget()))
            name = await server.client.server_name(timeout_s=min(_CALL_S, deadline.budget()))
        except (Unavailable, DeadlineExceeded) as error:
            return error.message
        _log.info("triton server found", extra={"target": server.client.target, "server": name})
        return None

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
