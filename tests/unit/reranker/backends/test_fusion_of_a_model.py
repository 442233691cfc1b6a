"""What a model's config says about fusion."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from sentence_transformers import CrossEncoder
from transformers import BertConfig

from evenmesh_kit.compute.model_files import ModelError
from evenmesh_reranker.backends.encoder import fusion_of
from evenmesh_reranker.domain import Fusion


def _with(given: Any) -> CrossEncoder:
    """Return what is read of an encoder: the config of its model."""
    return cast(
        CrossEncoder, SimpleNamespace(model=SimpleNamespace(config=BertConfig(evenmesh_fusion=given)))
    )


def test_a_model_that_says_nothing_orders_alone() -> None:
    assert fusion_of(_with(None)) == Fusion(0.0)


def test_neighbors_may_be_missing() -> None:
    older = {"weight": 2, "slope": 0.5, "intercept": -3}
    assert fusion_of(_with(older)) == Fusion(2.0, slope=0.5, intercept=-3.0)
    assert fusion_of(_with(older | {"neighbors": 1})) == Fusion(2.0, 1.0, 0.5, -3.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"weight": -1.0},
        {"weight": 10.5},
        {"weight": float("nan")},
        {"weight": 1.0, "neighbors": 10.5},
        {"weight": 1.0, "neighbors": -0.1},
        {"weight": 0.0, "neighbors": 1.0},
        {"weight": 1.0, "slope": 0.0},
        {"weight": 1.0, "intercept": 101.0},
        {"neighbors": 1.0},
        {"weight": "much"},
        {"weight": 1.0, "neighbours": 1.0},
        [1.0],
    ],
)
def test_wrong_numbers_are_named(wrong: Any) -> None:
    with pytest.raises(ModelError, match=r"evenmesh_fusion of config\.json"):
        fusion_of(_with(wrong))
