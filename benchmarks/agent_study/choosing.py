"""Choose how to learn, on training questions alone; what was stopped continues.

``python -m benchmarks.agent_study.choosing WAY`` trains for one round in a way of :data:`WAYS`, without a
part of every agent's training questions, and asks these; ``start`` asks them without training. It writes a
row of docs/studies/agents/choosing.csv; some 20 minutes of a core.
"""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Final

import numpy as np
import torch

from benchmarks import command, csv_rows
from benchmarks.agent_study import learning
from benchmarks.agent_study.answering import Agents
from benchmarks.agent_study.ranking import ordered, score
from benchmarks.agent_study.records import OUT, START
from benchmarks.agent_study.sets import TEST, World, world
from evenmesh_reranker import bundled
from evenmesh_training.ium.plan import TRAIN, AgentTasks
from evenmesh_training.ium.recipe import IumRecipe

LEFT_OUT: Final = {
    "spans": 150,
    "lists": 80,
    "claims-for": 130,
    "claims-against": 110,
    "turns": 200,
}
"""Training questions of each agent that are asked, and not trained on."""
DEPTH: Final = 30
"""Candidates of BM25 that are ranked for them."""
_SEED: Final = 7
_BEST: Final = learning.RECIPE.model_copy(update={"rounds": 1, "queries": 500})
_LISTS: Final = _BEST.model_copy(update={"loss": "listwise", "decay": 0.5})
_DRAWN: Final = _LISTS.model_copy(update={"depth": 50, "temperature": 1.0})
WAYS: Final[dict[str, IumRecipe]] = {
    "pointwise": _BEST,
    "listwise": _LISTS,
    "listwise-drawn": _DRAWN,
    "listwise-agent-rate": _LISTS.model_copy(update={"learning_rate": 1e-4, "agent_rate": 5e-3}),
    "listwise-drawn-agent-rate": _DRAWN.model_copy(update={"agent_rate": 5e-3, "epochs": 2}),
}
TABLE: Final = OUT / "choosing.csv"


def split(whole: World) -> World:
    """Return the world with a part of the training questions to ask, and no question of the tests."""
    rng = np.random.default_rng(_SEED)
    tasks = []
    for agent in whole.plan.agents:
        some = whole.plan.of(agent, TRAIN)
        asked = set(rng.permutation(len(some))[: LEFT_OUT[agent.task_id]].tolist())
        tasks += [
            dataclasses.replace(task, split=TEST if at in asked else TRAIN) for at, task in enumerate(some)
        ]
    plan = AgentTasks(whole.plan.agents, whole.plan.collection, tuple(tasks))
    return dataclasses.replace(whole, plan=plan)


def worth(shared: World, agents: Agents, model: Path, *, conversions: Path, ids: bool) -> dict[str, float]:
    """Return the mean utility of what a model ranks first, by agent."""
    orders = ordered(score(shared, agents, model, conversions=conversions, ids=ids, depth=DEPTH))
    found = {}
    for agent in shared.plan.agents:
        utilities = []
        for task in shared.plan.of(agent, TEST):
            candidates = agents.search(task.question, DEPTH).passages
            first = [candidates[at] for at in orders[agent.name][task.id][:1]]
            answers = agents.alone(agent, task.question, first)
            utilities.append(agent.utility_of(answers[0], task.answers) if answers else 0.0)
        found[agent.name] = float(np.mean(utilities))
    return found


def main() -> None:
    """Do it."""
    parser = command.parser("agent_study.choosing", __doc__)
    parser.add_argument("--home", type=Path, default=Path("build/agent-study"), help="for models")
    parser.add_argument("way", choices=(START, *WAYS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    shared = split(world())
    agents = Agents(shared)
    home: Path = given.home
    model = bundled.assemble(home / "bundled")
    if given.way != START:
        folder = home / "choosing" / given.way
        run = learning.learned(shared, agents, model, seed=1, ids=True, folder=folder, recipe=WAYS[given.way])
        model = asyncio.run(run)
    found = worth(shared, agents, model, conversions=home / "conversions", ids=given.way != START)
    row = {"way": given.way, **found, "mean": float(np.mean(list(found.values())))}
    others = [one for one in csv_rows.read(TABLE) if one["way"] != given.way]
    order = (START, *WAYS)
    csv_rows.write(TABLE, sorted([*others, row], key=lambda one: order.index(str(one["way"]))))


if __name__ == "__main__":
    main()
