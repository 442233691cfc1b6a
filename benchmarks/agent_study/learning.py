"""Train a reranker on the agents' feedback, by the code of ``evenmesh train ium``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.agent_study.answering import HYBRID, Agents
from benchmarks.agent_study.ranking import DEPTH, LONGEST, SHALLOW
from benchmarks.agent_study.sets import World
from evenmesh_kit.compute.placement import Placement
from evenmesh_lab.files.agent_runs import OFFLINE
from evenmesh_training.bundled.reranker_blend import blend
from evenmesh_training.ium import session, start
from evenmesh_training.ium.answer_collector import AnswerCollector
from evenmesh_training.ium.offline import MODEL, Offline
from evenmesh_training.ium.recipe import IumRecipe
from evenmesh_training.ium.systems import Learner, System

SEEDS: Final = (1, 2, 3, 4, 5)
RECIPE: Final = IumRecipe(
    name="agent-study",
    rounds=3,
    depth=20,
    k=8,
    queries=200,
    evaluation_split="test",
    epochs=1,
    batch_size=32,
    micro_batch=32,
    learning_rate=3e-5,
    max_length=LONGEST,
    frozen_layers=2,
    frozen_words=True,
)
LISTWISE: Final = RECIPE.model_copy(
    update={
        "name": "agent-study-lists",
        "depth": 40,
        "temperature": 1.0,
        "queries": 500,
        "agent_rate": 5e-3,
        "decay": 0.5,
        "loss": "listwise",
    }
)
"""Chosen by ``benchmarks.agent_study.choosing``."""
FUSED: Final = IumRecipe(
    name="agent-study-fusion",
    learns="fusion",
    rounds=1,
    depth=DEPTH,
    queries=200,
    evaluation_split="test",
    max_length=LONGEST,
)
"""No weight of the model changes."""
HYBRID_FUSED: Final = FUSED.model_copy(
    update={"name": "agent-study-hybrid-fusion", "retriever": HYBRID, "depth": SHALLOW}
)
"""The same with the candidates of an ask without options."""


class _Lines:
    """Prints what begins."""

    def begins(self, what: str, total: int, done: int) -> None:
        """See the port."""
        print(f"{what}: {total}, {done} of them before", flush=True)

    def advances(self, by: int = 1) -> None:
        """See the port."""

    def note(self, line: str) -> None:
        """See the port."""
        print(line, flush=True)


async def learned(
    world: World,
    agents: Agents,
    begin: Path,
    *,
    seed: int,
    ids: bool,
    folder: Path,
    recipe: IumRecipe = RECIPE,
) -> Path:
    """Return the folder of the model after the last round; what was stopped continues.

    Args:
        world: what is asked.
        agents: find candidates, and judge them.
        begin: folder of the model that training begins with.
        seed: of the draw of queries, and of training.
        ids: whether the model reads who asks.
        folder: of the run.
        recipe: of the training.
    """
    name = "together" if ids else "together-unpersonalised"
    learner = Learner(name, world.plan.agents, recipe.rounds, ids)
    with session.open_run(folder, world.plan, recipe, begin=str(begin), seed=seed) as cache:
        collector = AnswerCollector(
            recipe, cache=cache, mesh=agents, progress=_Lines(), stop=lambda: False, in_flight=1
        )
        run = Offline(
            world.plan,
            recipe,
            begin=str(begin),
            seed=seed,
            folder=folder,
            collector=collector,
            placement=Placement.choose("cpu", "auto"),
        )
        # Measured by the study itself, with more candidates.
        await run.run([System(OFFLINE, (learner,), first=recipe.rounds + 1)])
    return folder / name / f"round-{recipe.rounds}" / MODEL


def blended(after: Path, before: Path, folder: Path) -> Path:
    """Return the folder of the mean of the weights before and after learning; written if it is not there."""
    if not folder.is_dir():
        tokenizer, model = start.load(before)
        blend(model, start.load(after)[1], 0.5)
        start.save(tokenizer, model, folder)
    return folder
