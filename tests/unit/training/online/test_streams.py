"""Online IUM where offline IUM ended: agents of a run are served their tasks one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from evenmesh_lab.files.agent_runs import AgentRunRecord, read_agent_runs
from evenmesh_reranker.domain import Agent
from evenmesh_training.ium.answer_collector import AnswerCollector, StoppedError
from evenmesh_training.ium.offline import gather
from evenmesh_training.ium.plan import AgentTasks, Task
from evenmesh_training.ium.result_cache import ResultCache
from evenmesh_training.online.streams import Streams
from tests.support import tiny_encoders, tiny_models
from tests.support.offline_world import EVEN, ODD, PLACEMENT, RECIPE, NoProgress, RuleMesh

TASKS = tuple(Task(f"t{at}", "qa", f"water number {at}", ("yes",), "test") for at in range(30))
PLAN = AgentTasks((EVEN, ODD), "tiny", TASKS)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plain = tiny_models.cross_encoder(tmp_path_factory.mktemp("plain"))
    agents = [Agent(one.task_id, one.model_id) for one in PLAN.agents]
    return tiny_encoders.personal(plain, tmp_path_factory.mktemp("personal"), agents)


def _served(
    folder: Path,
    model: Path,
    mesh: RuleMesh,
    batches: Sequence[int] = (10,),
    *,
    stop: Callable[[], bool] = lambda: False,
) -> list[AgentRunRecord]:
    with ResultCache(folder / "evidence.db") as cache:
        collector = AnswerCollector(
            RECIPE, cache=cache, mesh=mesh, progress=NoProgress(), stop=stop, in_flight=2
        )
        streams = Streams(
            PLAN, RECIPE, model=model, seed=3, folder=folder, collector=collector, placement=PLACEMENT
        )
        asyncio.run(streams.run(batches))
    return read_agent_runs([gather(folder)])


def test_each_agent_is_served_its_tasks_and_its_own_parameters_learn(tmp_path: Path, model: Path) -> None:
    mesh = RuleMesh()
    records = _served(tmp_path, model, mesh, (10, 15))
    assert len(mesh.asked) == len(set(mesh.asked))
    for batch in (10, 15):
        for agent in PLAN.agents:
            mine = [one for one in records if one.batch_size == batch and one.agent == agent.name]
            assert [one.position for one in mine] == list(range(30))
            assert {one.query_id for one in mine} == {task.id for task in TASKS}
            assert {one.iteration for one in mine[:batch]} == {0}
            for one in mine:
                assert (one.system, one.shown, one.seed) == ("online-ium", 1, 3)
                even = int(one.ranking[0][1:]) % 2 == 0
                assert one.utility == float(even is (one.model_id == "even"))
                assert one.answer == ("yes" if one.utility else "no")
    # Nothing was learned of either yet, and the order of tasks is one: the lists are those of one model.
    first = {
        (one.query_id, tuple(one.ranking))
        for one in records
        if one.position is not None and one.position < 10
    }
    assert len(first) == 10


def test_a_stream_that_was_stopped_is_served_again_to_the_same_records(tmp_path: Path, model: Path) -> None:
    whole = _served(tmp_path / "whole", model, RuleMesh())
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls > 60

    mesh = RuleMesh()
    with pytest.raises(StoppedError):
        _served(tmp_path / "parts", model, mesh, stop=stop)
    assert _served(tmp_path / "parts", model, mesh) == whole
    assert len(mesh.asked) == len(set(mesh.asked))
    asked = len(mesh.asked)
    assert _served(tmp_path / "parts", model, mesh) == whole
    assert len(mesh.asked) == asked


def test_what_an_agent_cannot_answer_is_left_out(tmp_path: Path, model: Path) -> None:
    for one in _served(tmp_path, model, RuleMesh(refuses="p1"), (40,)):
        assert (one.utility is None) == (one.ranking[0] == "p1")
        assert one.iteration == 0  # fewer tasks than b
