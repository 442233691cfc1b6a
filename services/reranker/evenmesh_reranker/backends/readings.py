"""What a model reads of a query: all of it and, where its ``config.json`` says so, what asks alone.

A model that learnt from bare questions is misled by sentences beside one. The field :data:`FIELD` of
``config.json`` is true if a query that says something and asks is read a second time without what it says; a
passage has the mean of both log-odds. docs/guides/reranking.md has the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

import numpy as np

from evenmesh_core.asking import asking_alone
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.ports import LoadedModel, Row

FIELD: Final = "evenmesh_reads_asking"
_CERTAIN: Final = 1e-12
"""A score nearer to 0 or 1 counts as this near, so that its log-odds are finite."""


def readings(model: LoadedModel, query: str) -> tuple[str, ...]:
    """Return the texts that a model reads for a query: one or two."""
    alone = asking_alone(query) if model.reads_asking else query
    return (query,) if alone == query else (query, alone)


def rows(model: LoadedModel, read: Sequence[str], texts: Sequence[str], agent: Agent) -> list[Row]:
    """Return the pairs of each text with every reading; those of one text stand together."""
    return list(chain.from_iterable(zip(*(model.rows(query, texts, agent) for query in read), strict=True)))


def scores(values: Sequence[float], count: int) -> list[float]:
    """Return the score of each text from those of its pairs, as :func:`rows` orders them.

    Args:
        values: scores of the pairs, [0, 1].
        count: readings of the query, [1, inf).
    """
    if count == 1:
        return list(values)
    certain = np.clip(np.asarray(values).reshape(-1, count), _CERTAIN, 1.0 - _CERTAIN)
    odds = (np.log(certain) - np.log1p(-certain)).mean(axis=1)
    found: list[float] = (1.0 / (1.0 + np.exp(-odds))).tolist()
    return found
