"""Define the schemas of the collections in Milvus."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from pymilvus import DataType, Function, FunctionType, MilvusClient

from evenmesh_retriever.backends.milvus.expressions import ATTRIBUTES, NUMBERS
from evenmesh_retriever.backends.milvus.rows import (
    CONTENT,
    DENSE,
    ID,
    IMPACTS,
    LEXICAL,
    MAX_BYTES,
    TITLE_LENGTH,
)

KEY: Final = "key"
RECORD: Final = "record"
_UNUSED: Final = "unused"

ANALYZERS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "unicode": {"type": "standard"},
        "whitespace": {"tokenizer": "whitespace"},
        "english": {"type": "english"},
    }
)
"""Milvus's analyzer that is nearest to each of ours."""
ALWAYS_THERE: Final = "unicode"
"""The one of them that Milvus Lite has too."""


def passages(analyzer: str, dimension: int | None, *, sparse: bool) -> Any:
    """Schema of a collection of passages.

    Args:
        analyzer: name of the analyzer, one of :data:`ANALYZERS`.
        dimension: length of the dense vectors; None for none.
        sparse: whether there are weights of terms, made by a model.
    """
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field(ID, DataType.VARCHAR, is_primary=True, max_length=256)
    schema.add_field(
        CONTENT,
        DataType.VARCHAR,
        max_length=MAX_BYTES,
        enable_analyzer=True,
        analyzer_params=dict(ANALYZERS[analyzer]),
    )
    schema.add_field(TITLE_LENGTH, DataType.INT64)
    schema.add_field(ATTRIBUTES, DataType.JSON)
    schema.add_field(NUMBERS, DataType.JSON)
    schema.add_field(LEXICAL, DataType.SPARSE_FLOAT_VECTOR)
    schema.add_function(
        Function(
            name="bm25",
            function_type=FunctionType.BM25,
            input_field_names=[CONTENT],
            output_field_names=[LEXICAL],
        )
    )
    if dimension is not None:
        schema.add_field(DENSE, DataType.FLOAT_VECTOR, dim=dimension)
    if sparse:
        schema.add_field(IMPACTS, DataType.SPARSE_FLOAT_VECTOR)
    return schema


def indexes(k1: float, b: float, dense: str | None, *, sparse: bool) -> Any:
    """Index of such a collection; ``dense`` is the kind of the dense one, None for none."""
    found = MilvusClient.prepare_index_params()
    found.add_index(
        LEXICAL,
        index_type="SPARSE_INVERTED_INDEX",
        metric_type="BM25",
        params={"bm25_k1": k1, "bm25_b": b},
    )
    if dense is not None:
        found.add_index(
            DENSE,
            index_type=dense,
            metric_type="IP",
            params={"M": 16, "efConstruction": 200} if dense == "HNSW" else {},
        )
    if sparse:
        found.add_index(IMPACTS, index_type="SPARSE_INVERTED_INDEX", metric_type="IP")
    return found


def records() -> tuple[Any, Any]:
    """Schema and indexes of the collection that says which collections there are."""
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field(KEY, DataType.VARCHAR, is_primary=True, max_length=256)
    schema.add_field(RECORD, DataType.VARCHAR, max_length=MAX_BYTES)
    # Milvus takes no collection without a vector.
    schema.add_field(_UNUSED, DataType.FLOAT_VECTOR, dim=2)
    found = MilvusClient.prepare_index_params()
    found.add_index(_UNUSED, index_type="FLAT", metric_type="IP")
    return schema, found


def record_row(key: str, record: str) -> dict[str, Any]:
    """Return a row of that collection."""
    return {KEY: key, RECORD: record, _UNUSED: [0.0, 0.0]}
