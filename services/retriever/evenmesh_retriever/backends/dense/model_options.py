"""Say how a dense encoder's model is to read texts."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

BUNDLED: Final = "all-MiniLM-L6-v2"
"""Name of the default model, which is installed with ``evenmesh-models``."""

Precision = Literal["auto", "fp32", "bf16"]
Pooling = Literal["", "mean", "cls", "max", "lasttoken"]


class ModelOptions(NamedTuple):
    """How a model reads texts, where it is not to be as its folder says.

    Attributes:
        pooling: how token vectors become one; empty for what the model's folder says, else the mean.
        query_prefix: what queries begin with; None for what the model's folder says, else
            :data:`evenmesh_retriever.backends.dense.prefixes.KNOWN_PREFIXES`.
        passage_prefix: what passages begin with; None likewise.
    """

    pooling: Pooling = ""
    query_prefix: str | None = None
    passage_prefix: str | None = None
