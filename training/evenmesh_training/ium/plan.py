"""Agents that the reranker learns from, and their tasks, from a file ``AGENTS.toml``."""

from __future__ import annotations

import gzip
import json
import tomllib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evenmesh_core.text_metrics import accuracy, answer_recall, exact_match, token_f1
from evenmesh_reranker.domain import Agent
from evenmesh_training.toml_faults import faults_of


def _label_accuracy(answer: str, references: Sequence[str]) -> float:
    """Return the accuracy without regard to case: small models often write no capitals."""
    return accuracy(answer.casefold(), [one.casefold() for one in references])


ANSWER_RECALL: Final = "answer-recall"
_UTILITIES: Final = {
    "exact-match": exact_match,
    "accuracy": _label_accuracy,
    "token-f1": token_f1,
    ANSWER_RECALL: answer_recall,
}

M = TypeVar("M", bound=BaseModel)

TRAIN: Final = "train"
_SHOWN: Final = 20
"""Problems of one kind that are named."""


class PlanError(ValueError):
    """Raised when agents, tasks or settings cannot be used.

    Attributes:
        problems: all problems, a line each.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AgentTable(_Table):
    """One agent, ``[[agent]]``.

    ``model`` is the generator's name of the model that answers; ``augmentation`` and ``template`` say how it
    reads passages (empty: the model's default). Or ``function``, ``module:name``, is Python of your own that
    answers; see :mod:`evenmesh_training.ium.functions`. ``tasks`` names its tasks, as in the field ``agent``
    of the tasks file; its task id by default. ``utility`` measures an answer. Agents of one ``dataset`` share
    a model in the baseline per data set; the task id by default. ``passages`` is the number it is served,
    [1, 100].
    """

    task_id: Annotated[str, Field(min_length=1)]
    model_id: Annotated[str, Field(min_length=1)]
    model: str = ""
    function: Annotated[str, Field(pattern=r"^([\w.]+:\w+)?$")] = ""
    augmentation: Literal["fid", "in-prompt", ""] = ""
    template: str = ""
    utility: Literal["exact-match", "accuracy", "token-f1", "answer-recall"] = "exact-match"
    dataset: str = ""
    tasks: tuple[str, ...] = ()
    passages: Annotated[int, Field(ge=1, le=100)] = 5

    @property
    def agent(self) -> Agent:
        """Its ids."""
        return Agent(self.task_id, self.model_id)

    @property
    def problems(self) -> list[str]:
        """What of its fields does not go together, a line each."""
        found = []
        if bool(self.model) == bool(self.function):
            found.append(f"{self.name} needs a model or a function, and not both")
        if self.function and (self.augmentation or self.template):
            found.append(
                f"{self.name}: augmentation and template are of models; a function reads passages itself"
            )
        return found

    @property
    def name(self) -> str:
        """Its ids for messages."""
        return f"{self.task_id}/{self.model_id}"

    @property
    def group(self) -> str:
        """Its data set."""
        return self.dataset or self.task_id

    @property
    def asked(self) -> tuple[str, ...]:
        """Names of its tasks."""
        return self.tasks or (self.task_id,)

    @property
    def writer(self) -> str:
        """Key of its answers: agents with equal keys give equal answers from equal passages."""
        named = [self.model, self.augmentation, self.template]
        return json.dumps([self.function] if self.function else named)

    def utility_of(self, answer: str, references: Sequence[str]) -> float:
        """Return the utility of an answer, [0, 1]."""
        return float(_UTILITIES[self.utility](answer, list(references)))


class DataTable(_Table):
    """``[data]``: the tasks file, relative to the agents file, and the collection of the mesh."""

    tasks: Annotated[str, Field(min_length=1)]
    collection: Annotated[str, Field(min_length=1)]


class _File(_Table):
    data: DataTable
    agent: Annotated[tuple[AgentTable, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Task:
    """A question and its answers.

    Attributes:
        id: its id.
        asked_of: the field ``agent`` of the file.
        question: the question.
        answers: acceptable answers.
        split: ``train``, ``dev`` or ``test``.
    """

    id: str
    asked_of: str
    question: str
    answers: tuple[str, ...]
    split: str


@dataclass(frozen=True)
class AgentTasks:
    """Agents and tasks.

    Attributes:
        agents: the agents.
        collection: collection of the passages.
        tasks: tasks of these agents, in the order of the file.
    """

    agents: tuple[AgentTable, ...]
    collection: str
    tasks: tuple[Task, ...]

    def of(self, agent: AgentTable, split: str, most: int = 0) -> list[Task]:
        """Return the first ``most`` tasks of an agent in a split; 0: all."""
        found = [one for one in self.tasks if one.split == split and one.asked_of in agent.asked]
        return found[:most] if most else found

    def without(self, split: str) -> list[str]:
        """Return a line for each agent that has no task of a split."""
        return [
            f"{one.name} has no task of the split {split}" for one in self.agents if not self.of(one, split)
        ]


def parse(kind: type[M], text: str, source: str) -> M:
    """Return the TOML text as a model; ``source`` names it in errors.

    Raises:
        PlanError: it is malformed; the error names all fields.
    """
    try:
        return kind.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise PlanError([f"{source} is not TOML: {error}"]) from None
    except ValidationError as error:
        raise PlanError([f"{source}: {fault}" for fault in faults_of(error, "file")]) from None


def load(path: Path) -> AgentTasks:
    """Read a plan and its tasks.

    Raises:
        PlanError: it cannot be read or used; the error names all problems at once.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PlanError([f"{path}: {error.strerror}"]) from None
    read = parse(_File, text, str(path))
    names = [one.name for one in read.agent]
    problems = [
        f"{path}: the agent {name} is there twice" for name in sorted(set(names)) if names.count(name) > 1
    ]
    problems += [f"{path}: {problem}" for one in read.agent for problem in one.problems]
    wanted = {task for one in read.agent for task in one.asked}
    tasks, wrong = _tasks(path.parent / read.data.tasks, wanted)
    problems += wrong
    named = {task for one in read.agent if one.utility == ANSWER_RECALL for task in one.asked}
    problems += [
        f"{path}: {one.id!r} has an answer without a letter or digit, which {ANSWER_RECALL} cannot look for"
        for one in tasks
        if one.asked_of in named
        and not all(any(letter.isalnum() for letter in answer) for answer in one.answers)
    ][:_SHOWN]
    have = {(one.asked_of, one.split) for one in tasks}
    if not wrong:
        problems += [
            f"{path}: {one.name} is asked {', '.join(one.asked)}: "
            f"{read.data.tasks} has nothing of it to train on"
            for one in read.agent
            if not any((task, TRAIN) in have for task in one.asked)
        ]
    if problems:
        raise PlanError(problems)
    return AgentTasks(read.agent, read.data.collection, tuple(tasks))


def _tasks(path: Path, wanted: set[str]) -> tuple[list[Task], list[str]]:
    """Return the wanted tasks of a file, and its problems."""
    found: list[Task] = []
    problems: list[str] = []
    seen: set[str] = set()
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                try:
                    task = _task(json.loads(line))
                except (ValueError, KeyError, TypeError, RecursionError):
                    problems.append(f"{path}:{number}: is no task with id, agent, input, answers and split")
                    continue
                if task.asked_of not in wanted:
                    continue
                if task.id in seen:
                    problems.append(f"{path}:{number}: the id {task.id!r} is there twice")
                seen.add(task.id)
                if not task.question.strip() or not task.answers:
                    problems.append(f"{path}:{number}: {task.id!r} has no input or no answers")
                found.append(task)
    except (OSError, EOFError, zlib.error) as error:
        problems.append(f"{path}: {getattr(error, 'strerror', None) or 'cannot be read'}")
    return found, problems[:_SHOWN]


def _task(row: dict[str, Any]) -> Task:
    answers = row["answers"]
    if not isinstance(answers, list):
        raise TypeError
    return Task(
        str(row["id"]), str(row["agent"]), str(row["input"]), tuple(map(str, answers)), str(row["split"])
    )
