"""Ways of ranking that are compared: what is learned together, for how long, and told whom it ranks for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from raglab.files.agent_runs import BM25, DENSE, OFFLINE, PER_AGENT, PER_DATASET, URAG
from services.reranker.domain import Agent
from services.reranker.training.plan import AgentTable, Plan

BASELINES: Final = (BM25, DENSE, PER_AGENT, PER_DATASET, URAG)
"""What offline IUM is compared with (section 5.2)."""


@dataclass(frozen=True, slots=True)
class Learner:
    """One model to be learned, and whose feedback it learns from.

    Attributes:
        folder: where it is kept, below the run.
        agents: whose feedback.
        rounds: of feedback and training, [1, inf).
        personalised: whether it is told whom it ranks for.
    """

    folder: str
    agents: tuple[AgentTable, ...]
    rounds: int
    personalised: bool

    def reads(self, agent: AgentTable) -> Agent:
        """Whom it is told it ranks for."""
        return agent.agent if self.personalised else Agent()


@dataclass(frozen=True, slots=True)
class System:
    """A way of ranking.

    Attributes:
        name: one of :data:`raglab.files.agent_runs.SYSTEMS`.
        learners: models of which each agent is served by one; none for a retriever.
        first: the first round that is measured of it; 0 is before any.
    """

    name: str
    learners: tuple[Learner, ...] = ()
    first: int = 0


def system(name: str, plan: Plan, *, rounds: int, personalised: bool = True) -> System:
    """A way of ranking by name.

    uRAG is one round for all agents: it is the first round of offline IUM, and shares its folder.
    """
    if name in (BM25, DENSE):
        return System(name)
    if name == PER_AGENT:
        return System(name, _groups(name, [(one,) for one in plan.agents], personalised=personalised), 1)
    if name == PER_DATASET:
        sets = dict.fromkeys(one.group for one in plan.agents)
        groups = [tuple(one for one in plan.agents if one.group == group) for group in sets]
        return System(name, _groups(name, groups, personalised=personalised), 1)
    if name not in (URAG, OFFLINE):
        raise ValueError(name)
    folder = "together" if personalised else "together-unpersonalised"
    learner = Learner(folder, plan.agents, 1 if name == URAG else rounds, personalised)
    return System(name, (learner,), 1 if name == URAG else 0)


def _groups(
    name: str, groups: Iterable[tuple[AgentTable, ...]], *, personalised: bool
) -> tuple[Learner, ...]:
    return tuple(Learner(f"{name}/{at:03d}", agents, 1, personalised) for at, agents in enumerate(groups))


def ids(agent: Agent) -> str:
    """An agent in a table of results."""
    return json.dumps([agent.task_id, agent.model_id], ensure_ascii=False)
