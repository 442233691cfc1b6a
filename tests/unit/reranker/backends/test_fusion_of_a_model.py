"""What a model's config says about fusion."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sentence_transformers import CrossEncoder
from transformers import BertConfig

from evenmesh_kit.compute.model_files import ModelError
from evenmesh_reranker.backends.encoder import fusions_of
from evenmesh_reranker.domain import Agent, Fusion
from evenmesh_reranker.models.fusions import Fusions


def _with(given: Any) -> CrossEncoder:
    """Return what is read of an encoder: the config of its model."""
    return cast(
        CrossEncoder, SimpleNamespace(model=SimpleNamespace(config=BertConfig(evenmesh_fusion=given)))
    )


def test_a_model_that_says_nothing_orders_alone() -> None:
    assert fusions_of(_with(None)) == Fusions(Fusion(0.0))


def test_neighbors_may_be_missing() -> None:
    older = {"weight": 2, "slope": 0.5, "intercept": -3}
    assert fusions_of(_with(older)).others == Fusion(2.0, slope=0.5, intercept=-3.0)
    assert fusions_of(_with(older | {"neighbors": 1})).others == Fusion(2.0, 1.0, 0.5, -3.0)


def test_an_agent_has_its_own_and_others_what_is_for_all() -> None:
    given = {
        "weight": 2.0,
        "agents": [
            {"task_id": "qa", "model_id": "t5", "weight": 0.5, "neighbors": 0.25},
            {"task_id": "qa", "weight": 0.0},
        ],
    }
    found = fusions_of(_with(given))
    assert found.of(Agent("qa", "t5")) == Fusion(0.5, 0.25)
    assert found.of(Agent("qa", "t5", "another tenant")) == Fusion(0.5, 0.25)
    assert found.of(Agent("qa")) == Fusion(0.0)
    assert found.of(Agent("qa", "bart")) == found.of(Agent()) == Fusion(2.0)
    assert Fusions.parse(json.loads(json.dumps(found.dumped()))) == found


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
        {"weight": 1.0, "agents": {}},
        {"weight": 1.0, "agents": ["qa"]},
        {"weight": 1.0, "agents": [{"task_id": "qa"}]},
        {"weight": 1.0, "agents": [{"task_id": "qa", "weight": 11.0}]},
        {"weight": 1.0, "agents": [{"task_id": "qa", "weight": 1.0}, {"task_id": "qa", "weight": 2.0}]},
    ],
)
def test_wrong_numbers_are_named(wrong: Any) -> None:
    with pytest.raises(ModelError, match=r"evenmesh_fusion of config\.json"):
        fusions_of(_with(wrong))
