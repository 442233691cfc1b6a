"""A run's folder: held by one process, made of one set of settings, its outcome kept as a version."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from meshkit import models
from raglab.files.agent_runs import AgentRunRecord
from services.reranker.models import tokens
from services.reranker.models.manifest import Lineage
from services.reranker.models.store import ModelStore
from services.reranker.training import start
from services.reranker.training.evidence import Evidence
from services.reranker.training.plan import Plan, PlanError
from services.reranker.training.recipe import Recipe

EVIDENCE: Final = "evidence.db"


@contextmanager
def held(folder: Path, plan: Plan, recipe: Recipe, *, begin: str, seed: int) -> Iterator[Evidence]:
    """What was found out in a run's folder, which no other process works on meanwhile.

    Args:
        folder: made if it is not there.
        plan: agents and tasks.
        recipe: how is learned.
        begin: model to begin with, see :func:`services.reranker.training.start.start`.
        seed: of everything that is drawn.

    Raises:
        PlanError: another process works on it, or it was begun with something else; all of it is named.
        ModelError: there is no such model to begin with.
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
            raise PlanError([f"{folder}: another process works on it"]) from None
        with Evidence(folder / EVIDENCE) as evidence:
            problems: list[str] = []
            for name, value in _settings(plan, recipe, begin, seed).items():
                try:
                    evidence.fact(name, value)
                except PlanError as error:
                    problems.extend(error.problems)
            if problems:
                raise PlanError(problems)
            yield evidence


def keep(store: ModelStore, folder: Path, lineage: Lineage) -> str:
    """Makes a model's folder a version of a store, and returns its name.

    Raises:
        ManifestError: the folder holds nothing.
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
    """Mean utility by agent, and their mean as ``macro``; queries without an answer are left out, and so are
    agents that have no others."""
    found: dict[str, list[float]] = {}
    for one in records:
        if one.utility is not None:
            found.setdefault(one.agent, []).append(one.utility)
    means = {agent: sum(values) / len(values) for agent, values in found.items()}
    return {**means, "macro": sum(means.values()) / len(means)} if means else {}


def _settings(plan: Plan, recipe: Recipe, begin: str, seed: int) -> Mapping[str, str]:
    tasks = json.dumps([[one.id, one.asked_of, one.question, one.answers, one.split] for one in plan.tasks])
    begun = begin
    if begin != start.FRESH:
        begun = f"{begin}@{models.version(models.locate(begin, allow_download=False))}"
    return {
        "agents": json.dumps([one.model_dump(mode="json") for one in plan.agents]),
        "collection": plan.collection,
        "tasks": hashlib.sha256(tasks.encode()).hexdigest(),
        "recipe": recipe.model_dump_json(exclude={"about", "name"}),
        "start": begun,
        "seed": str(seed),
    }
