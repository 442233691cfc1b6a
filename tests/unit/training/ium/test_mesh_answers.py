"""Asking a mesh for candidates and answers: what is passed on, what is waited for, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from evenmesh import Passage as ClientPassage
from evenmesh import long_runs
from evenmesh.generation import WrittenAnswer
from evenmesh.types.events import Failed
from evenmesh.types.retrieval import Retrieval
from evenmesh.wire.errors import MeshError, NotFound, Unavailable
from evenmesh_reranker.domain import Passage
from evenmesh_training.ium.functions import Functions
from evenmesh_training.ium.mesh_answers import MeshAnswers, problems
from evenmesh_training.ium.plan import AgentTable
from evenmesh_training.ium.result_cache import Candidates

FOUND = tuple(ClientPassage(f"p{at}", f"text {at}", f"title {at}") for at in range(3))
PASSAGES = tuple(Passage(one.id, one.title, one.text) for one in FOUND)
M = AgentTable(task_id="qa", model_id="m", model="m")


@dataclass
class FakeMesh:
    """Finds three passages and answers with the text of the first one shown."""

    failing: list[MeshError | Failed] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    async def retrieve(self, query: str, **options: Any) -> Retrieval:
        self.calls.append(options)
        if self.failing and isinstance(self.failing[0], MeshError):
            raise self.failing.pop(0)
        return Retrieval(FOUND, (3.0, 2.0, 1.0), ((2, 0, 1),), (), (), "bm25", "i1")

    async def answers(
        self, question: str, contexts: Sequence[Sequence[ClientPassage]], **options: Any
    ) -> list[WrittenAnswer | Failed]:
        self.calls.append(options)
        self.sizes.append(len(contexts))
        if self.failing and isinstance(self.failing[0], MeshError):
            raise self.failing.pop(0)
        found: list[WrittenAnswer | Failed] = [WrittenAnswer(one[0].text, "m", "7") for one in contexts]
        if self.failing:
            found[0] = self.failing.pop(0)  # type: ignore[call-overload]
        return found


@dataclass
class Watcher:
    waited: list[str] = field(default_factory=list)

    def retrying(self, why: MeshError, pause_s: float) -> None:
        self.waited.append(why.reason)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_runs, "_FIRST_PAUSE_S", 0.001)


def _asking(
    mesh: FakeMesh, facts: dict[str, str], watcher: Watcher | None = None, **options: Any
) -> MeshAnswers:
    fake: Any = mesh
    options = {"functions": Functions([], Path()), **options}
    return MeshAnswers(fake, fake, "c", note=facts.__setitem__, watcher=watcher or Watcher(), **options)


async def test_candidates_come_in_the_rankings_order_with_the_index_named() -> None:
    mesh, facts = FakeMesh(), dict[str, str]()
    found = await _asking(mesh, facts).candidates("q", retriever="dense", depth=3)
    assert found == Candidates((PASSAGES[2], PASSAGES[0], PASSAGES[1]), (1.0, 3.0, 2.0))
    assert facts == {"index of dense": "i1"}
    assert mesh.calls[0] | {"timeout": 0} == {
        "collection": "c",
        "retriever": "dense",
        "depth": 3,
        "k": 3,
        "timeout": 0,
    }


async def test_answers_are_asked_for_in_batches_as_the_agent_wants() -> None:
    mesh, facts = FakeMesh(), dict[str, str]()
    contexts = [[one] for one in PASSAGES]
    agent = M.model_copy(update={"augmentation": "fid", "template": "t"})
    found = await _asking(mesh, facts, batch=2).answers(agent, "q", contexts, beams=3)
    assert found == ["text 0", "text 1", "text 2"]
    assert mesh.sizes == [2, 1]
    assert (mesh.calls[0]["model"], mesh.calls[0]["augmentation"]) == ("m", "fusion_in_decoder")
    assert (mesh.calls[0]["template"], mesh.calls[0]["decoding"].num_beams) == ("t", 3)
    assert facts == {"version of m": "7"}


async def test_what_passes_is_waited_for() -> None:
    away = Unavailable("GONE", "away")
    busy = Failed((0,), "RESOURCE_EXHAUSTED", "FULL", "full", "")
    mesh, watcher = FakeMesh([away, busy, away]), Watcher()
    asked = _asking(mesh, {}, watcher)
    assert await asked.answers(M, "q", [PASSAGES[:1]]) == ["text 0"]
    assert watcher.waited == ["GONE", "NO_ANSWER", "GONE"]


async def test_an_answer_that_is_refused_is_none_and_the_others_stay() -> None:
    mesh = FakeMesh([Failed((0,), "INVALID_ARGUMENT", "TOO_LONG", "too long", "")])
    found = await _asking(mesh, {}).answers(M, "q", [PASSAGES[:1], PASSAGES[1:]])
    assert found == [None, "text 1"]


async def test_what_is_refused_as_a_whole_ends_it() -> None:
    mesh = FakeMesh([NotFound("NO_MODEL", "no model m")])
    with pytest.raises(MeshError, match="no model m") as refused:
        await _asking(mesh, {}).answers(M, "q", [PASSAGES[:1]])
    assert refused.value.code is grpc.StatusCode.NOT_FOUND


async def test_problems_name_each_agent_that_is_refused() -> None:
    mesh = FakeMesh()
    asked = _asking(mesh, {})
    agents = [
        M.model_copy(update={"augmentation": "fid"}),
        M.model_copy(update={"augmentation": "fid", "model_id": "other"}),
        M.model_copy(update={"model": "n", "template": "t"}),
    ]
    assert await problems(asked, "q", agents) == []
    assert len(mesh.sizes) == 2
    mesh.failing = [NotFound("NO_MODEL", "there is none")]
    assert await problems(asked, "q", agents) == ["NO_MODEL: query 'q': there is none"]
    asked = _asking(_RefusesAnswers(), {})
    assert await problems(asked, "q", agents) == [
        "model m: query 'q' for m: there is none",
        "model n: query 'q' for n: there is none",
    ]


class _RefusesAnswers(FakeMesh):
    async def answers(
        self, question: str, contexts: Sequence[Sequence[ClientPassage]], **options: Any
    ) -> Any:
        raise NotFound("NO_MODEL", "there is none")


async def test_a_function_answers_instead_of_the_generator_and_its_version_is_noted(tmp_path: Path) -> None:
    (tmp_path / "function_beside.py").write_text(
        "def first(question, passages):\n    return passages[0].id\n"
    )
    agent = AgentTable(task_id="qa", model_id="f", function="function_beside:first")
    functions = Functions([agent], tmp_path)
    mesh, facts = FakeMesh(), dict[str, str]()
    asking = _asking(mesh, facts, functions=functions)
    assert await asking.answers(agent, "q", [PASSAGES[:1], PASSAGES[1:]]) == ["p0", "p1"]
    assert not mesh.calls
    assert facts == {"function function_beside:first": functions.versions[agent.function]}


async def test_a_function_that_fails_is_a_problem_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "function_failing.py").write_text("def fails(question, passages):\n    return 1 / 0\n")
    agent = AgentTable(task_id="qa", model_id="f", function="function_failing:fails")
    asking = _asking(FakeMesh(), {}, functions=Functions([agent], tmp_path))
    (said,) = await problems(asking, "q", [agent])
    assert said.startswith("function function_failing:fails failed at 'q': ZeroDivisionError")
