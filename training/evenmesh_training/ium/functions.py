"""Agents that are functions in Python: the user's own, beside the file that names them."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from evenmesh_reranker.domain import Passage
from evenmesh_training.ium.plan import AgentTable, PlanError

Function = Callable[[str, list[Passage]], str | None]
"""Answers a question from passages; None where it has no answer from them, which is worth nothing."""

_MOST: Final = 100_000
"""Characters of an answer that are kept."""


class Functions:
    """The functions of a plan's agents.

    Args:
        agents: those of the plan; the others are not asked.
        folder: of the plan, in which modules are looked for first.

    Raises:
        PlanError: a function cannot be imported or called with a question and passages; it names all.
    """

    def __init__(self, agents: Sequence[AgentTable], folder: Path) -> None:
        self._functions: dict[str, Function] = {}
        self.versions: dict[str, str] = {}
        """By function, the digest of its module's file."""
        problems: list[str] = []
        for name in dict.fromkeys(one.function for one in agents if one.function):
            try:
                self._functions[name], self.versions[name] = _imported(name, folder)
            except PlanError as error:
                problems.extend(error.problems)
        if problems:
            raise PlanError(problems)

    async def answers(
        self, agent: AgentTable, question: str, contexts: Sequence[Sequence[Passage]]
    ) -> list[str | None]:
        """Return what an agent's function answers from each context, empty where it has no answer.

        None would be a context that was never answered, and left out of what is measured and learned.

        Raises:
            PlanError: it failed, or answered with something that is no text.
        """
        function = self._functions[agent.function]

        def ask() -> list[str | None]:
            return [_asked(agent.function, function, question, list(shown)) for shown in contexts]

        return await asyncio.to_thread(ask)


def _imported(name: str, folder: Path) -> tuple[Function, str]:
    module_name, _, attribute = name.partition(":")
    place = str(folder.resolve())
    sys.path.insert(0, place)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # noqa: BLE001 - the user's own code may raise anything
        raise PlanError([f"function {name}: {module_name} cannot be imported: {error}"]) from None
    finally:
        sys.path.remove(place)
    found: Any = getattr(module, attribute, None)
    if not callable(found) or inspect.iscoroutinefunction(found):
        raise PlanError(
            [f"function {name}: {module_name} has no function {attribute} (async ones are not asked)"]
        )
    try:
        inspect.signature(found).bind("question", [])
    except TypeError as error:
        raise PlanError([f"function {name} must take a question and a list of passages: {error}"]) from None
    except ValueError:
        pass  # a function in C says nothing of what it takes
    source = getattr(module, "__file__", None)
    digest = hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else "built in"
    return found, digest


def _asked(name: str, function: Function, question: str, shown: list[Passage]) -> str:
    try:
        answer = function(question, shown)
    except Exception as error:
        raise PlanError(
            [f"function {name} failed at {question!r}: {type(error).__name__}: {error}"]
        ) from error
    if answer is not None and not isinstance(answer, str):
        raise PlanError(
            [f"function {name} answered {question!r} with {type(answer).__name__}, not with a text"]
        )
    return "" if answer is None else answer[:_MOST]
