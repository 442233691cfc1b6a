"""Agent tokens of models: add them, carry them over to another model, and find them.

For agent (t, m), query x and passage d the model reads ``[task:t][model:m] x [SEP] title d`` (Salemi and
Zamani, Iterative Utility Maximization, section 4.3, equation 6). The tokens are special ones: no text that a
caller sends becomes one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evenmesh_kit.compute.model_files import ModelError
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.models.token_names import (
    MODEL,
    TASK,
    UNKNOWN_MODEL,
    UNKNOWN_TASK,
    model_token,
    task_token,
)

if TYPE_CHECKING:
    from torch import Tensor


def present(tokenizer: Any) -> tuple[str, ...]:
    """Return the agent tokens of a tokenizer, with those of unknown ones, ascending."""
    unknown = (UNKNOWN_TASK, UNKNOWN_MODEL)
    added = tokenizer.get_added_vocab()
    return tuple(sorted(one for one in added if one in unknown or one.startswith((TASK, MODEL))))


def has(tokenizer: Any, *wanted: str) -> bool:
    """Return whether a tokenizer has these tokens, at the same cost however many agents it has."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    return all(tokenizer.convert_tokens_to_ids(token) not in (None, unknown) for token in wanted)


def is_personal(tokenizer: Any) -> bool:
    """Return whether a model with this tokenizer reads which agent it ranks for."""
    return has(tokenizer, UNKNOWN_TASK, UNKNOWN_MODEL)


def ids(tokenizer: Any, agent: Agent) -> tuple[int, int]:
    """Return the token ids of an agent's task and model; of unknown ones where it has none.

    The tokenizer must be of a personal model.
    """
    task, model = task_token(agent.task_id), model_token(agent.model_id)
    return (
        tokenizer.convert_tokens_to_ids(task if has(tokenizer, task) else UNKNOWN_TASK),
        tokenizer.convert_tokens_to_ids(model if has(tokenizer, model) else UNKNOWN_MODEL),
    )


def add_agents(tokenizer: Any, model: Any, agents: Iterable[Agent]) -> tuple[str, ...]:
    """Add the tokens of agents that a model lacks, and return these.

    A new token starts with the embedding of the unknown task or model, so that no score changes before it is
    trained. The tokens of unknown ones start with the mean of all embeddings: train a model that gets them
    before it serves.

    Args:
        tokenizer: a fast tokenizer of transformers; changed.
        model: its model; changed.
        agents: the agents.
    """
    first = _extend(tokenizer, model, {UNKNOWN_TASK: None, UNKNOWN_MODEL: None})
    return first + _extend(tokenizer, model, _like(agents))


def with_agents(tokenizer: Any, words: NDArray[np.float32], agents: Iterable[Agent]) -> NDArray[np.float32]:
    """Return embeddings of words with those of agents' tokens that a personal tokenizer lacks, as
    :func:`add_agents` makes them, ``[vocabulary, hidden]``; the tokenizer is changed.
    """
    known = tokenizer.get_added_vocab()
    wanted = _like(agents)
    new = [token for token in wanted if token not in known]
    tokenizer.add_tokens(new, special_tokens=True)
    missing = len(tokenizer) - len(words)
    grown = np.concatenate((words, np.zeros((max(0, missing), words.shape[1]), np.float32)))
    for token in new:
        grown[tokenizer.convert_tokens_to_ids(token)] = words[known[wanted[token]]]
    return grown if new else words


def carry_over(source_tokenizer: Any, there: Tensor, tokenizer: Any, model: Any) -> tuple[str, ...]:
    """Add the agent tokens that another model has and a model lacks, with the other's embeddings.

    So a new version that was trained without an agent keeps what was learned of it. Tokens that both have
    stay as they are. Nothing is carried over to or from a model that is not personal.

    Args:
        source_tokenizer: tokenizer of the other model.
        there: its embeddings, ``[vocabulary, hidden]``.
        tokenizer: a fast tokenizer of transformers; changed.
        model: its model; changed.

    Returns:
        The added tokens.

    Raises:
        ModelError: the embeddings differ in size.
    """
    if not (is_personal(source_tokenizer) and is_personal(tokenizer)):
        return ()
    lacking = [token for token in present(source_tokenizer) if token not in tokenizer.get_added_vocab()]
    if not lacking:
        return ()
    here = embeddings(model)
    if there.shape[1] != here.shape[1]:
        raise ModelError(
            f"embeddings of {there.shape[1]} numbers cannot be carried over to a model of {here.shape[1]}"
        )
    like = {token: UNKNOWN_TASK if token.startswith(TASK) else UNKNOWN_MODEL for token in lacking}
    added = _extend(tokenizer, model, like)
    here = embeddings(model)
    for token in added:
        row = there[source_tokenizer.convert_tokens_to_ids(token)]
        here[tokenizer.convert_tokens_to_ids(token)] = row.to(here)
    return added


def _like(agents: Iterable[Agent]) -> dict[str, str]:
    """Return the tokens of agents, each with that of an unknown one, which it is like at first."""
    wanted: dict[str, str] = {}
    for agent in agents:
        if agent.task_id:
            wanted[task_token(agent.task_id)] = UNKNOWN_TASK
        if agent.model_id:
            wanted[model_token(agent.model_id)] = UNKNOWN_MODEL
    return wanted


def _extend(tokenizer: Any, model: Any, wanted: Mapping[str, str | None]) -> tuple[str, ...]:
    """Add missing tokens, each with the embedding of another token, or with the mean of all for None."""
    known = tokenizer.get_added_vocab()
    new = [token for token in wanted if token not in known]
    if not new:
        return ()
    mean = embeddings(model).mean(0)
    tokenizer.add_tokens(new, special_tokens=True)
    if len(tokenizer) > len(embeddings(model)):
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    weights = embeddings(model)
    for token in new:
        like = wanted[token]
        row = mean if like is None else weights[tokenizer.convert_tokens_to_ids(like)].clone()
        weights[tokenizer.convert_tokens_to_ids(token)] = row
    return tuple(new)


def embeddings(model: Any) -> Tensor:
    """Return the input embeddings of a model, outside of autograd: a change of them is one of the model."""
    weight: Tensor = model.get_input_embeddings().weight.data
    return weight
