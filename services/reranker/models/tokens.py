"""Tokens of agents in models: they are added, carried over, and found again.

The input of the model for agent (t, m), query x and passage d is ``[task:t][model:m] x [SEP] title d``
(iterative-utility-maximization.txt, section 4.3, equation 6; algorithms.md, section 6). The tokens are
special ones: no text that someone sends becomes one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from meshkit.models import ModelError
from services.reranker.domain import Agent
from services.reranker.models.token_names import (
    MODEL,
    TASK,
    UNKNOWN_MODEL,
    UNKNOWN_TASK,
    model_token,
    task_token,
)


def present(tokenizer: Any) -> tuple[str, ...]:
    """The tokens of agents that a tokenizer has, those of unknown ones among them, ascending."""
    return tuple(
        sorted(
            token
            for token in tokenizer.get_added_vocab()
            if token in (UNKNOWN_TASK, UNKNOWN_MODEL) or token.startswith((TASK, MODEL))
        )
    )


def is_personal(tokenizer: Any) -> bool:
    """Whether a model with this tokenizer is told which agent it ranks for."""
    return {UNKNOWN_TASK, UNKNOWN_MODEL} <= set(tokenizer.get_added_vocab())


def ids(tokenizer: Any, agent: Agent) -> tuple[int, int]:
    """Token ids of an agent's task and model; each is that of unknown ones if there is none of its own.

    The tokenizer must be of a personal model.
    """
    added: dict[str, int] = tokenizer.get_added_vocab()
    task = added.get(task_token(agent.task_id), added[UNKNOWN_TASK])
    return task, added.get(model_token(agent.model_id), added[UNKNOWN_MODEL])


def add_agents(tokenizer: Any, model: Any, agents: Iterable[Agent]) -> tuple[str, ...]:
    """Gives a model tokens of agents that it lacks, and returns those.

    A new token begins with the embedding of the unknown task or model, so that no score changes until it is
    trained. If those two are new themselves, they begin with the mean of all embeddings: a model that never
    was told its agent must be trained before it is served so.

    Args:
        tokenizer: a fast tokenizer of transformers; changed.
        model: its model; changed.
        agents: whom for.
    """
    first = _extend(tokenizer, model, {UNKNOWN_TASK: None, UNKNOWN_MODEL: None})
    wanted: dict[str, str | None] = {}
    for agent in agents:
        if agent.task_id:
            wanted[task_token(agent.task_id)] = UNKNOWN_TASK
        if agent.model_id:
            wanted[model_token(agent.model_id)] = UNKNOWN_MODEL
    return first + _extend(tokenizer, model, wanted)


def carry_over(source_tokenizer: Any, source_model: Any, tokenizer: Any, model: Any) -> tuple[str, ...]:
    """Gives a model the tokens of agents that another has and it lacks, with the other's embeddings.

    So what was learned of an agent survives a new version that was trained without it. Tokens that both have
    stay as the model has them: it was trained with them. Nothing is carried over to a model that is not
    personal, nor from one.

    Returns:
        The tokens carried over.

    Raises:
        ModelError: the embeddings are of different size.
    """
    if not (is_personal(source_tokenizer) and is_personal(tokenizer)):
        return ()
    lacking = [token for token in present(source_tokenizer) if token not in tokenizer.get_added_vocab()]
    if not lacking:
        return ()
    there, here = _embeddings(source_model), _embeddings(model)
    if there.shape[1] != here.shape[1]:
        raise ModelError(
            f"embeddings of {there.shape[1]} numbers cannot be carried over to a model of {here.shape[1]}"
        )
    added = _extend(
        tokenizer,
        model,
        {token: UNKNOWN_TASK if token.startswith(TASK) else UNKNOWN_MODEL for token in lacking},
    )
    here = _embeddings(model)
    with torch.no_grad():
        for token in added:
            row = there[source_tokenizer.convert_tokens_to_ids(token)]
            here[tokenizer.convert_tokens_to_ids(token)] = row.to(here)
    return added


def _extend(tokenizer: Any, model: Any, wanted: dict[str, str | None]) -> tuple[str, ...]:
    """Adds tokens that are lacking, each with the embedding of another, or with the mean of all."""
    known = tokenizer.get_added_vocab()
    new: Sequence[str] = [token for token in wanted if token not in known]
    if not new:
        return ()
    mean = _embeddings(model).mean(0)
    tokenizer.add_tokens(list(new), special_tokens=True)
    if len(tokenizer) > len(_embeddings(model)):
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    embeddings = _embeddings(model)
    with torch.no_grad():
        for token in new:
            like = wanted[token]
            row = mean if like is None else embeddings[tokenizer.convert_tokens_to_ids(like)].clone()
            embeddings[tokenizer.convert_tokens_to_ids(token)] = row
    return tuple(new)


def _embeddings(model: Any) -> Tensor:
    weight: Tensor = model.get_input_embeddings().weight.data
    return weight
