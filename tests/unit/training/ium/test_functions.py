"""Agents that are functions: how they are found, what they are given, and what is said of wrong ones."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from evenmesh_reranker.domain import Passage
from evenmesh_training.ium.functions import Functions
from evenmesh_training.ium.plan import AgentTable, PlanError

PASSAGES = [Passage("p0", "Oil", "Oil a chain."), Passage("p1", "", "Wash it.")]
SOURCE = """
def longest(question, passages):
    return max((one.text for one in passages), key=len)

def none(question, passages):
    return None

def fails(question, passages):
    raise KeyError("no such tool")

def number(question, passages):
    return 7

def lonely(question):
    return ""

async def later(question, passages):
    return ""

no_function = 1
"""


def _agent(function: str) -> AgentTable:
    return AgentTable(task_id="t", model_id="m", function=function)


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, str]:
    """A folder with a module, of another name in every test: modules are imported once in a process."""
    name = f"agents_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    return tmp_path, name


async def test_a_function_beside_the_plan_answers_from_each_context(folder: tuple[Path, str]) -> None:
    place, module = folder
    agent = _agent(f"{module}:longest")
    functions = Functions([agent, AgentTable(task_id="t", model_id="o", model="reader")], place)
    assert await functions.answers(agent, "how?", [PASSAGES, PASSAGES[1:]]) == ["Oil a chain.", "Wash it."]
    assert functions.versions == {agent.function: hashlib.sha256(SOURCE.encode()).hexdigest()}


async def test_no_answer_is_an_empty_one_which_is_worth_nothing(folder: tuple[Path, str]) -> None:
    place, module = folder
    agent = _agent(f"{module}:none")
    assert await Functions([agent], place).answers(agent, "how?", [PASSAGES]) == [""]
    assert agent.utility_of("", ["by hand"]) == 0.0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fails", "failed at 'how\\?': KeyError: 'no such tool'"),
        ("number", "answered 'how\\?' with int, not with a text"),
    ],
)
async def test_what_a_function_does_wrong_names_it_and_the_question(
    folder: tuple[Path, str], name: str, said: str
) -> None:
    place, module = folder
    agent = _agent(f"{module}:{name}")
    with pytest.raises(PlanError, match=f"{agent.function} {said}"):
        await Functions([agent], place).answers(agent, "how?", [PASSAGES])


def test_all_functions_that_cannot_be_asked_are_named_at_once(folder: tuple[Path, str]) -> None:
    place, module = folder
    wrong = [
        "no_such_module:f",
        *(f"{module}:{one}" for one in ("missing", "no_function", "later", "lonely")),
    ]
    with pytest.raises(PlanError) as found:
        Functions([_agent(one) for one in wrong], place)
    assert [one.split()[1].rstrip(":") for one in found.value.problems] == wrong
    assert "cannot be imported" in found.value.problems[0]
    assert "must take a question and a list of passages" in found.value.problems[-1]


def test_only_the_functions_that_are_named_are_imported(tmp_path: Path) -> None:
    assert Functions([AgentTable(task_id="t", model_id="m", model="reader")], tmp_path).versions == {}
