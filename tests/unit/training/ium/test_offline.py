"""Algorithm 1 on a few agents whose taste is a rule: rounds, what is kept, going on after a stop, baselines."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from evenmesh.commands.screen import Screen
from evenmesh.wire.errors import NotFound
from evenmesh_lab.files.agent_runs import AgentRunRecord, read_agent_runs
from evenmesh_lab.files.trained_texts import (
    TrainedTexts,
    TrainingTexts,
    find_trained_texts,
    write_trained_texts,
)
from evenmesh_reranker.domain import Fusion
from evenmesh_reranker.models.fusions import Fusions
from evenmesh_training.commands import train_ium
from evenmesh_training.ium import session
from evenmesh_training.ium.answer_collector import AnswerCollector, StoppedError
from evenmesh_training.ium.offline import Offline
from evenmesh_training.ium.overlap import overlap
from evenmesh_training.ium.plan import AgentTasks, PlanError, Task
from evenmesh_training.ium.recipe import IumRecipe
from evenmesh_training.ium.result_cache import Candidates, ResultCache
from evenmesh_training.ium.systems import system
from tests.support import tiny_encoders, tiny_models
from tests.support.offline_world import (
    EVEN,
    ODD,
    PASSAGES,
    PLACEMENT,
    PLAN,
    RECIPE,
    TASKS,
    NoProgress,
    RuleMesh,
)


@pytest.fixture(scope="module")
def begin(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_models.cross_encoder(tmp_path_factory.mktemp("begin")))


def _run(
    folder: Path,
    begin: str,
    mesh: RuleMesh,
    names: Sequence[str] = ("offline-ium",),
    *,
    personalised: bool = True,
    stop_after: int | None = None,
    recipe: IumRecipe = RECIPE,
    rounds: int = RECIPE.rounds,
    plan: AgentTasks = PLAN,
    notes: list[str] | None = None,
) -> list[AgentRunRecord]:
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return stop_after is not None and calls > stop_after

    progress = NoProgress()
    if notes is not None:
        progress.note = notes.append  # type: ignore[method-assign]
    with session.open_run(folder, plan, recipe, begin=begin, seed=1) as cache:
        collector = AnswerCollector(recipe, cache=cache, mesh=mesh, progress=progress, stop=stop, in_flight=2)
        offline = Offline(
            plan, recipe, begin=begin, seed=1, folder=folder, collector=collector, placement=PLACEMENT
        )
        chosen = [system(name, plan, rounds=rounds, personalised=personalised) for name in names]
        return read_agent_runs([asyncio.run(offline.run(chosen))])


@pytest.fixture(scope="module")
def done(begin: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RuleMesh, list[AgentRunRecord]]:
    folder, mesh = tmp_path_factory.mktemp("done"), RuleMesh()
    return folder, mesh, _run(folder, begin, mesh)


def test_each_agent_judges_the_best_k_alone_and_no_judgement_is_asked_for_twice(
    done: tuple[Path, RuleMesh, list[AgentRunRecord]],
) -> None:
    folder, mesh, _ = done
    assert len(mesh.asked) == len(set(mesh.asked))
    assert {len(shown) for _, _, shown in mesh.asked} == {1}
    assert sorted(mesh.found) == sorted({task.question for task in TASKS})
    for number in (1, 2):
        reported = json.loads((folder / "together" / f"round-{number}" / "feedback.json").read_text())
        assert reported["examples"] == 2 * 3 * RECIPE.k  # agents, training queries, judged of each
        assert reported["unknown"] == 0


def test_every_round_carries_hashes_of_what_it_learned_from(
    done: tuple[Path, RuleMesh, list[AgentRunRecord]],
) -> None:
    folder, _, records = done
    begun = find_trained_texts(folder / "start" / "model")
    last = find_trained_texts(folder / "together" / "round-2" / "model")
    assert begun is not None
    assert last is not None
    assert (begun.trainings, len(begun.unhashed)) == ((), 1)
    assert [one.name for one in last.trainings] == ["together, round-1", "together, round-2"]
    for task in TASKS:
        assert last.has_question(task.question) is (task.split == "train")
    assert any(last.has_passage(one.text) for one in PASSAGES)
    found = overlap(folder, PLAN, records)
    counted = {(row.model, row.what): row.seen for row in found.rows}
    assert counted["reranker at the start", "questions"] == 0
    assert counted["reranker together", "questions"] == 0
    assert counted["reranker together", "passages"] is not None
    assert len(found.questions) == sum(task.split == "test" for task in TASKS)


def test_the_command_shows_unseen_questions_first(
    done: tuple[Path, RuleMesh, list[AgentRunRecord]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(done[0], folder)
    known = next(task for task in TASKS if task.split == "test")
    texts = TrainedTexts((TrainingTexts.of("before", [known.question.upper()], []),))
    write_trained_texts(texts, folder / "start" / "model")
    systems = [system("offline-ium", PLAN, rounds=RECIPE.rounds, personalised=True)]
    for as_json in (True, False):
        train_ium._tell(
            Screen(), folder / "runs.jsonl", folder, PLAN, systems, store=False, tenant="t", as_json=as_json
        )
    said, notes = capsys.readouterr()
    found, _, shown = said.partition("\n")
    result = json.loads(found)
    total = sum(task.split == "test" for task in TASKS)
    assert (result["overlap"]["questions"], result["overlap"]["seen"]) == (total, 1)
    assert [one["iteration"] for one in result["unseen"]] == [0, 1, 2]
    assert len(result["seen"]) == len(result["systems"]) == 3
    assert shown.index("Unseen questions") < shown.index("Seen questions") < shown.index("All questions")
    assert f"reranker at the start was trained on 1 of {total} questions" in shown
    assert "1 of the" in notes


def test_every_round_is_measured_on_every_agents_test_queries(
    done: tuple[Path, RuleMesh, list[AgentRunRecord]],
) -> None:
    _, _, records = done
    assert {(one.iteration, one.agent, one.query_id) for one in records} == {
        (number, agent.name, task.id)
        for number in (0, 1, 2)
        for agent in PLAN.agents
        for task in TASKS
        if task.split == "test"
    }
    for one in records:
        assert one.system == "offline-ium"
        assert one.shown == 1
        assert sorted(one.ranking) == [f"p{at}" for at in range(6)]
        even = int(one.ranking[0][1:]) % 2 == 0
        assert one.utility == float(even is (one.model_id == "even"))
    before, after = ({one.reranker_version for one in records if one.iteration == at} for at in (0, 2))
    assert before != after


LISTS = RECIPE.model_copy(
    update={"loss": "listwise", "agent_rate": 0.1, "decay": 0.5, "temperature": 0.5, "k": 3}
)


def test_a_temperature_draws_what_is_judged_and_a_stopped_run_draws_the_same(
    begin: str, tmp_path: Path
) -> None:
    mesh = RuleMesh()
    records = _run(tmp_path / "whole", begin, mesh, recipe=LISTS)
    judged: dict[tuple[str, str], set[str]] = {}
    for agent, question, (passage,) in mesh.asked:
        judged.setdefault((agent, question), set()).add(passage)
    drawn = [judged[agent.model, task.question] for agent in PLAN.agents for task in TASKS[:3]]
    # Of six, three in each of two rounds: not the same three for every question of a model that knows little.
    assert all(3 <= len(one) <= 6 for one in drawn)
    assert len({frozenset(one) for one in drawn}) > 1
    again = RuleMesh()
    with pytest.raises(StoppedError):
        _run(tmp_path / "cut", begin, again, recipe=LISTS, stop_after=30)
    assert _run(tmp_path / "cut", begin, again, recipe=LISTS) == records
    assert sorted(again.asked) == sorted(mesh.asked)


def test_lists_that_teach_no_order_leave_the_model_as_it_is(begin: str, tmp_path: Path) -> None:
    notes: list[str] = []
    # One passage of a question stands for no order.
    records = _run(tmp_path, begin, RuleMesh(), recipe=LISTS.model_copy(update={"k": 1}), notes=notes)
    assert sum("no feedback to learn from" in note for note in notes) == 2
    rankings = {
        number: {(one.agent, one.query_id): one.ranking for one in records if one.iteration == number}
        for number in (0, 2)
    }
    assert rankings[0] == rankings[2]


def test_before_any_training_all_agents_get_the_same_lists(
    done: tuple[Path, RuleMesh, list[AgentRunRecord]],
) -> None:
    _, _, records = done
    lists: dict[str, set[tuple[str, ...]]] = {}
    for one in records:
        if one.iteration == 0:
            lists.setdefault(one.query_id, set()).add(tuple(one.ranking))
    assert all(len(found) == 1 for found in lists.values())


def test_the_model_of_the_last_round_can_be_served(done: tuple[Path, RuleMesh, list[AgentRunRecord]]) -> None:
    from evenmesh_reranker.domain import Agent
    from tests.support import tiny_encoders

    folder, _, _ = done
    model = tiny_encoders.encoder(folder / "together" / "round-2" / "model", version="v")
    assert model.knows(Agent("qa", "even"))
    assert model.encoder.max_seq_length == RECIPE.max_length


@pytest.mark.parametrize("stop_after", [0, 3, 9, 13, 20])
def test_a_stopped_run_goes_on_to_the_same_records(
    begin: str, tmp_path: Path, done: tuple[Path, RuleMesh, list[AgentRunRecord]], stop_after: int
) -> None:
    mesh = RuleMesh()
    with pytest.raises(StoppedError):
        _run(tmp_path, begin, mesh, stop_after=stop_after)
    assert _run(tmp_path, begin, mesh) == done[2]
    assert len(mesh.asked) == len(set(mesh.asked))


def test_baselines_share_what_the_run_found_out(begin: str, tmp_path: Path) -> None:
    mesh = RuleMesh()
    first = _run(tmp_path, begin, mesh)
    asked = len(mesh.asked)
    records = _run(tmp_path, begin, mesh, ["bm25", "dense", "urag", "per-agent", "per-dataset"])
    assert records != first
    by_system = {
        name: [one for one in records if one.system == name] for name in {one.system for one in records}
    }
    assert {name: len(found) for name, found in by_system.items()} == {
        "offline-ium": 3 * 4,
        **dict.fromkeys(("bm25", "dense", "urag", "per-agent", "per-dataset"), 4),
    }
    # uRAG is the first round, so it costs nothing; the retrievers' and the others' lists may be new.
    rounds = {(one.agent, one.query_id): one.ranking for one in first if one.iteration == 1}
    assert {(one.agent, one.query_id): one.ranking for one in by_system["urag"]} == rounds
    assert all(one.ranking[0] == "p0" for one in by_system["bm25"])
    assert all(one.ranking[0] == "p5" for one in by_system["dense"])
    assert len(mesh.asked) - asked <= 4 * 4
    assert len({one.reranker_version for one in by_system["per-agent"]}) == 2


def test_the_oracle_ranks_by_what_each_passage_was_worth(begin: str, tmp_path: Path) -> None:
    mesh = RuleMesh(refuses="p2")
    records = _run(tmp_path, begin, mesh, ["oracle", "bm25"])
    by_system = {
        name: {(one.agent, one.query_id): one for one in records if one.system == name}
        for name in ("oracle", "bm25")
    }
    assert len(by_system["oracle"]) == len(by_system["bm25"]) == 4
    for key, one in by_system["oracle"].items():
        useful = ["p0", "p4"] if one.model_id == "even" else ["p1", "p3", "p5"]
        useless = [f"p{at}" for at in range(6) if f"p{at}" not in (*useful, "p2")]
        assert one.ranking == [*useful, *useless, "p2"], "in BM25's order where they are worth the same"
        assert one.utility == 1.0 >= (by_system["bm25"][key].utility or 0.0)
    assert len(mesh.asked) == len(set(mesh.asked))


def test_what_is_learned_alike_is_learned_once_and_nothing_else_shares_a_folder() -> None:
    other = EVEN.model_copy(update={"task_id": "facts", "dataset": ""})
    plan = AgentTasks((other, EVEN, ODD), "tiny", TASKS)
    folders = {
        (name, personalised): [
            (one.folder, tuple(agent.name for agent in one.agents))
            for one in system(name, plan, rounds=3, personalised=personalised).learners
        ]
        for name in ("urag", "offline-ium", "per-agent", "per-dataset")
        for personalised in (True, False)
    }
    assert folders["urag", True] == folders["offline-ium", True]
    assert folders["per-dataset", True] == [
        ("per-agent/000", ("facts/even",)),
        ("per-dataset/001", ("qa/even", "qa/odd")),
    ]
    reported, untold = (
        {folder for (_, personal), found in folders.items() if personal is one for folder, _ in found}
        for one in (True, False)
    )
    assert not reported & untold
    with pytest.raises(ValueError, match="other"):
        system("other", plan, rounds=1)


def test_without_personalisation_agents_get_the_same_lists(begin: str, tmp_path: Path) -> None:
    records = _run(tmp_path, begin, RuleMesh(), personalised=False)
    assert not any(one.personalised for one in records)
    lists: dict[tuple[int | None, str], set[tuple[str, ...]]] = {}
    for one in records:
        lists.setdefault((one.iteration, one.query_id), set()).add(tuple(one.ranking))
    assert all(len(found) == 1 for found in lists.values())


def test_what_cannot_be_answered_is_counted_and_not_learned(begin: str, tmp_path: Path) -> None:
    records = _run(tmp_path, begin, RuleMesh(refuses="p1"), ["urag", "bm25"])
    reported = json.loads((tmp_path / "together" / "round-1" / "feedback.json").read_text())
    assert reported["examples"] + reported["unknown"] == 2 * 3 * RECIPE.k
    assert all((one.utility is None) == (one.ranking[0] == "p1") for one in records)


async def test_what_the_mesh_refuses_ends_the_run_and_not_after_all_the_others(tmp_path: Path) -> None:
    class Refuses(RuleMesh):
        async def candidates(self, question: str, *, retriever: str, depth: int) -> Candidates:
            if question == "water 1":
                self.found.append(question)
                raise NotFound("collection", "there is none")
            await asyncio.sleep(0)
            return await super().candidates(question, retriever=retriever, depth=depth)

    tasks = tuple(Task(f"t{at}", "qa", f"water {at}", ("yes",), "test") for at in range(50))
    plan, mesh = AgentTasks((EVEN,), "tiny", tasks), Refuses()
    with ResultCache(tmp_path / "evidence.db") as cache:
        collector = AnswerCollector(
            RECIPE, cache=cache, mesh=mesh, progress=NoProgress(), stop=lambda: False, in_flight=2
        )
        offline = Offline(
            plan, RECIPE, begin="", seed=1, folder=tmp_path, collector=collector, placement=PLACEMENT
        )
        with pytest.raises(NotFound):
            await offline.run([system("bm25", plan, rounds=1)])
    assert len(mesh.found) < 10


def test_a_run_of_other_settings_is_refused(begin: str, tmp_path: Path) -> None:
    with session.open_run(tmp_path, PLAN, RECIPE, begin=begin, seed=1):
        pass
    other = RECIPE.model_copy(update={"k": 5})
    with (
        pytest.raises(PlanError) as refused,
        session.open_run(tmp_path, PLAN, other, begin=begin, seed=2),
    ):
        pass
    assert len(refused.value.problems) == 2
    assert "recipe" in refused.value.problems[0]
    assert "seed" in refused.value.problems[1]


def test_two_processes_do_not_share_a_run(begin: str, tmp_path: Path) -> None:
    with (
        session.open_run(tmp_path, PLAN, RECIPE, begin=begin, seed=1),
        pytest.raises(PlanError, match="another process"),
        session.open_run(tmp_path, PLAN, RECIPE, begin=begin, seed=1),
    ):
        pass


def test_a_fact_that_changes_is_refused(tmp_path: Path) -> None:
    with ResultCache(tmp_path / "evidence.db") as cache:
        cache.fact("version of m", "1")
        cache.fact("version of m", "1")
        with pytest.raises(PlanError, match="begin again"):
            cache.fact("version of m", "2")


def test_averages_leave_out_what_is_unknown() -> None:
    def record(model_id: str, query_id: str, utility: float | None) -> AgentRunRecord:
        return AgentRunRecord(
            task_id="t", model_id=model_id, query_id=query_id, system="s", ranking=[], utility=utility
        )

    records = [record("a", "1", 1.0), record("a", "2", 0.0), record("a", "3", None), record("b", "1", 1.0)]
    assert session.averages([*records, record("c", "1", None)]) == {
        "t/a": (1 + 0) / 2,
        "t/b": 1.0,
        "macro": (1 / 2 + 1) / 2,
    }
    assert session.averages([]) == {}


ALL_WORDS = ("celsius", "boils", "sea", "at", "the", "is", "of", "a", "hundred", "degrees", "and", "in")
FUSION = IumRecipe(
    name="fusion", learns="fusion", rounds=1, depth=6, queries=0, max_length=48, evaluation_split="test"
)

MANY = AgentTasks(
    (EVEN, ODD),
    "tiny",
    (
        *(Task(f"many{at}", "qa", f"water {word}", ("yes",), "train") for at, word in enumerate(ALL_WORDS)),
        *(task for task in TASKS if task.split == "test"),
    ),
)


class OddFirst(RuleMesh):
    """A mesh whose retriever finds p1 first."""

    async def candidates(self, question: str, *, retriever: str, depth: int) -> Candidates:
        found = await super().candidates(question, retriever=retriever, depth=depth)
        first, second, *others = found.passages
        return Candidates((second, first, *others), found.scores)


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def as_first_stage(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a model that asks to be fused so that a first stage decides."""
    folder = tiny_models.cross_encoder(tmp_path_factory.mktemp("fused"))
    config = json.loads((folder / "config.json").read_text())
    config["evenmesh_fusion"] = {"weight": 10.0}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_fusion_is_learned_and_no_weight_changes(as_first_stage: str, tmp_path: Path) -> None:
    records = _run(tmp_path, as_first_stage, OddFirst(), recipe=FUSION, rounds=1, plan=MANY)
    start, after = tmp_path / "start" / "model", tmp_path / "together" / "round-1" / "model"
    before, now = _weights(start), _weights(after)
    assert before.keys() == now.keys()
    assert all(torch.equal(one, now[name]) for name, one in before.items())
    config = json.loads((after / "config.json").read_text())
    assert config["evenmesh_fusion"] == json.loads((after.parent / "fusion.json").read_text())
    served = tiny_encoders.encoder(after, version="v").fusions
    # The first stage has p1 first, which "odd" wants, and the model p4 or p2. The others keep what they had.
    assert served.others == served.of(ODD.agent) == Fusion(10.0)
    assert served.of(EVEN.agent).weight < 10
    assert all(one.ranking[0] == "p1" for one in records if one.iteration == 0)
    utilities = [(one.agent, one.iteration, one.utility) for one in records]
    assert [worth for agent, _, worth in utilities if agent == ODD.name] == [1.0] * 4
    assert [worth for agent, number, worth in utilities if (agent, number) == (EVEN.name, 0)] == [0.0, 0.0]
    assert [worth for agent, number, worth in utilities if (agent, number) == (EVEN.name, 1)] == [1.0, 1.0]
    known = find_trained_texts(after)
    assert known is not None
    assert all(known.has_question(one.question) is (one.split == "train") for one in MANY.tasks)


def test_fusion_that_is_stopped_goes_on(as_first_stage: str, tmp_path: Path) -> None:
    begin = as_first_stage
    wanted = _run(tmp_path / "whole", begin, RuleMesh(), recipe=FUSION, rounds=1)
    for stop_after in range(1, 40, 4):
        try:
            _run(tmp_path / "parts", begin, RuleMesh(), recipe=FUSION, rounds=1, stop_after=stop_after)
        except StoppedError:
            continue
    mesh = RuleMesh()
    assert _run(tmp_path / "parts", begin, mesh, recipe=FUSION, rounds=1) == wanted
    parts = (tmp_path / one / "together" / "round-1" / "fusion.json" for one in ("whole", "parts"))
    assert len({one.read_text() for one in parts}) == 1


def test_a_model_does_not_learn_from_the_queries_that_choose_its_fusion(begin: str, tmp_path: Path) -> None:
    both = RECIPE.model_copy(update={"learns": "both", "held_out": 0.34, "rounds": 2})
    _run(tmp_path, begin, RuleMesh(), recipe=both)
    for number in (1, 2):
        home = tmp_path / "together" / f"round-{number}"
        feedback = json.loads((home / "feedback.json").read_text())
        assert feedback["examples"] == 2 * 2 * both.k  # agents, two of three queries, passages
        assert not (home / "alone").exists()
        fusions = Fusions.parse(json.loads((home / "fusion.json").read_text()))
        assert tiny_encoders.encoder(home / "model", version="v").fusions == fusions
    known = find_trained_texts(tmp_path / "together" / "round-2" / "model")
    assert known is not None
    assert [one.name for one in known.trainings[-4:]] == [
        "together, round-1",
        "together round 1: fusion",
        "together, round-2",
        "together round 2: fusion",
    ]
    trained, chosen = (one.questions for one in known.trainings[-4:-2])
    asked = [one.question for one in TASKS if one.split == "train"]
    assert [one in trained for one in asked].count(True) == 2
    assert [one in chosen for one in asked] == [one not in trained for one in asked]


@pytest.mark.parametrize("queries", [0, 30])
def test_no_agent_teaches_the_question_that_chooses_the_fusion_of_another(
    queries: int, tmp_path: Path
) -> None:
    tables = [
        EVEN.model_copy(update={"model_id": "".join(names), "tasks": names}) for names in ("x", "xy", "yz")
    ]
    tasks = [
        Task(f"{name}{at}", name, f"{name} {at}", ("yes",), "train") for name in "xyz" for at in range(50)
    ]
    tasks.append(Task("again", "z", "x 0", ("yes",), "train"))  # of another id
    recipe = RECIPE.model_copy(update={"learns": "both", "held_out": 0.2, "queries": queries})
    for seed in range(5):
        offline = Offline(
            AgentTasks(tuple(tables), "c", tuple(tasks)),
            recipe,
            begin="",
            seed=seed,
            folder=tmp_path,
            collector=None,  # type: ignore[arg-type]
            placement=PLACEMENT,
        )
        learned = {task.question for agent in tables for task in offline._learned_from(agent)}
        for agent in tables:
            held_out = offline._fused_by(agent)
            asked = len(held_out) + len(offline._learned_from(agent))
            assert not learned & {task.question for task in held_out}
            assert len(held_out) >= round(0.2 * asked)
            assert offline._fused_by(agent) == held_out


def test_a_fused_model_without_ids_ranks_alike_for_all(begin: str, tmp_path: Path) -> None:
    _run(tmp_path, begin, RuleMesh(), recipe=FUSION, rounds=1, personalised=False)
    home = tmp_path / "together-unpersonalised" / "round-1"
    assert not Fusions.parse(json.loads((home / "fusion.json").read_text())).own
