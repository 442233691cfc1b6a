"""Ways of ranking to compare: which agents share a model, for how many rounds, and whether it is personal."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from evenmesh_lab.files.agent_runs import BM25, DENSE, OFFLINE, ORACLE, PER_AGENT, PER_DATASET, URAG
from evenmesh_reranker.domain import Agent
from evenmesh_training.ium.plan import AgentTable, AgentTasks

BASELINES: Final = (BM25, DENSE, PER_AGENT, PER_DATASET, URAG, ORACLE)
"""Baselines of offline IUM (section 5.2), and the oracle."""


@dataclass(frozen=True, slots=True)
class Learner:
    """One model to train, and the agents whose feedback it learns from.

    Attributes:
        folder: its folder, below the run.
        agents: the agents.
        rounds: rounds of feedback and training, [1, inf).
        personalised: whether it reads which agent it ranks for.
    """

    folder: str
    agents: tuple[AgentTable, ...]
    rounds: int
    personalised: bool

    def reads(self, agent: AgentTable) -> Agent:
        """Return the agent that it reads; an unknown one if it is not personalised."""
        return agent.agent if self.personalised else Agent()


@dataclass(frozen=True, slots=True)
class System:
    """A way of ranking.

    Attributes:
        name: one of :data:`evenmesh_lab.files.agent_runs.SYSTEMS`.
        learners: models, of which each agent is served by one; none for a retriever and the oracle.
        first: the first round that is measured; 0 is before any.
    """

    name: str
    learners: tuple[Learner, ...] = ()
    first: int = 0


def system(name: str, plan: AgentTasks, *, rounds: int, personalised: bool = True) -> System:
    """Return a way of ranking by name.

    Systems that train the same model share its folder: uRAG is the first round of offline IUM, and the model
    of a data set with one agent is that agent's.

    Raises:
        ValueError: there is no such system.
    """
    if name in (BM25, DENSE, ORACLE):
        return System(name)
    suffix = "" if personalised else "-unpersonalised"
    if name == PER_AGENT:
        groups: list[tuple[AgentTable, ...]] = [(one,) for one in plan.agents]
    elif name == PER_DATASET:
        sets = dict.fromkeys(one.group for one in plan.agents)
        groups = [tuple(one for one in plan.agents if one.group == group) for group in sets]
    elif name in (URAG, OFFLINE):
        learner = Learner(f"together{suffix}", plan.agents, 1 if name == URAG else rounds, personalised)
        return System(name, (learner,), 1 if name == URAG else 0)
    else:
        raise ValueError(name)
    learners = []
    for at, agents in enumerate(groups):
        alone = len(agents) == 1
        number = plan.agents.index(agents[0]) if alone else at
        folder = f"{PER_AGENT if alone else PER_DATASET}{suffix}/{number:03d}"
        learners.append(Learner(folder, agents, 1, personalised))
    return System(name, tuple(learners), 1)


def ids(agent: Agent) -> str:
    """Return an agent's key in a table of results."""
    return json.dumps([agent.task_id, agent.model_id], ensure_ascii=False)
