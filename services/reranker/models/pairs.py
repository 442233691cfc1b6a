"""Query and passage as a learned model reads them: the same in serving and in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from services.reranker.domain import Agent
from services.reranker.models import tokens
from services.reranker.ports import Row


def passage_text(title: str, text: str) -> str:
    """A passage in one line: its title and text, joined by a space; one alone if the other is empty."""
    return f"{title} {text}" if title and text else title or text


def rows(
    tokenizer: Any, queries: Sequence[str], texts: Sequence[str], agents: Sequence[Agent], longest: int | None
) -> list[Row]:
    """Pairs as tokens: ``[CLS] [task:t] [model:m] query [SEP] text [SEP]``, in the tokenizer's own template.

    A tokenizer without tokens of agents leaves those two out. Nothing in a query or text is read as a special
    token. A fast tokenizer sets its truncation in place: two threads must not use one at the same time.

    Args:
        tokenizer: a fast tokenizer of transformers.
        queries: one for each pair.
        texts: one for each pair.
        agents: whom each pair is ranked for.
        longest: most tokens of a pair; the end of the longer of the two is cut, the agent's tokens never
            are. None: what is too long stays so.
    """
    personal = tokens.is_personal(tokenizer)
    known = {agent: tokens.ids(tokenizer, agent) if personal else () for agent in set(agents)}
    encoded: Any = tokenizer(
        list(queries),
        list(texts),
        truncation="longest_first" if longest is not None else False,
        max_length=None if longest is None else longest - (2 if personal else 0),
        return_attention_mask=False,
        split_special_tokens=True,
    )
    types = encoded.get("token_type_ids") or [None] * len(texts)
    return [
        _row(ids, kinds, known[agent])
        for ids, kinds, agent in zip(encoded["input_ids"], types, agents, strict=True)
    ]


def padded(tokenizer: Any, batch: Sequence[Row]) -> dict[str, Tensor]:
    """The tensors of a batch, each of shape [rows, longest row], padded on the tokenizer's side."""
    width = max(len(row.ids) for row in batch)
    left = tokenizer.padding_side == "left"
    ids = torch.full((len(batch), width), tokenizer.pad_token_id or 0, dtype=torch.long)
    mask = torch.zeros((len(batch), width), dtype=torch.long)
    types = torch.full((len(batch), width), tokenizer.pad_token_type_id, dtype=torch.long)
    for at, row in enumerate(batch):
        place = slice(width - len(row.ids), width) if left else slice(0, len(row.ids))
        ids[at, place] = torch.tensor(row.ids)
        mask[at, place] = 1
        if row.types is not None:
            types[at, place] = torch.tensor(row.types)
    features = {"input_ids": ids, "attention_mask": mask}
    return features if batch[0].types is None else {**features, "token_type_ids": types}


def _row(ids: list[int], types: list[int] | None, prefix: tuple[int, ...]) -> Row:
    # After the first token, which is the template's [CLS] or <s>, and in its segment.
    kinds = None if types is None else (*types[:1], *types[:1] * len(prefix), *types[1:])
    return Row((*ids[:1], *prefix, *ids[1:]), kinds)
