"""The folder of a run: one process at a time uses it, with one set of settings."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from evenmesh_kit.compute import model_files as models
from evenmesh_lab.files.agent_runs import AgentRunRecord
from evenmesh_reranker.models import tokens
from evenmesh_reranker.models.manifest import Lineage
from evenmesh_reranker.models.ports import VersionStore
from evenmesh_training.ium import start
from evenmesh_training.ium.plan import AgentTable, AgentTasks, PlanError
from evenmesh_training.ium.recipe import IumRecipe
from evenmesh_training.ium.result_cache import ResultCache

RESULTS: Final = "evidence.db"


@contextmanager
def open_run(
    folder: Path, plan: AgentTasks, recipe: IumRecipe, *, begin: str, seed: int
) -> Iterator[ResultCache]:
    """Yield the results in a run's folder, and keep other processes out of it meanwhile.

    Args:
        folder: made if it is missing.
        plan: agents and tasks.
        recipe: settings of training.
        begin: model to start from, see :func:`evenmesh_training.ium.start.start`.
        seed: of everything random.

    Raises:
        PlanError: another process uses it, or it was begun with other settings; the error names all of them.
        ModelError: there is no such model to start from.
        OSError: the folder cannot be written.
    """
    import fcntl  # not on Windows, where services do not run

    if folder.exists() and not folder.is_dir():
        raise PlanError([f"{folder} is a file; --output names a folder"])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PlanError([f"{folder}: another process uses it"]) from None
        with ResultCache(folder / RESULTS) as cache:
            problems: list[str] = []
            for name, value in _settings(plan, recipe, begin, seed).items():
                try:
                    cache.fact(name, value)
                except PlanError as error:
                    problems.extend(error.problems)
            if problems:
                raise PlanError(problems)
            yield cache


def store_version(store: VersionStore, folder: Path, lineage: Lineage) -> str:
    """Copy a model's folder into a store as a version, and return the version's name.

    Raises:
        ManifestError: the folder is empty.
        OSError: the disk.
    """
    tokenizer, _ = start.load(folder)
    with store.write(lineage) as draft:
        for path in folder.iterdir():
            if path.is_file():
                shutil.copyfile(path, draft.folder / path.name)
        draft.tokens = tokens.present(tokenizer)
    return draft.version


def averages(records: Sequence[AgentRunRecord]) -> Mapping[str, float]:
    """Return the mean utility by agent, and the mean of these as ``macro``.

    Queries without an answer are left out, and so are agents that have no others.
    """
    found: dict[str, list[float]] = {}
    for one in records:
        if one.utility is not None:
            found.setdefault(one.agent, []).append(one.utility)
    means = {agent: sum(values) / len(values) for agent, values in found.items()}
    return {**means, "macro": sum(means.values()) / len(means)} if means else {}


def _settings(plan: AgentTasks, recipe: IumRecipe, begin: str, seed: int) -> Mapping[str, str]:
    tasks = json.dumps([[one.id, one.asked_of, one.question, one.answers, one.split] for one in plan.tasks])
    begun = begin
    if begin != start.FRESH:
        begun = f"{begin}@{models.version(start.locate(begin))}"
    return {
        "agents": json.dumps([_dumped(one) for one in plan.agents]),
        "collection": plan.collection,
        "tasks": hashlib.sha256(tasks.encode()).hexdigest(),
        "recipe": recipe.model_dump_json(exclude={"about", "name"}),
        "start": begun,
        "seed": str(seed),
    }


def _dumped(agent: AgentTable) -> dict[str, object]:
    # Runs from before there were functions go on.
    return agent.model_dump(mode="json", exclude=None if agent.function else {"function"})
