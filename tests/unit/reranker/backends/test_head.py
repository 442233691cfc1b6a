"""The head in float32: found in a model, exact under autocast, and the model as it was afterwards."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch import nn

from evenmesh_core.list_agreement import kendall_tau
from evenmesh_kit.compute.placement import Placement
from evenmesh_reranker import bundled
from evenmesh_reranker.backends.adapters import LowRankAdapter
from evenmesh_reranker.backends.encoder import Encoder, EncoderLoader
from evenmesh_reranker.backends.head import exact, head
from evenmesh_reranker.domain import Agent
from evenmesh_training.online import low_rank
from tests.support import tiny_models
from tests.support.operators import Operators, Waits
from tests.support.tiny_models import SENTENCES


def _loaded(folder: Path, dtype: str, *, narrow: bool = False) -> Encoder:
    loader = EncoderLoader(Placement.choose("cpu", dtype), narrow=narrow)
    return loader.full(folder, "v", provenance="", created_at=datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> nn.Module:
    encoder = _loaded(tiny_models.cross_encoder(tmp_path_factory.mktemp("tiny")), "float32").encoder
    found = encoder.model
    assert isinstance(found, nn.Module)
    return found


def test_it_is_what_is_in_no_stack_of_layers(model: nn.Module) -> None:
    names = {id(one): name for name, one in model.named_modules()}
    assert {names[id(one)] for one in head(model)} == {"bert.pooler.dense", "classifier"}


def test_it_computes_in_float32_and_leaves_the_model_as_it_was(model: nn.Module) -> None:
    layer = head(model)[-1]
    given = torch.randn(3, layer.in_features)
    wanted = layer(given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with exact([layer]):
            assert torch.equal(layer(given), wanted)
            narrow = layer(given.bfloat16())
        assert narrow.dtype == torch.float32
        assert layer(given).dtype == torch.bfloat16
    assert "forward" not in vars(layer)


def test_an_adapter_of_the_head_still_counts(tmp_path: Path) -> None:
    encoder = _loaded(tiny_models.cross_encoder(tmp_path), "bfloat16")
    adapter = low_rank.fresh(encoder.encoder.model, layers="classifier", rank=2, seed=0)
    for _, up in adapter.pairs.values():
        up.fill_(1.0)
    rows = encoder.rows("water", SENTENCES[:2], Agent())
    plain, changed = (encoder.probabilities(rows, [one] * 2) for one in (None, adapter))
    assert plain != pytest.approx(changed, abs=1e-3)


def test_in_bfloat16_the_model_that_ships_keeps_passages_of_nearly_one_score_apart(tmp_path: Path) -> None:
    folder = bundled.assemble(tmp_path)
    found = []
    for dtype in ("float32", "bfloat16"):
        encoder = _loaded(folder, dtype)
        rows = encoder.rows("At what temperature does water boil?", SENTENCES, Agent())
        found.append(encoder.probabilities(rows, [None] * len(rows)))
    assert len(set(found[1])) == len(set(found[0]))
    orders = [[str(at) for at in np.argsort([-one for one in scores], kind="stable")] for scores in found]
    assert kendall_tau(*orders) >= 0.9


@pytest.mark.parametrize("layers", ["", "query|dense", "classifier"])
def test_weights_converted_once_score_the_same_to_the_bit(tmp_path: Path, layers: str) -> None:
    """In bfloat16, with and without an adapter; no weight of a layer is converted in a pass."""
    folder = tiny_models.cross_encoder(tmp_path)
    plain, narrow = _loaded(folder, "bfloat16"), _loaded(folder, "bfloat16", narrow=True)
    rows = plain.rows("water", SENTENCES, Agent())
    adapters: list[LowRankAdapter | None] = [None] * len(rows)
    if layers:
        adapter = low_rank.fresh(plain.encoder.model, layers=layers, rank=2, seed=0)
        generator = torch.Generator().manual_seed(1)
        for _, up in adapter.pairs.values():
            up.copy_(torch.randn(up.shape, generator=generator))
        adapters = [adapter if at % 2 else None for at in range(len(rows))]
    assert narrow.size < plain.size
    counted = []
    scores = []
    for encoder in (plain, narrow):
        weights = {one.data_ptr() for one in cast(nn.Module, encoder.encoder.model).parameters()}
        with Operators() as operators:
            scores.append(encoder.probabilities(rows, adapters))
        counted.append((sum(one.data_ptr() in weights for one in operators.casts), len(operators.casts)))
    assert scores[0] == scores[1]
    assert len(set(scores[0])) > len(rows) // 2
    assert counted[0][0] > 0 == counted[1][0]
    assert counted[1][1] < counted[0][1]


def test_scores_are_read_at_once(tmp_path: Path) -> None:
    """A score read by itself waits for the device: with a pass of any rows it waits as often."""
    encoder = _loaded(tiny_models.cross_encoder(tmp_path), "float32")
    rows = encoder.rows("water", SENTENCES, Agent())
    counts = []
    for some in (rows[:1], rows):
        with Waits() as waits:
            encoder.probabilities(some, [None] * len(some))
        counts.append(waits.calls["tolist"] + waits.calls["__float__"] + waits.calls["item"])
    assert counts == [1, 1]
