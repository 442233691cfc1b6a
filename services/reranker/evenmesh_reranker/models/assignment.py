"""Which model serves whom: the rule that the reranker and the online trainer share.

All agents of a tenant get the promoted version. If it is damaged or cannot be read now, they get the latest
version served before it that is neither; after the last of these, the default model. An agent with its own
version gets that instead, unless it is damaged, cannot be read now or is an adapter of another version than
the one all agents get.

Damaged is what the files on disk say, also of a version that is in memory: a process that serves looks at
them again when they change, so that it and the trainer, which reads them anew, agree.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from evenmesh.wire.errors import FailedPrecondition, Unavailable
from evenmesh_kit.compute.model_files import ModelError
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.models.manifest import Kind, Manifest, ManifestError, StoreAwayError
from evenmesh_reranker.models.ports import VersionStore
from evenmesh_reranker.models.store import Pointer
from evenmesh_reranker.ports import Adapter, LoadedModel, ModelLoader

M = TypeVar("M")
Loaded = TypeVar("Loaded", bound=LoadedModel)
A = TypeVar("A", bound=Adapter)

_log = logging.getLogger("evenmesh.reranker.models")


async def model_of_all(
    pointer: Pointer,
    load: Callable[[str | None], Awaitable[M | None]],
    *,
    skipped: Callable[[str | None], None] = lambda _: None,
) -> M | None:
    """Return the model that serves all agents of a tenant; None if there is none.

    Args:
        pointer: what was promoted for them.
        load: loads a version, or the default model for None. It returns None to continue silently.
        skipped: called with each version that is damaged or cannot be read now; the log names it too.
    """
    for version in dict.fromkeys((pointer.serving, *pointer.history, None)):
        try:
            model = await load(version)
        except (FailedPrecondition, Unavailable) as error:
            _log.error("an earlier version serves: %s", error.message, extra={"version": version})
            skipped(version)
            continue
        if model is not None:
            return model
    return None


async def model_of_agent(
    pointer: Pointer,
    load: Callable[[str], Awaitable[M | None]],
    *,
    skipped: Callable[[str], None] = lambda _: None,
) -> M | None:
    """Return what an agent's own version loads as; None if the agent gets what all agents get.

    Args:
        pointer: what was promoted for the agent.
        load: loads a version; None if it does not apply, see :meth:`Lineage.applies_to`.
        skipped: called with a version that is damaged or cannot be read now; the log names it too.
    """
    version = pointer.serving
    if version is None:
        return None
    try:
        return await load(version)
    except (FailedPrecondition, Unavailable) as error:
        _log.error("the agent gets what all agents get: %s", error.message, extra={"version": version})
        skipped(version)
        return None


class VersionLoader(Generic[Loaded, A]):
    """Loads verified versions of a store. Its methods take long: call them in a thread.

    Each raises FailedPrecondition if the version is damaged or cannot be loaded, and Unavailable if the store
    does not answer.

    Args:
        store: the versions.
        loader: loads models.
    """

    def __init__(self, store: VersionStore, loader: ModelLoader[Loaded, A]) -> None:
        self._store = store
        self._loader = loader

    def manifest(self, version: str) -> Manifest:
        """Return the manifest of a version."""
        with damage_named(version):
            return self._store.manifest(version)

    def verify(self, version: str) -> None:
        """Compare the files of a version with its manifest."""
        with damage_named(version):
            self._store.verified(version)

    def full(self, version: str, agents: Sequence[Agent] = ()) -> Loaded:
        """Load a whole model, check that it computes numbers, and add tokens of ``agents``."""
        with damage_named(version):
            folder, manifest = self._store.verified(version)
            if manifest.lineage.kind is not Kind.FULL:
                raise ManifestError("it is an adapter")
            provenance = manifest.lineage.provenance
            model = self._loader.full(folder, version, provenance=provenance, created_at=manifest.created_at)
            try:
                score = model.probabilities(model.rows("a", ["b"], Agent()), [None])[0]
            except Exception as error:  # whatever its layers, or its device, make of a pair
                raise ManifestError(f"it cannot score: {type(error).__name__}") from error
            if not math.isfinite(score):
                raise ManifestError("its scores are no numbers")
            model.add_agents(agents)
            return model

    def adapter(self, version: str, base: LoadedModel) -> A:
        """Load an adapter of ``base``."""
        with damage_named(version):
            folder, _ = self._store.verified(version)
            return self._loader.adapter(folder, version, base)


@contextmanager
def damage_named(version: str) -> Iterator[None]:
    """Raise what is wrong with a version's files as FailedPrecondition that names the version.

    What does not answer is Unavailable.
    """
    try:
        yield
    except StoreAwayError as error:
        raise Unavailable("MODELS_AWAY", f"version {version} cannot be read now: {error}") from error
    except OSError as error:
        said = error.strerror or type(error).__name__
        raise Unavailable("MODELS_AWAY", f"version {version} cannot be read now: {said}") from error
    except ManifestError as error:
        raise FailedPrecondition("DAMAGED_MODEL", f"version {version} cannot be served: {error}") from error
    except ModelError as error:
        # The loader's message names a folder of the server, which callers must not see.
        reason = re.sub(r"\S*/\S*", "it", str(error))
        raise FailedPrecondition("DAMAGED_MODEL", f"version {version} cannot be served: {reason}") from error


@contextmanager
def away_named() -> Iterator[None]:
    """Raise that the store does not answer as Unavailable."""
    try:
        yield
    except StoreAwayError as error:
        raise Unavailable("MODELS_AWAY", f"the models cannot be read now: {error}") from error
