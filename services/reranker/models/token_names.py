"""Names of the tokens of agents: one for each task and one for each model, and two for unknown ones."""

from __future__ import annotations

from typing import Final

from services.reranker.domain import Agent

UNKNOWN_TASK: Final = "[unk-task]"
UNKNOWN_MODEL: Final = "[unk-model]"
TASK: Final = "[task:"
"""What the tokens of tasks begin with."""
MODEL: Final = "[model:"
"""What the tokens of agents' models begin with."""


def task_token(task_id: str) -> str:
    """The token of a task; that of unknown ones for an empty id."""
    return f"{TASK}{task_id}]" if task_id else UNKNOWN_TASK


def model_token(model_id: str) -> str:
    """The token of an agent's model; that of unknown ones for an empty id."""
    return f"{MODEL}{model_id}]" if model_id else UNKNOWN_MODEL


def agent_tokens(agent: Agent) -> frozenset[str]:
    """The tokens of an agent, two."""
    return frozenset((task_token(agent.task_id), model_token(agent.model_id)))
