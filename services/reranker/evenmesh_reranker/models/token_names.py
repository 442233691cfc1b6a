"""Names of agent tokens: one for each task, one for each model, and two for unknown ones."""

from __future__ import annotations

from typing import Final

from evenmesh_reranker.domain import Agent

UNKNOWN_TASK: Final = "[unk-task]"
UNKNOWN_MODEL: Final = "[unk-model]"
TASK: Final = "[task:"
"""Prefix of the tokens of tasks."""
MODEL: Final = "[model:"
"""Prefix of the tokens of agents' models."""


def task_token(task_id: str) -> str:
    """Return the token of a task; that of unknown tasks for an empty id."""
    return f"{TASK}{task_id}]" if task_id else UNKNOWN_TASK


def model_token(model_id: str) -> str:
    """Return the token of an agent's model; that of unknown models for an empty id."""
    return f"{MODEL}{model_id}]" if model_id else UNKNOWN_MODEL


def agent_tokens(agent: Agent) -> frozenset[str]:
    """Return the two tokens of an agent."""
    return frozenset((task_token(agent.task_id), model_token(agent.model_id)))
