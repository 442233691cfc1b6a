"""The model registry of a serving process: promote, roll back, and follow what other processes promote."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Sequence, Set
from datetime import datetime
from functools import partial
from typing import Final, cast

from evenmesh.wire import deadline
from evenmesh.wire.errors import FailedPrecondition, NotFound, Unavailable
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.compute.tasks import cancel
from evenmesh_kit.compute.tenant_places import TenantPlaces
from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_reranker.domain import Agent, AllAgents, LearnedModel, Scope
from evenmesh_reranker.metrics import ServingModel
from evenmesh_reranker.models.assignment import (
    VersionLoader,
    away_named,
    damage_named,
    model_of_agent,
    model_of_all,
)
from evenmesh_reranker.models.cache import LoadingCache
from evenmesh_reranker.models.manifest import Kind, Lineage, Manifest, ManifestError, StoreAwayError
from evenmesh_reranker.models.ports import Pointers, Promotions, VersionStore, WithdrawnError
from evenmesh_reranker.models.retention import prune
from evenmesh_reranker.models.store import Pointer
from evenmesh_reranker.models.token_names import agent_tokens
from evenmesh_reranker.ports import Adapter, Assigned, LoadedModel, ModelLoader

_RETRY_S: Final = 60.0
"""Time before a damaged version is tried again. Seconds."""

_PRUNE_S: Final = 600.0
"""Time between two searches for versions that nothing needs. Seconds."""

_TRIES: Final = 20
"""Most times that a pointer is read again because another process changed it meanwhile."""

_MEANWHILE: Final = "CHANGED_MEANWHILE"

_Change = Callable[[Pointer], Pointer | None]
"""Changes a pointer; returns None for one that it does not expect."""

_log = logging.getLogger("evenmesh.reranker.models")


class ModelRegistry:
    """Serves the versions of a model store, or the default model where none was promoted.

    Promoting verifies and loads a version in a thread while the one before serves; then it replaces the
    pointer; then it serves the version. So after a crash at any point, the next process serves a version
    that was loaded whole. Of two promotions at once, by whichever processes, the later one serves, and
    rolling back returns to the earlier one. All tenants share the default model. A version belongs to one
    tenant: others can neither promote nor list it. The model of all agents of the tenant ``default`` stays in
    memory; versions of other tenants and of single agents are loaded on their first request.

    Args:
        store: the versions.
        promotions: which of them are promoted.
        loader: makes the model loader when the first version is loaded, because a process without models
            should not import torch.
        pool: threads for loading.
        memory_bytes: most memory of the models and adapters loaded on request. Bytes.
        registered: returns the registered agents; each loaded model gets the tokens that it lacks of them.
        no_model: what to do if there is no model at all, for callers.
        poll_s: time between two looks at pointers and agents, which other processes change. Seconds,
            (0, inf).
        keep_versions: versions kept of those served before and of the others, for all agents and for each
            agent; None keeps all, see :mod:`evenmesh_reranker.models.retention`.
    """

    def __init__(
        self,
        store: VersionStore,
        *,
        promotions: Promotions,
        loader: Callable[[], Awaitable[ModelLoader[LoadedModel, Adapter]]],
        pool: ComputePool,
        memory_bytes: int,
        registered: Callable[[], Awaitable[Sequence[Agent]]],
        no_model: str,
        poll_s: float,
        keep_versions: int | None = None,
    ) -> None:
        self._store = store
        self._promotions = promotions
        self._make_loader = loader
        self._loader: ModelLoader[LoadedModel, Adapter] | None = None
        self._pool = pool
        self._registered = registered
        self._no_model = no_model
        self._poll_s = poll_s
        self._keep_versions = keep_versions
        self._prune_at = 0.0
        self._default: LoadedModel | None = None
        self._default_tokens: frozenset[str] = frozenset()
        self._model: LoadedModel | None = None
        self._all = Pointer()
        self._pointers: dict[Scope, Pointer] = {}
        self._manifests: dict[str, Manifest] = {}
        self._cache: LoadingCache[LoadedModel | Adapter] = LoadingCache(memory_bytes)
        self._retry_at: dict[str | None, float] = {}
        # What the files of loaded versions looked like before they were read.
        self._states: dict[str, Hashable | None] = {}
        self._known_agents: list[Agent] = []
        # Those whose tokens are in the next one, by tenant.
        self._read_agents: list[Agent] | None = None
        self._tokens: dict[str, set[str]] = {}
        # Those of them whose tokens all loaded models have.
        self._followed: set[Agent] = set()
        self._promoted_at: datetime | None = None
        self._away = False
        self._unreadable = False
        self._failures = 0
        self._changing = TenantPlaces(1, share=1.0, where="the models")
        self._polling: asyncio.Task[None] | None = None

    async def start(self, default: LoadedModel | None) -> None:
        """Load the version served last, and then follow promotions of other processes.

        Args:
            default: the default model, if the settings name one.

        Raises:
            Unavailable: what is promoted cannot be read.
        """
        self._default = self._model = default
        try:
            await self._pool.run(self._store.tidy)
            await self.refresh()
        except Unavailable as error:
            _log.error("what cannot be read yet is looked for again: %s", error.message)
        # Read before the pointers are followed, so that a change while a model is loaded is seen afterwards.
        seen = await self._promotions.stamp()
        if default is not None:
            self._default_tokens = frozenset(default.agent_tokens)
            await self._pool.run(default.add_agents, await self._agents())
        self._followed = set(self._known_agents)
        await self._follow_pointers()
        self._polling = asyncio.create_task(self._poll(seen))

    async def close(self) -> None:
        """Stop following other processes."""
        await cancel(self._polling)

    @property
    def has_model(self) -> bool:
        """Whether there is a model for all agents of the tenant ``default``."""
        return self._model is not None

    def serving(self) -> ServingModel | None:
        """Return what serves all agents of the tenant ``default``; None without a model. Thread-safe."""
        model = self._model
        if model is None:
            return None
        return ServingModel(model.version, model.created_at, model is not self._default, self._promoted_at)

    @property
    def failures(self) -> int:
        """How often a version promoted for all agents of the tenant ``default`` could not be served."""
        return self._failures

    def stale(self) -> bool:
        """Return whether these agents get another version than the promoted one."""
        wanted, model = self._all.serving, self._model
        return self._unreadable or (wanted is not None and (model is None or model.version != wanted))

    async def model_for(self, agent: Agent) -> Assigned:
        """See :class:`evenmesh_reranker.ports.ModelsOfAgents`."""
        own = await model_of_agent(self._pointer(agent), self._load_own_unless_refused, skipped=self._refuse)
        if own is not None:
            return own
        model = await self._model_of_all(agent.tenant)
        if model is None:
            raise FailedPrecondition("NOT_CONFIGURED", self._no_model)
        return Assigned(model)

    async def knows(self, agent: Agent) -> bool:
        """Return whether the model of all agents of the agent's tenant has tokens of its task and model."""
        model = await self._model_of_all(agent.tenant)
        if model is None or not model.knows(agent):
            return False
        if model is not self._default or agent in self._followed:  # without reading all agents
            return True
        mine = self._tokens_of(agent.tenant)
        return all(token in self._default_tokens or token in mine for token in agent_tokens(agent))

    async def register(self, agent: Agent) -> None:
        """Add tokens for an agent to the served model; its scores stay as they are."""
        async with self._changing.hold(deadline.current()):
            if agent not in self._known_agents:
                self._known_agents = [*self._known_agents, agent]
            self._followed.add(agent)
            served = (await self._model_of_all(agent.tenant), self._default)
            for model in {id(one): one for one in served if one is not None}.values():
                await self._pool.run(model.add_agents, [agent])

    async def refresh(self) -> None:
        """Read which versions there are.

        Raises:
            Unavailable: the store does not answer.
        """
        with away_named():
            self._manifests = await self._pool.run(self._store.manifests, self._manifests)

    def models(self, scope: Scope) -> list[LearnedModel]:
        """Return a tenant's versions and the default model, or the versions of one agent.

        The model that serves all agents comes first, then other served ones, then the rest by age.
        """
        found = [
            self._described(one) for one in self._manifests.values() if one.lineage.tenant == scope.tenant
        ]
        if self._default is not None and self._default.version not in {one.version for one in found}:
            found.append(self._default_described(self._default, scope.tenant))
        if isinstance(scope, Agent):
            found = [one for one in found if one.agent == scope]
        found.sort(key=lambda one: (-one.created_at.timestamp(), one.version))
        return sorted(found, key=lambda one: (not one.serving, one.serving and one.agent is not None))

    async def promote(self, version: str, *, tenant: str, merge_agent_tokens: bool = False) -> LearnedModel:
        """Serve a version to its agent or to all of its tenant; the next request is scored by it.

        Args:
            version: its name.
            tenant: tenant of the caller.
            merge_agent_tokens: of a version for all agents, first make one that also has the agent tokens of
                the served version, and serve that.

        Raises:
            NotFound: the tenant has no such version.
            FailedPrecondition: it is damaged, cannot be loaded, or is an adapter of a model that does not
                serve.
            Unavailable: the versions or what is promoted cannot be read or written now.
        """
        async with self._changing.hold(deadline.current()):
            await self._look_again()
            if not await self._has(tenant, version):
                if self._default is None or version != self._default.version:
                    raise NotFound("version", f"there is no version {version!r}; list the models to see all")
                await self._serve_all(tenant, None, _promoting(None))
                return self._default_described(self._default, tenant)
            scope = (await self._manifest(version)).lineage.scope
            if isinstance(scope, Agent):
                await self._serve_own(scope, version, _promoting(version))
            else:
                served = await self._model_of_all(tenant)
                if merge_agent_tokens and served is not None:
                    loader = await self._model_loader()
                    version = await self._pool.run(self._merged, loader, served, version)
                    await self.refresh()
                await self._serve_all(tenant, version, _promoting(version))
            return self._described(self._manifests[version])

    async def rollback(self, scope: Scope) -> LearnedModel:
        """Serve the previous version, to all of a tenant or to one agent; skip damaged versions.

        Raises:
            FailedPrecondition: nothing was served before, nothing of it can be served, or another process
                changed what serves meanwhile.
            Unavailable: the versions or what is promoted cannot be read or written now.
        """
        async with self._changing.hold(deadline.current()):
            await self._look_again()
            before = self._pointer(scope)
            pointer = before.rolled_back()
            while pointer is not None:
                try:
                    if isinstance(scope, Agent):
                        await self._serve_own(scope, pointer.serving, _from(before, pointer))
                        assigned = await self.model_for(scope)
                    else:
                        await self._serve_all(scope.tenant, pointer.serving, _from(before, pointer))
                        assigned = await self.model_for(Agent(tenant=scope.tenant))
                except (FailedPrecondition, NotFound) as error:
                    if error.reason == _MEANWHILE:
                        raise
                    _log.error("a version is skipped: %s", error.message)
                    before = self._pointer(scope)
                    pointer = pointer.rolled_back()
                    continue
                found = self._manifests.get(assigned.version)
                if found is None or found.lineage.tenant != scope.tenant:
                    return self._default_described(assigned.model, scope.tenant)
                return self._described(found)
            raise FailedPrecondition("NO_EARLIER_MODEL", "there is no earlier version that can be served")

    async def forget(self, agent: Agent) -> int:
        """Serve an agent what all agents get, remove its own versions, and return how many.

        Versions are removed only while all pointers can be read.

        Raises:
            Unavailable: the versions or what is promoted cannot be read or written now.
        """
        async with self._changing.hold(deadline.current()):
            await self._look_again()
            await self._point_at_nothing(agent)
            own = {one.version for one in self._manifests.values() if one.lineage.agent == agent}

            def chosen(now: Pointers) -> list[str]:
                others = {
                    version
                    for scope, pointer in now.items()
                    if scope != agent
                    for version in (pointer.serving, *pointer.history)
                }
                return sorted(own - others)

            removed = 0
            if own:
                # None of them is promoted in the block, nor after it, as there is none then.
                async with self._promotions.withdrawing(chosen) as withdrawn:
                    for version in withdrawn:
                        with away_named():
                            gone = await self._pool.run(self._store.remove, version)
                        removed += gone and version in own
                        self._states.pop(version, None)
                        self._cache.drop(agent.tenant, version)
                await self._point_at_nothing(agent)
                await self.refresh()
            self._known_agents = [one for one in self._known_agents if one != agent]
            self._followed.discard(agent)
            return removed

    async def _point_at_nothing(self, agent: Agent) -> None:
        """Replace an agent's pointer by one to nothing, without history."""
        with contextlib.suppress(ManifestError):
            if await self._promotions.pointer(agent) == Pointer():
                return
        pointer = await self._point(agent, None, lambda _: Pointer())
        self._pointers = {**self._pointers, agent: pointer}

    def _pointer(self, scope: Scope) -> Pointer:
        return self._all if scope == AllAgents() else self._pointers.get(scope, Pointer())

    async def _model_of_all(self, tenant: str) -> LoadedModel | None:
        """Return the model of all agents of a tenant."""
        if tenant == DEFAULT_TENANT:
            return self._model
        pointer = self._pointer(AllAgents(tenant))
        return await model_of_all(pointer, self._load_unless_refused, skipped=self._refuse)

    def _version_of_all(self, tenant: str) -> str | None:
        """Return the version that serves all agents of a tenant; None for the default model."""
        if tenant == DEFAULT_TENANT:
            return None if self._model is None or self._model is self._default else self._model.version
        pointer = self._pointer(AllAgents(tenant))
        return next((one for one in (pointer.serving, *pointer.history) if not self._is_refused(one)), None)

    async def _has(self, tenant: str, version: str) -> bool:
        """Return whether a tenant has a version; a damaged one without a tenant is the default tenant's."""
        with away_named():
            if not await self._pool.run(self._store.has, version):
                return False
        found = self._manifests.get(version)
        return tenant == (DEFAULT_TENANT if found is None else found.lineage.tenant)

    async def _serve_all(self, tenant: str, version: str | None, change: _Change) -> None:
        """Load a version, point to it, and serve it to all agents of a tenant."""
        if version is None:
            model = self._default
        elif tenant != DEFAULT_TENANT:
            model = await self._load_cached(version)
        else:
            model = await self._load_for_default_tenant(version)
        if model is None:
            raise FailedPrecondition("NOT_CONFIGURED", self._no_model)
        self._retry_at.pop(version, None)
        pointer = await self._point(AllAgents(tenant), version, change)
        if tenant == DEFAULT_TENANT:
            self._all, self._model = pointer, model
            self._promoted_at = await self._promotions.changed_at(AllAgents())
        else:
            self._pointers = {**self._pointers, AllAgents(tenant): pointer}
        fields = {"evenmesh.tenant": tenant, "version": model.version}
        _log.info("another model serves all agents", extra=fields)

    async def _serve_own(self, agent: Agent, version: str | None, change: _Change) -> None:
        """Do the same for one agent."""
        if version is not None:
            if await self._load_own(version) is None:
                base = (await self._manifest(version)).lineage.base
                raise FailedPrecondition(
                    "BASE_NOT_SERVED",
                    f"version {version} changes version {base}, which does not serve all agents now",
                )
            self._retry_at.pop(version, None)
        pointer = await self._point(agent, version, change)
        self._pointers = {**self._pointers, agent: pointer}

    async def _point(self, scope: Scope, version: str | None, change: _Change) -> Pointer:
        """Change the pointer of a scope, which other processes change too, to one that has ``version``."""
        gone = NotFound("version", f"version {version!r} was removed, as nothing needed it")
        for _ in range(_TRIES):
            try:
                before = await self._promotions.pointer(scope)
            except ManifestError:
                before = self._pointer(scope)  # what cannot be understood is replaced
            after = change(before)
            if after is None:
                break
            try:
                if not await self._promotions.replace(scope, before, after):
                    continue
            except WithdrawnError:
                raise gone from None
            if version is not None and not await self._is_there(version):
                # It was removed before anybody could know that it is needed.
                await self._promotions.replace(scope, after, before)
                raise gone
            return after
        raise FailedPrecondition(
            _MEANWHILE, "another process changed what serves meanwhile: look at the models, and try again"
        )

    async def _is_there(self, version: str) -> bool:
        try:
            return await self._pool.run(self._store.has, version)
        except StoreAwayError:
            return True  # it was a moment ago, when it was loaded

    def _refuse(self, version: str | None) -> None:
        self._retry_at[version] = time.monotonic() + _RETRY_S

    def _is_refused(self, version: str | None) -> bool:
        return self._retry_at.get(version, 0.0) > time.monotonic()

    async def _load_unless_refused(self, version: str | None) -> LoadedModel | None:
        if version is None:
            return self._default
        return None if self._is_refused(version) else await self._load_cached(version)

    async def _load_own_unless_refused(self, version: str) -> Assigned | None:
        return None if self._is_refused(version) else await self._load_own(version)

    async def _load_for_default_tenant(self, version: str | None) -> LoadedModel | None:
        if version is None:
            return self._default
        served = self._model
        if served is not None and served.version == version and not self._is_refused(version):
            return served
        return await self._load(version)

    async def _load_own(self, version: str) -> Assigned | None:
        """Load an agent's version; None for an adapter of another version than the one all agents get."""
        lineage = (await self._manifest(version)).lineage
        if lineage.kind is Kind.FULL:
            return Assigned(await self._load_cached(version))
        base = await self._model_of_all(lineage.tenant)
        if base is None or not lineage.applies_to(base.version):
            return None
        load = partial(self._load_adapter, version, base)
        return Assigned(base, cast(Adapter, await self._cache.get(lineage.tenant, version, load)))

    async def _load_cached(self, version: str) -> LoadedModel:
        tenant = (await self._manifest(version)).lineage.tenant
        return cast(LoadedModel, await self._cache.get(tenant, version, partial(self._load, version)))

    async def _load(self, version: str) -> LoadedModel:
        loading = VersionLoader(self._store, await self._model_loader())
        self._states[version] = await self._pool.run(self._store.state, version)
        tenant = (await self._manifest(version)).lineage.tenant
        agents = [one for one in await self._agents() if one.tenant == tenant]
        return await self._pool.run(loading.full, version, agents)

    async def _load_adapter(self, version: str, base: LoadedModel) -> Adapter:
        loading = VersionLoader(self._store, await self._model_loader())
        self._states[version] = await self._pool.run(self._store.state, version)
        return await self._pool.run(loading.adapter, version, base)

    def _merged(self, loader: ModelLoader[LoadedModel, Adapter], served: LoadedModel, version: str) -> str:
        """Return a version with the agent tokens of ``served`` that a version lacks; itself if it has all."""
        with damage_named(version):
            folder, manifest = self._store.verified(version)
            lineage = Lineage(
                f"{version} with agents' tokens of {served.version}",
                parent=version,
                metrics=manifest.lineage.metrics,
                tenant=manifest.lineage.tenant,
            )
            with contextlib.suppress(_NothingLackingError), self._store.write(lineage) as draft:
                draft.tokens = loader.merge_tokens(served, folder, draft.folder)
                if not draft.tokens:
                    raise _NothingLackingError
            return draft.version or version

    async def _look_again(self) -> None:
        """Read which versions there are and what is promoted now, which other processes change."""
        await self.refresh()
        await self._follow_pointers()

    async def _agents(self) -> Sequence[Agent]:
        """Return the registered agents; the last known ones while their store is away."""
        with contextlib.suppress(Unavailable):
            self._known_agents = list(await self._registered())
        return self._known_agents

    async def _model_loader(self) -> ModelLoader[LoadedModel, Adapter]:
        if self._loader is None:
            self._loader = await self._make_loader()
        return self._loader

    async def _manifest(self, version: str) -> Manifest:
        if version not in self._manifests:
            with damage_named(version):
                self._manifests[version] = await self._pool.run(self._store.manifest, version)
        return self._manifests[version]

    async def _poll(self, seen: Hashable) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            async with self._changing.hold(deadline.current()):
                try:
                    seen = await self._look(seen)
                except Exception:  # noqa: BLE001 - this task must not end: an old version would serve on
                    _log.exception("what was promoted is looked for again later")

    async def _look(self, seen: Hashable) -> Hashable:
        """Follow other processes, and remove versions that are damaged or that nothing needs.

        Return what is seen now, as :meth:`_follow` does.
        """
        try:
            seen = await self._follow(seen)
            self._away = False
        except (Unavailable, ManifestError, OSError) as error:
            if not self._away:
                why = error.message if isinstance(error, Unavailable) else str(error)
                _log.warning("promotions are followed again later: %s", why)
            self._away = True
        await self._drop_damaged()
        if self._keep_versions is not None and time.monotonic() >= self._prune_at:
            self._prune_at = time.monotonic() + _PRUNE_S
            await self._prune(self._keep_versions)
        return seen

    async def _follow(self, seen: Hashable) -> Hashable:
        """Serve what other processes promoted since ``seen``, for the agents that they registered.

        Return what is seen now.
        """
        now = await self._promotions.stamp()
        if now != seen:
            await self._follow_pointers()
        elif self.stale() and not self._unreadable and not self._is_refused(self._all.serving):
            # What could not be loaded may be there by now, such as where its file system was away.
            await self._find_model()
        await self._follow_agents()
        return now

    async def _follow_agents(self) -> None:
        """Add tokens of agents that were registered with other processes to the loaded models."""
        lacking: dict[str, list[Agent]] = {}
        for agent in await self._agents():
            if agent not in self._followed:
                lacking.setdefault(agent.tenant, []).append(agent)
        for tenant, agents in lacking.items():
            model = self._model
            if tenant != DEFAULT_TENANT:
                version = self._version_of_all(tenant)
                held = None if version is None else await self._cache.peek(tenant, version)
                model = self._default if held is None else cast(LoadedModel, held)
            for one in {id(one): one for one in (model, self._default) if one is not None}.values():
                await self._pool.run(one.add_agents, agents)
            self._followed.update(agents)

    async def _drop_damaged(self) -> None:
        """Serve no version any more whose files were damaged since it was loaded."""
        for version, before in tuple(self._states.items()):
            if not self._is_loaded(version):
                del self._states[version]
                continue
            now = await self._pool.run(self._store.state, version)
            if now is None or now == before:
                continue
            self._states[version] = now
            try:
                await self._pool.run(VersionLoader(self._store, await self._model_loader()).verify, version)
            except Unavailable:
                self._states[version] = before  # it is looked at again
            except FailedPrecondition as error:
                if now:  # else it was removed, as nothing needs it
                    _log.error("is served no more: %s", error.message, extra={"version": version})
                self._states.pop(version, None)
                self._cache.drop(self._tenant_of(version), version)
                self._refuse(version)
                if self._model is not None and self._model.version == version:
                    await self._find_model()

    def _is_loaded(self, version: str) -> bool:
        served = self._model is not None and self._model.version == version
        return served or self._cache.holds(self._tenant_of(version), version)

    def _tenant_of(self, version: str) -> str:
        manifest = self._manifests.get(version)
        return DEFAULT_TENANT if manifest is None else manifest.lineage.tenant

    async def _find_model(self) -> None:
        """Serve what the pointer of the tenant ``default`` says to all its agents."""
        found = await model_of_all(self._all, self._load_for_default_tenant, skipped=self._count_failure)
        self._model = found or self._model

    async def _prune(self, keep: int) -> None:
        """Remove versions that nothing needs."""
        tenants = {scope.tenant for scope in self._pointers}
        served = {self._version_of_all(tenant) for tenant in tenants} | {self._version_of_all(DEFAULT_TENANT)}
        try:
            removed = await prune(
                self._store,
                self._promotions,
                keep=keep,
                in_memory=[version for version in served if version is not None],
                run=self._pool.run,
            )
            if removed:
                _log.info("versions were removed", extra={"versions": removed})
                await self.refresh()
        except (Unavailable, ManifestError, OSError) as error:
            why = error.message if isinstance(error, Unavailable) else str(error)
            _log.error("versions cannot be removed: %s", why)

    async def _follow_pointers(self) -> None:
        """Serve what the pointers say."""
        # An agent or tenant whose pointer is damaged gets what all agents get.
        found, _ = await self._promotions.pointers()
        self._pointers = dict(found)
        self._promoted_at = await self._promotions.changed_at(AllAgents())
        try:
            pointer = await self._promotions.pointer(AllAgents())
        except ManifestError as error:
            self._unreadable = True
            self._failures += 1
            _log.error("the version promoted for all agents is not known: %s", error)
            return
        self._unreadable = False
        if pointer != self._all:
            self._all = pointer
            await self._find_model()

    def _count_failure(self, version: str | None) -> None:
        self._failures += 1
        self._refuse(version)

    def _described(self, manifest: Manifest) -> LearnedModel:
        lineage = manifest.lineage
        served = self._version_of_all(lineage.tenant)
        if served is None and self._default is not None:
            served = self._default.version
        if lineage.agent is None:
            serving = manifest.version == served
        else:
            own = self._pointer(lineage.agent).serving == manifest.version
            serving = own and lineage.applies_to(served) and not self._is_refused(manifest.version)
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

    def _default_described(self, default: LoadedModel, tenant: str) -> LearnedModel:
        return LearnedModel(
            version=default.version,
            serving=self._version_of_all(tenant) is None,
            created_at=default.created_at,
            provenance=default.provenance,
            size_bytes=default.size,
            agent_tokens=tuple(sorted(self._visible_tokens(default, tenant))),
        )

    def _visible_tokens(self, default: LoadedModel, tenant: str) -> frozenset[str]:
        """Return tokens of the default model without those of other tenants' agents."""
        return frozenset(default.agent_tokens) & (self._default_tokens | self._tokens_of(tenant))

    def _tokens_of(self, tenant: str) -> Set[str]:
        """Return the tokens of a tenant's registered agents; all agents are read once after each change."""
        if self._read_agents is not self._known_agents:
            self._read_agents = self._known_agents
            self._tokens = defaultdict(set)
            for agent in self._read_agents:
                self._tokens[agent.tenant] |= agent_tokens(agent)
        return self._tokens.get(tenant, frozenset())


def _promoting(version: str | None) -> _Change:
    """Return the change that promotes a version, whatever serves."""
    return lambda pointer: pointer.promoted(version)


def _from(before: Pointer, after: Pointer) -> _Change:
    """Return the change from one pointer to another, for no other."""
    return lambda pointer: after if pointer == before else None


class _NothingLackingError(Exception):
    """Raised to discard a draft that would add no token."""
