"""Use models of OpenAI-compatible servers. Needs ``httpx``; loads neither torch nor transformers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import DeadlineExceeded, InvalidField, MeshError, NotFound, Overloaded, Unavailable
from evenmesh_generator.backends.openai.model import ENGINE, OpenAiModel
from evenmesh_generator.backends.openai.monitor import ListingMonitor, NotListed
from evenmesh_generator.backends.openai.wire import Interface, ListedModel
from evenmesh_generator.backends.remote_prompter import (
    CONTEXT_TOKENS,
    MOST_WRITTEN,
    PromptOptions,
    RemotePrompter,
    text_augmentations,
)
from evenmesh_generator.domain import Augmentation, ModelDescription
from evenmesh_generator.ports import HostedModel
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.settings import GeneratorSettings, ModelSource
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.compute.tenant_places import TenantPlaces
from evenmesh_kit.remote.client import RemoteClient
from evenmesh_kit.rpc.readiness import Readiness
from evenmesh_kit.settings import SettingsError, variable
from evenmesh_kit.telemetry.spans import Spans

_POLL_S: Final = 0.2
_log = logging.getLogger("evenmesh.generator.openai")


class OpenAiHost:
    """Finds every model at its servers.

    Attributes:
        places: those for running requests at each model's servers, for the metrics.

    Args:
        templates: the prompts.
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
        self._settings = settings
        self._templates = templates
        self._readiness = readiness
        self._spans = spans
        self._pool = ComputePool(settings.workers, "generator-prompts")
        self._models: list[OpenAiModel] = []
        self.places: list[TenantPlaces] = []

    async def start(self) -> Sequence[HostedModel]:
        """Wait for the servers, and start to monitor their models.

        Raises:
            SettingsError: a model is not there in time, or files cannot be used; one line that names the
            setting.
        """
        deadline = Deadline.after(self._settings.remote_start_s)
        sources = {source.name: source for source in self._settings.models}
        try:
            for name in self._settings.names:
                await self._open(sources[name], deadline)
        except BaseException:
            await self.stop()
            raise
        return self._models

    async def stop(self) -> None:
        """Stop monitoring the models, close the connections and stop the threads."""
        for model in self._models:
            await model.close()
        self._pool.close()

    async def _open(self, source: ModelSource, deadline: Deadline) -> None:
        settings = self._settings
        where = f"{variable(settings, 'models')}: model {source.name!r}"
        if source.template:
            try:
                self._templates.suiting(source.template, Augmentation.IN_PROMPT)
            except (NotFound, InvalidField) as error:
                raise SettingsError(f"{where}: {error}") from None
        client = settings.remote_client(source.urls, self._spans)
        model = None
        try:
            monitor = ListingMonitor(
                client,
                source.path or source.name,
                interval_s=settings.remote_probe_interval_s,
                probe_s=settings.remote_probe_s,
            )
            listed = await self._wait_until_listed(monitor, where, deadline)
            model = self._model(source, client, monitor, listed)
            await self._wait_until_written(model, where, deadline)
        except BaseException:
            await client.close()
            raise
        self._models.append(model)
        self.places.append(client.places)

    async def _wait_until_listed(
        self, monitor: ListingMonitor, where: str, deadline: Deadline
    ) -> ListedModel:
        while True:
            await monitor.check()
            if monitor.raised is None and monitor.listed is not None:
                return monitor.listed
            error = monitor.raised
            if isinstance(error, NotListed):
                raise SettingsError(f"{where}: {error.message}, which has {error.offered}")
            if not _passes(error) or deadline.remaining() <= _POLL_S:
                raise SettingsError(f"{where}: {error}{self._in_time(error)}")
            await asyncio.sleep(_POLL_S)

    async def _wait_until_written(self, model: OpenAiModel, where: str, deadline: Deadline) -> None:
        while True:
            try:
                await model.open(self._update_readiness, deadline)
                return
            except MeshError as error:
                if not _passes(error) or deadline.remaining() <= _POLL_S:
                    raise SettingsError(f"{where}: {error}{self._in_time(error)}") from None
            await asyncio.sleep(_POLL_S)

    def _in_time(self, error: MeshError | None) -> str:
        if not _passes(error):
            return ""
        waited = variable(self._settings, "remote_start_s")
        return f"; waited for {waited}={self._settings.remote_start_s:g} s"

    def _model(
        self, source: ModelSource, client: RemoteClient, monitor: ListingMonitor, listed: ListedModel
    ) -> OpenAiModel:
        settings, chat = self._settings, source.api == "chat"
        context = source.context_tokens or listed.context_tokens
        if context is None:
            context = CONTEXT_TOKENS
            _log.warning(
                "the servers do not say how long prompts may be; set context_tokens",
                extra={"model": source.name, "context_tokens": context},
            )
        options = PromptOptions(source.name, chat, source.template, context, source.bytes_per_token)
        description = ModelDescription(
            name=source.name,
            version=listed.name,
            engine=ENGINE,
            architecture="",
            device=", ".join(endpoint.name for endpoint in client.endpoints),
            dtype="",
            scores_relevance=False,
            max_input_tokens=context,
            max_new_tokens=min(MOST_WRITTEN, context - 1),
            augmentations=text_augmentations(chat if source.instruction is None else source.instruction),
            runtime=listed.owner,
            max_beams=1,
        )
        return OpenAiModel(
            client,
            monitor,
            Interface(chat, listed.name, source.request),
            RemotePrompter(self._templates, options),
            self._pool,
            description,
            top_logprobs=source.top_logprobs,
            interval_s=settings.delta_interval_ms / 1000,
        )

    def _update_readiness(self) -> None:
        # The default model is the first; others do not take the service down.
        self._readiness.ready = self._models[0].up


def _passes(error: MeshError | None) -> bool:
    """Return whether a server that is starting may answer so."""
    return isinstance(error, Unavailable | DeadlineExceeded | Overloaded)
