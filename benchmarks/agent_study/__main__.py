"""Ask the agents, and train rerankers for them; what was stopped continues.

``python -m benchmarks.agent_study worth`` asks what every candidate is worth to an agent; ``start`` ranks
with the model that ships, which training begins with; ``learned 1`` trains on feedback by seed 1,
``without-ids 1`` without telling the model who asks, and ``blended 1`` takes the mean of the weights before
and after. ``listwise 1`` trains in the way that :mod:`benchmarks.agent_study.choosing` found best.
``fused 1`` changes no weight of the model, and chooses for each agent how its scores are fused with BM25's;
``shared 1`` chooses for all agents together, and ``asked`` fuses as the model that ships asks for;
``in-hybrid 1`` does both with the candidates of an ask without options. Each writes its records.
``--shallow`` ranks as many candidates as training of ``learned`` looks at.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import command
from benchmarks.agent_study import learning, records
from benchmarks.agent_study.answering import BM25, HYBRID, Agents
from benchmarks.agent_study.ranking import DEPTH, SHALLOW, Probabilities, fused, ordered, rows, score
from benchmarks.agent_study.records import (
    ASKED,
    BLENDED,
    FUSED,
    LEARNED,
    LISTWISE,
    SHARED,
    START,
    WITHOUT_IDS,
)
from benchmarks.agent_study.sets import TEST, World, world
from evenmesh_reranker import bundled
from evenmesh_reranker.models.fusions import Fusions
from evenmesh_training.ium.offline import MODEL
from evenmesh_training.ium.start import fusions_of

WORTH = "worth"
TRAINED = (LEARNED, WITHOUT_IDS, BLENDED, LISTWISE, FUSED, SHARED)
IN_HYBRID = "in-hybrid"
RECIPES = {LISTWISE: learning.LISTWISE, FUSED: learning.FUSED, SHARED: learning.FUSED}


def main() -> None:
    """Do it."""
    parser = command.parser("agent_study", __doc__)
    parser.add_argument("--home", type=Path, default=Path("build/agent-study"), help="for models")
    parser.add_argument("what", choices=(WORTH, START, ASKED, IN_HYBRID, *TRAINED))
    parser.add_argument("seed", type=int, nargs="?", choices=learning.SEEDS)
    parser.add_argument("--shallow", action="store_true", help=f"rank {SHALLOW} candidates, not {DEPTH}")
    given = parser.parse_args()
    if (given.what in (IN_HYBRID, *TRAINED)) != (given.seed is not None):
        parser.error(f"{', '.join((IN_HYBRID, *TRAINED))} take a seed, and nothing else does")
    torch.set_num_threads(1)
    shared = world()
    home: Path = given.home
    agents = Agents(shared, home)
    ids = given.what in (LEARNED, BLENDED, LISTWISE, FUSED)
    if given.what == WORTH:
        records.write_worth(_worth(shared, agents))
        return
    if given.what == IN_HYBRID:
        records.write_in_hybrid(_in_hybrid(shared, agents, home, given.seed), given.seed)
        return
    start: Path = home / ("start-shallow.json" if given.shallow else "start.json")
    before: Probabilities | None = None
    if given.what != START:
        if not start.is_file():
            parser.error(f"{start} is missing, which rankings are compared with: run {START} first")
        before = json.loads(start.read_bytes())
    model = bundled.assemble(home / "bundled")
    if given.what in TRAINED:
        recipe = RECIPES.get(given.what, learning.RECIPE)
        folder = home / recipe.name / str(given.seed)
        run = learning.learned(shared, agents, model, seed=given.seed, ids=ids, folder=folder, recipe=recipe)
        model = asyncio.run(run)
        if given.what == BLENDED:
            model = learning.blended(model, folder / "start" / MODEL, folder / BLENDED)
    depth = SHALLOW if given.shallow else DEPTH
    scores: Probabilities
    if before is not None and given.what in (ASKED, FUSED, SHARED):
        chosen = fusions_of(model)
        scores = fused(shared, agents, before, chosen, ids=ids)
        if given.what == FUSED:
            records.write_fusions(BM25, given.seed, chosen, shared.plan.agents)
    else:
        scores = score(shared, agents, model, conversions=home / "conversions", ids=ids, depth=depth)
    if before is None:
        start.write_text(json.dumps(scores))
    records.write(
        rows(ordered(scores), None if before is None else ordered(before)),
        records.path(given.what, given.seed, SHALLOW if given.shallow else None),
    )


def _worth(shared: World, agents: Agents) -> Iterator[dict[str, Any]]:
    for agent in shared.plan.agents:
        for task in shared.plan.of(agent, TEST):
            answers = agents.alone(agent, task.question, agents.search(task.question, DEPTH).passages)
            utilities = [agent.utility_of(one, task.answers) for one in answers]
            yield {"agent": agent.name, "query": task.id, "utilities": utilities}


def _in_hybrid(shared: World, agents: Agents, home: Path, seed: int) -> Iterator[dict[str, Any]]:
    model = bundled.assemble(home / "bundled")
    recipe = learning.HYBRID_FUSED
    run = learning.learned(
        shared, agents, model, seed=seed, ids=True, folder=home / recipe.name / str(seed), recipe=recipe
    )
    chosen = fusions_of(asyncio.run(run))
    records.write_fusions(HYBRID, seed, chosen, shared.plan.agents)
    kept = home / "start-in-hybrid.json"
    if not kept.is_file():
        found = score(
            shared,
            agents,
            model,
            conversions=home / "conversions",
            ids=False,
            depth=recipe.depth,
            retriever=recipe.retriever,
        )
        kept.write_text(json.dumps(found))
    alone: Probabilities = json.loads(kept.read_bytes())
    orders = {
        name: ordered(fused(shared, agents, alone, fusions, ids=True, retriever=recipe.retriever))
        for name, fusions in ((START, Fusions()), (ASKED, fusions_of(model)), (FUSED, chosen))
    }
    for agent in shared.plan.agents:
        for task in shared.plan.of(agent, TEST):
            passages = agents.search(task.question, recipe.depth, recipe.retriever).passages
            firsts = {"hybrid": 0} | {name: order[agent.name][task.id][0] for name, order in orders.items()}
            answers = agents.alone(agent, task.question, [passages[at] for at in firsts.values()])
            worth = (agent.utility_of(one, task.answers) for one in answers)
            yield {"agent": agent.name, "query": task.id, **dict(zip(firsts, worth, strict=True))}


if __name__ == "__main__":
    main()
