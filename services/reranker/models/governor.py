"""Which model serves whom: promoted, rolled back and found again after a crash, while serving goes on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, cast

from meshkit.compute import ComputePool
from meshkit.errors import FailedPrecondition, MeshError, NotFound, Unavailable
from meshkit.models import ModelError
from services.reranker.domain import DEFAULT_TENANT, Agent, Audience, Everyone, LearnedModel
from services.reranker.metrics import ServingModel
from services.reranker.models.cache import LoadingCache
from services.reranker.models.manifest import Kind, Lineage, Manifest, ManifestError
from services.reranker.models.retention import prune
from services.reranker.models.store import ModelStore, Pointer
from services.reranker.models.token_names import agent_tokens
from services.reranker.ports import Adapter, Assigned, LoadedModel, ModelLoader

_RETRY_S: Final = 60.0
"""How long a damaged version of an agent is not tried again. Seconds."""

_PRUNE_S: Final = 600.0
"""How often versions that nothing needs are looked for. Seconds."""

_log = logging.getLogger("ragmesh.reranker.models")


class Governor:
    """Serves versions of a model store, or the model of the settings where none was promoted.

    Promoting checks and loads a version first, in a thread, while the one before serves; then the pointer
    file is replaced, then the version is served. So after a crash at any point, what is served next was once
    loaded whole. The model of the settings is every tenant's to be served; a version is its tenant's alone,
    which others cannot promote and are not told of. What serves all agents of the tenant ``default`` stays in
    memory; versions of other tenants and agents' own are loaded when someone of theirs comes.

    Args:
        store: the versions.
        loader: makes what brings models into memory; called when the first is wanted, as a server without
            a model should not pay for importing what computes one.
        pool: threads for loading.
        memory_bytes: most memory of models and adapters that are loaded when someone comes. Bytes.
        registered: tells which agents are registered; models loaded get tokens for those they lack.
        no_model: what to do if there is no model at all, for callers.
        poll_s: how often the pointers are looked at, which other processes may change. Seconds, (0, inf).
        keep_versions: how many versions are kept that were served before, and how many others, of all
            agents' and of each agent's own; None keeps all, see :mod:`services.reranker.models.retention`.
    """

    def __init__(
        self,
        store: ModelStore,
        *,
        loader: Callable[[], Awaitable[ModelLoader]],
        pool: ComputePool,
        memory_bytes: int,
        registered: Callable[[], Awaitable[Sequence[Agent]]],
        no_model: str,
        poll_s: float,
        keep_versions: int | None = None,
    ) -> None:
        self._store = store
        self._make_loader = loader
        self._loader: ModelLoader | None = None
        self._pool = pool
        self._registered = registered
        self._no_model = no_model
        self._poll_s = poll_s
        self._keep_versions = keep_versions
        self._prune_at = 0.0
        self._origin: LoadedModel | None = None
        self._origin_tokens: frozenset[str] = frozenset()
        self._model: LoadedModel | None = None
        self._all = Pointer()
        self._pointers: dict[Audience, Pointer] = {}
        self._manifests: dict[str, Manifest] = {}
        self._cache: LoadingCache[LoadedModel | Adapter] = LoadingCache(memory_bytes)
        self._refused_until: dict[str, float] = {}
        self._known_agents: list[Agent] = []
        self._unreadable = False
        self._failures = 0
        self._changing = asyncio.Lock()
        self._polling: asyncio.Task[None] | None = None

    async def start(self, origin: LoadedModel | None) -> None:
        """Loads what was served last; from now on looks for what other processes promote.

        Of a version that is damaged, the latest before it that is not is served, and the log says so.

        Args:
            origin: the model of the settings, if there is one.
        """
        self._origin = self._model = origin
        await self._pool.run(self._store.tidy)
        # Before they are followed: what another process promotes while a model is loaded is seen afterwards.
        seen = await self._pool.run(self._store.pointers_changed_ns)
        await self.refresh()
        if origin is not None:
            self._origin_tokens = frozenset(origin.agent_tokens)
            await self._pool.run(origin.add_agents, await self._agents())
        await self._follow_pointers()
        self._polling = asyncio.create_task(self._poll(seen))

    async def close(self) -> None:
        """Looks no more."""
        if self._polling is not None:
            self._polling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._polling

    @property
    def has_model(self) -> bool:
        """Whether there is a model for all agents of the tenant ``default``."""
        return self._model is not None

    def serving(self) -> ServingModel | None:
        """What serves all agents of the tenant ``default``; None without a model. From any thread."""
        model = self._model
        if model is None:
            return None
        at = self._store.pointed_at(Everyone())
        return ServingModel(model.version, model.created_at, model is not self._origin, at)

    @property
    def failures(self) -> int:
        """How often what was promoted for all agents of the tenant ``default`` could not be served."""
        return self._failures

    def stale(self) -> bool:
        """Whether another version serves them than was promoted; :class:`meshkit.file_watch.Watched`."""
        wanted, model = self._all.serving, self._model
        return self._unreadable or (wanted is not None and (model is None or model.version != wanted))

    async def model_for(self, agent: Agent) -> Assigned:
        """See :class:`services.reranker.ports.ModelsOfAgents`.

        An agent's own version that is damaged, or an adapter to a model that is no longer served, gives way
        to what all agents get.
        """
        own = self._pointer(agent)
        if own.serving is not None:
            assigned = await self._own_model(own.serving)
            if assigned is not None:
                return assigned
        model = await self._everyones(agent.tenant)
        if model is None:
            raise FailedPrecondition("NOT_CONFIGURED", self._no_model)
        return Assigned(model)

    async def knows(self, agent: Agent) -> bool:
        """Whether what serves all agents of the agent's tenant has tokens of its task and model."""
        model = await self._everyones(agent.tenant)
        if model is None or not model.knows(agent):
            return False
        return model is not self._origin or agent_tokens(agent) <= self._shown_tokens(model, agent.tenant)

    async def register(self, agent: Agent) -> None:
        """Gives the served model tokens for an agent; what it scores does not change by that."""
        async with self._changing:
            if agent not in self._known_agents:
                self._known_agents = [*self._known_agents, agent]
            served = (await self._everyones(agent.tenant), self._origin)
            for model in {id(one): one for one in served if one is not None}.values():
                await self._pool.run(model.add_agents, [agent])

    async def refresh(self) -> None:
        """Reads which versions there are."""
        self._manifests = await self._pool.run(self._store.manifests, self._manifests)

    def models(self, whose: Audience) -> list[LearnedModel]:
        """A tenant's versions and the model of the settings, or the versions of an agent.

        That which serves all agents comes first, then what else is served, then by age.
        """
        found = [self._told(one) for one in self._manifests.values() if one.lineage.tenant == whose.tenant]
        if self._origin is not None and self._origin.version not in {one.version for one in found}:
            found.append(self._told_of_origin(self._origin, whose.tenant))
        if isinstance(whose, Agent):
            found = [one for one in found if one.agent == whose]
        found.sort(key=lambda one: (-one.created_at.timestamp(), one.version))
        return sorted(found, key=lambda one: (not one.serving, one.serving and one.agent is not None))

    async def promote(self, version: str, *, tenant: str, merge_agent_tokens: bool = False) -> LearnedModel:
        """Serves a version, to its agent or to all of its tenant; returns when the next request is so scored.

        Args:
            version: its name.
            tenant: who asks, for itself.
            merge_agent_tokens: of a version for all, make one of it first that has the tokens of agents that
                the served one has and it lacks, and serve that.

        Raises:
            NotFound: the tenant has no such version.
            FailedPrecondition: it is damaged, or cannot be loaded, or changes a model that is not served.
        """
        async with self._changing:
            await self.refresh()
            if not await self._has(tenant, version):
                if self._origin is None or version != self._origin.version:
                    raise NotFound(
                        "version", f"there is no version {version!r}; ListModels tells which there are"
                    )
                await self._serve_all(tenant, self._pointer(Everyone(tenant)).promoted(None))
                return self._told_of_origin(self._origin, tenant)
            manifest = await self._manifest(version)
            whose = manifest.lineage.whose
            if isinstance(whose, Agent):
                await self._serve_own(whose, self._pointer(whose).promoted(version))
            else:
                served = await self._everyones(tenant)
                if merge_agent_tokens and served is not None:
                    version = await self._merged(served, version)
                await self._serve_all(tenant, self._pointer(whose).promoted(version))
            return self._told(self._manifests[version])

    async def rollback(self, whose: Audience) -> LearnedModel:
        """Serves what was served before, to all of a tenant or to an agent; damaged versions are passed over.

        Raises:
            FailedPrecondition: there was nothing before, or nothing of it can be served.
        """
        async with self._changing:
            await self.refresh()
            pointer = self._pointer(whose).rolled_back()
            while pointer is not None:
                try:
                    if isinstance(whose, Agent):
                        await self._serve_own(whose, pointer)
                        assigned = await self.model_for(whose)
                    else:
                        await self._serve_all(whose.tenant, pointer)
                        assigned = await self.model_for(Agent(tenant=whose.tenant))
                except FailedPrecondition as error:
                    _log.error("a version is passed over: %s", error.message)
                    pointer = pointer.rolled_back()
                    continue
                found = self._manifests.get(assigned.version)
                if found is None or found.lineage.tenant != whose.tenant:
                    return self._told_of_origin(assigned.model, whose.tenant)
                return self._told(found)
            raise FailedPrecondition("NO_EARLIER_MODEL", "nothing that can be served was served before")

    def _pointer(self, whose: Audience) -> Pointer:
        """What is to be served; nothing of its own to who never had any."""
        return self._all if whose == Everyone() else self._pointers.get(whose, Pointer())

    async def _everyones(self, tenant: str) -> LoadedModel | None:
        """What serves all agents of a tenant; for its own that is damaged, the latest before that is not."""
        if tenant == DEFAULT_TENANT:
            return self._model
        while (version := self._everyones_version(tenant)) is not None:
            try:
                return cast(LoadedModel, await self._cache.get(version, partial(self._load, version)))
            except FailedPrecondition as error:
                _log.error("an earlier version is served: %s", error.message, extra={"version": version})
                self._refused_until[version] = time.monotonic() + _RETRY_S
        return self._origin

    def _everyones_version(self, tenant: str) -> str | None:
        """A tenant's own version that serves all of its agents; None where the model of the settings does."""
        if tenant == DEFAULT_TENANT:
            return None if self._model is None or self._model is self._origin else self._model.version
        pointer = self._pointer(Everyone(tenant))
        for version in (pointer.serving, *pointer.history):
            if version is None or self._refused_until.get(version, 0.0) <= time.monotonic():
                return version
        return None

    async def _has(self, tenant: str, version: str) -> bool:
        """Whether a tenant has a version, whole or not. One that names no tenant is the default one's."""
        if not self._store.has(version):
            return False
        if version not in self._manifests and tenant == DEFAULT_TENANT:
            return True
        found = self._manifests.get(version)
        return found is not None and found.lineage.tenant == tenant

    async def _serve_all(self, tenant: str, pointer: Pointer) -> None:
        """Loads what a pointer is at, makes it durable, and serves it to all agents of a tenant."""
        version = pointer.serving
        if version is None:
            model = self._origin
        elif tenant != DEFAULT_TENANT:
            model = cast(LoadedModel, await self._cache.get(version, partial(self._load, version)))
            self._refused_until.pop(version, None)
        elif self._model is None or self._model.version != version:
            model = await self._load(version)
        else:
            model = self._model
        if model is None:
            raise FailedPrecondition("NOT_CONFIGURED", self._no_model)
        await self._pool.run(self._store.set_pointer, Everyone(tenant), pointer)
        if tenant == DEFAULT_TENANT:
            self._all, self._model = pointer, model
        else:
            self._pointers = {**self._pointers, Everyone(tenant): pointer}
        _log.info(
            "another model serves all agents", extra={"ragmesh.tenant": tenant, "version": model.version}
        )

    async def _serve_own(self, agent: Agent, pointer: Pointer) -> None:
        """The same for an agent's own."""
        if pointer.serving is not None:
            manifest = await self._manifest(pointer.serving)
            base = manifest.lineage.base
            served = await self._everyones(agent.tenant)
            if base and (served is None or served.version != base):
                raise FailedPrecondition(
                    "BASE_NOT_SERVED",
                    f"version {pointer.serving} changes version {base}, which does not serve all agents now",
                )
            await self._load_own(manifest)
            self._refused_until.pop(pointer.serving, None)
        await self._pool.run(self._store.set_pointer, agent, pointer)
        self._pointers = {**self._pointers, agent: pointer}

    async def _own_model(self, version: str) -> Assigned | None:
        """What scores for an agent with a version of its own; None if that cannot be used now."""
        if self._refused_until.get(version, 0.0) > time.monotonic():
            return None
        try:
            return await self._load_own(await self._manifest(version))
        except FailedPrecondition as error:
            _log.error("an agent gets what all get: %s", error.message, extra={"version": version})
            self._refused_until[version] = time.monotonic() + _RETRY_S
            return None

    async def _load_own(self, manifest: Manifest) -> Assigned | None:
        version = manifest.version
        if manifest.lineage.kind is Kind.FULL:
            return Assigned(cast(LoadedModel, await self._cache.get(version, partial(self._load, version))))
        base = await self._everyones(manifest.lineage.tenant)
        if base is None or base.version != manifest.lineage.base:
            return None
        adapter = await self._cache.get(version, lambda: self._load_adapter(version, base))
        return Assigned(base, adapter)

    async def _load(self, version: str) -> LoadedModel:
        loader = await self._loaded_loader()
        tenant = (await self._manifest(version)).lineage.tenant
        agents = [one for one in await self._agents() if one.tenant == tenant]
        model: LoadedModel = await self._pool.run(self._load_now, loader, version, agents)
        return model

    def _load_now(self, loader: ModelLoader, version: str, agents: Sequence[Agent]) -> LoadedModel:
        with _refused(version):
            folder, manifest = self._store.verified(version)
            if manifest.lineage.kind is not Kind.FULL:
                raise ManifestError("it is an adapter")
            model = loader.full(
                folder, version, provenance=manifest.lineage.provenance, created_at=manifest.created_at
            )
            _probe(model)
            model.add_agents(agents)
            return model

    async def _load_adapter(self, version: str, base: LoadedModel) -> Adapter:
        loader = await self._loaded_loader()
        adapter: Adapter = await self._pool.run(self._load_adapter_now, loader, version, base)
        return adapter

    def _load_adapter_now(self, loader: ModelLoader, version: str, base: LoadedModel) -> Adapter:
        with _refused(version):
            folder, _ = self._store.verified(version)
            return loader.adapter(folder, version, base)

    async def _merged(self, served: LoadedModel, version: str) -> str:
        """A version with the tokens that the served one has and it lacks; itself if it lacks none."""
        loader = await self._loaded_loader()
        merged: str = await self._pool.run(self._merge_now, loader, served, version)
        await self.refresh()
        return merged

    def _merge_now(self, loader: ModelLoader, served: LoadedModel, version: str) -> str:
        with _refused(version):
            folder, manifest = self._store.verified(version)
            provenance = f"{version} with agents' tokens of {served.version}"
            with (
                contextlib.suppress(_NothingLackingError),
                self._store.write(
                    Lineage(
                        provenance,
                        parent=version,
                        metrics=manifest.lineage.metrics,
                        tenant=manifest.lineage.tenant,
                    )
                ) as draft,
            ):
                draft.tokens = loader.merge_tokens(served, folder, draft.folder)
                if not draft.tokens:
                    raise _NothingLackingError
            return draft.version or version

    async def _agents(self) -> Sequence[Agent]:
        """The registered agents; as last known while the registry is away, so that serving goes on."""
        with contextlib.suppress(Unavailable):
            self._known_agents = list(await self._registered())
        return self._known_agents

    async def _loaded_loader(self) -> ModelLoader:
        if self._loader is None:
            self._loader = await self._make_loader()
        return self._loader

    async def _manifest(self, version: str) -> Manifest:
        if version not in self._manifests:
            with _refused(version):
                self._manifests[version] = await self._pool.run(self._store.manifest, version)
        return self._manifests[version]

    async def _poll(self, changed: int) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            async with self._changing:
                now = await self._pool.run(self._store.pointers_changed_ns)
                if now != changed:
                    changed = now
                    await self._follow_pointers()
                if self._keep_versions is not None and time.monotonic() >= self._prune_at:
                    self._prune_at = time.monotonic() + _PRUNE_S
                    await self._prune(self._keep_versions)

    async def _prune(self, keep: int) -> None:
        """Removes versions that nothing needs; within this process nothing is promoted meanwhile."""
        in_memory = [] if self._model is None else [self._model.version]
        try:
            removed = await self._pool.run(partial(prune, self._store, keep=keep, in_memory=in_memory))
        except OSError as error:
            _log.error("versions cannot be removed: %s", error)
            return
        if removed:
            _log.info("versions were removed", extra={"versions": removed})
            await self.refresh()

    async def _follow_pointers(self) -> None:
        """Serves what the pointer files say; whoever wrote them made sure that it can be."""
        self._pointers, _ = await self._pool.run(self._store.pointers)  # others get what all get
        try:
            pointer = await self._pool.run(self._store.pointer, Everyone())
        except ManifestError as error:
            self._unreadable = True
            self._failures += 1
            _log.error("what served all agents is not known: %s", error)
            return
        self._unreadable = False
        if pointer == self._all:
            return
        self._all = pointer
        for version in (pointer.serving, *pointer.history):
            try:
                if version is None:
                    self._model = self._origin or self._model
                elif self._model is None or self._model.version != version:
                    self._model = await self._load(version)
            except MeshError as error:
                self._failures += 1
                _log.error("an earlier version is served: %s", error.message, extra={"version": version})
                continue
            if self._model is not None:
                return

    def _told(self, manifest: Manifest) -> LearnedModel:
        lineage = manifest.lineage
        served = self._everyones_version(lineage.tenant)
        if served is None and self._origin is not None:
            served = self._origin.version
        if lineage.agent is None:
            serving = manifest.version == served
        else:
            own = self._pointer(lineage.agent).serving == manifest.version
            serving = own and (lineage.kind is Kind.FULL or lineage.base == served)
        return LearnedModel(
            version=manifest.version,
            serving=serving,
            created_at=manifest.created_at,
            provenance=lineage.provenance,
            parent_version=lineage.parent,
            metrics={name: value for name, value in lineage.metrics.items() if value is not None},
            agent=lineage.agent,
            base_version=lineage.base,
            size_bytes=manifest.size,
            agent_tokens=manifest.tokens,
        )

    def _told_of_origin(self, origin: LoadedModel, tenant: str) -> LearnedModel:
        return LearnedModel(
            version=origin.version,
            serving=self._everyones_version(tenant) is None,
            created_at=origin.created_at,
            provenance=origin.provenance,
            size_bytes=origin.size,
            agent_tokens=tuple(sorted(self._shown_tokens(origin, tenant))),
        )

    def _shown_tokens(self, origin: LoadedModel, tenant: str) -> frozenset[str]:
        """Tokens of the model of the settings, less those of other tenants' agents, which share it."""
        mine = {token for one in self._known_agents if one.tenant == tenant for token in agent_tokens(one)}
        return frozenset(origin.agent_tokens) & (self._origin_tokens | mine)


class _NothingLackingError(Exception):
    """A version has all tokens already."""


def _probe(model: LoadedModel) -> None:
    """That it computes numbers, before anyone waits for them."""
    score = model.probabilities(model.rows("a", ["b"], Agent()), [None])[0]
    if not math.isfinite(score):
        raise ManifestError("its scores are no numbers")


@contextmanager
def _refused(version: str) -> Iterator[None]:
    """Says of which version it is that it cannot be served."""
    try:
        yield
    except ManifestError as error:
        raise FailedPrecondition("DAMAGED_MODEL", f"version {version} cannot be served: {error}") from error
    except ModelError as error:
        # What a loader says names the folder, which is nobody's business.
        said = re.sub(r"\S*/\S*", "it", str(error))
        raise FailedPrecondition("DAMAGED_MODEL", f"version {version} cannot be served: {said}") from error
