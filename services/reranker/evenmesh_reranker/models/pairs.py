"""Query and passage as a learned model reads them: the same code in serving and in training.

A reranker without a model imports this module too, so torch is imported where a batch is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from evenmesh_kit.compute.lengths import CPU_ROWS, by_length
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.models import tokens
from evenmesh_reranker.ports import Adapter, LoadedModel, Row

if TYPE_CHECKING:
    from torch import Tensor

_MOST_CHARACTERS = 32
"""Characters that are read for each token of the longest pair; what is behind them would be cut anyway."""
_BATCH_TOKENS = 4096
"""Most padded tokens of a batch of :func:`probabilities`."""


def passage_text(title: str, text: str) -> str:
    """Return title and text joined by a space; one of them alone if the other is empty."""
    return f"{title} {text}" if title and text else title or text


def rows(
    tokenizer: Any, queries: Sequence[str], texts: Sequence[str], agents: Sequence[Agent], longest: int | None
) -> list[Row]:
    """Return pairs as tokens: ``[CLS] [task:t] [model:m] query [SEP] text [SEP]``, in its template.

    A tokenizer without agent tokens leaves those two out. No query or text becomes a special token. A fast
    tokenizer sets its truncation in place: two threads must not use one at the same time.

    Args:
        tokenizer: a fast tokenizer of transformers.
        queries: one for each pair.
        texts: one for each pair.
        agents: one for each pair.
        longest: most tokens of a pair; the end of the longer text is cut, agent tokens never are. None: no
            pair is cut.
    """
    personal = tokens.is_personal(tokenizer)
    known = {agent: tokens.ids(tokenizer, agent) if personal else () for agent in set(agents)}
    most = None if longest is None else _MOST_CHARACTERS * longest
    encoded: Any = tokenizer(
        [query[:most] for query in queries],
        [text[:most] for text in texts],
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
    """Return the tensors of a batch, each of shape [rows, longest row], padded on the tokenizer's side."""
    import torch

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


def probabilities(model: LoadedModel, rows: Sequence[Row], adapters: Sequence[Adapter | None]) -> list[float]:
    """Return the score of each row, [0, 1], computed in batches of rows of similar length.

    Args:
        model: the model.
        rows: pairs, in any order.
        adapters: one for each row; None for none.
    """
    values = [0.0] * len(rows)
    for batch in by_length([len(row.ids) for row in rows], _BATCH_TOKENS, size=CPU_ROWS):
        found = model.probabilities([rows[at] for at in batch], [adapters[at] for at in batch])
        for at, value in zip(batch, found, strict=True):
            values[at] = value
    return values


def _row(ids: list[int], types: list[int] | None, prefix: tuple[int, ...]) -> Row:
    # After the first token, which is the template's [CLS] or <s>, and in its segment.
    kinds = None if types is None else (*types[:1], *types[:1] * len(prefix), *types[1:])
    return Row((*ids[:1], *prefix, *ids[1:]), kinds)
