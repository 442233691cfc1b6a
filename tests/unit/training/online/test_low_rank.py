"""Changes while they are trained are those that serving adds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evenmesh_reranker.domain import Agent, Fusion, Passage
from evenmesh_training.online import low_rank
from evenmesh_training.online.candidates import Candidate, Parameters
from tests.support import tiny_encoders
from tests.support.online_world import Stream, corpus

ANN = Agent("qa", "ann")


def _asked() -> tuple[str, list[Passage]]:
    stream = Stream(corpus(20))
    return stream.query(0), list(stream.candidates(0))


def _alike(one: list[float], other: list[float]) -> bool:
    return torch.allclose(torch.tensor(one), torch.tensor(other), atol=1e-5)


def test_fresh_changes_change_nothing_and_drawn_ones_score_alike_everywhere(
    folder: Path, tmp_path: Path
) -> None:
    base = tiny_encoders.encoder(folder, version="base")
    before = Parameters(base).scores(*_asked(), ANN)
    candidate = Candidate.adapted(base, None, layers=".*", rank=4, seed=0)
    assert candidate.parameters.scores(*_asked(), ANN) == pytest.approx(before, abs=1e-6)
    adapter = candidate.parameters.adapter
    assert adapter is not None
    # Every linear layer; a layer with one output has rank one.
    assert {down.shape[0] for down, _ in adapter.pairs.values()} == {1, 4}
    for _, up in adapter.pairs.values():
        up.normal_(0, 0.5, generator=torch.Generator().manual_seed(1))
    served = candidate.parameters.scores(*_asked(), ANN)
    assert not _alike(served, before)

    # In training the model itself computes with them, and is as it was afterwards.
    parameters = {name for name, _ in base.encoder.model.named_parameters()}
    with candidate.training() as model:
        trained = {name for name, one in model.named_parameters() if one.requires_grad}
        assert trained == {f"{name}.lora_{half}" for name in adapter.pairs for half in "AB"}
        assert _alike(Parameters(base).scores(*_asked(), ANN), served)
    assert {name for name, _ in base.encoder.model.named_parameters()} == parameters
    assert all(one.requires_grad for one in base.encoder.model.parameters())
    assert Parameters(base).scores(*_asked(), ANN) == before

    # Folded into a model's own weights they score the same.
    copy = tiny_encoders.encoder(folder, version="copy")
    low_rank.fold(copy.encoder.model, adapter)
    assert _alike(Parameters(copy).scores(*_asked(), ANN), served)

    # What goes on from them leaves them alone.
    goes_on = Candidate.adapted(base, adapter, layers=".*", rank=4, seed=0)
    with goes_on.training() as model, torch.no_grad():
        for one in (one for one in model.parameters() if one.requires_grad):
            one.zero_()
    assert _alike(Parameters(base, adapter).scores(*_asked(), ANN), served)
    assert _alike(goes_on.parameters.scores(*_asked(), ANN), before)


def test_layers_are_chosen_by_name(folder: Path) -> None:
    base = tiny_encoders.encoder(folder, version="base")
    adapter = low_rank.fresh(base.encoder.model, layers="query|value", rank=2, seed=0)
    assert len(adapter.pairs) == 2 * 2  # two layers of the tiny BERT
    with pytest.raises(ValueError, match="no linear layer of the model has a name that matches 'nope'"):
        low_rank.fresh(base.encoder.model, layers="nope", rank=2, seed=0)


def test_a_model_of_an_agents_own_keeps_the_fusion_that_its_adapter_had(folder: Path) -> None:
    base = tiny_encoders.encoder(folder, version="base")
    adapter = Candidate.adapted(base, None, layers=".*", rank=1, seed=0).parameters.adapter
    assert adapter is not None
    chosen = Fusion(4.0, neighbors=0.5)
    copy = tiny_encoders.encoder(folder, version="copy")
    own = Candidate.full(copy, replace(adapter, fusion=chosen), ANN)
    assert own.parameters.model.fusions.of(ANN) == chosen
    assert own.parameters.model.fusions.of(Agent("qa", "bob")) == base.fusions.others
