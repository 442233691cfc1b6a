"""A model between before and after: weights a share of the way, what did not change bit for bit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from evenmesh_kit.compute.model_files import ModelError
from evenmesh_reranker.domain import Agent
from evenmesh_training.bundled import reranker_blend as blend
from evenmesh_training.ium import start
from tests.support import tiny_encoders, tiny_models


@pytest.fixture
def before(tmp_path: Path) -> Path:
    plain = tiny_models.cross_encoder(tmp_path / "plain")
    return tiny_encoders.personal(plain, tmp_path / "before", [Agent("qa", "ann")])


def _run(monkeypatch: pytest.MonkeyPatch, *reported: object) -> int:
    monkeypatch.setattr(sys, "argv", ["blend", *map(str, reported)])
    return blend.main()


def test_weights_are_a_share_of_the_way(
    before: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, model = start.load(before)
    begun = {name: one.clone() for name, one in model.state_dict().items()}
    changed = "classifier.weight"
    with torch.no_grad():
        model.state_dict()[changed].add_(1.0)
    start.save(tokenizer, model, tmp_path / "after")
    reported = ["--before", before, "--after", tmp_path / "after", "--output", tmp_path / "out"]
    assert _run(monkeypatch, *reported, "--share", 0.25) == 0
    _, found = start.load(tmp_path / "out")
    for name, one in found.state_dict().items():
        if name == changed:
            assert torch.allclose(one, begun[name] + 0.25)
        else:
            assert torch.equal(one, begun[name]), name


def test_a_share_beyond_the_way_and_models_of_other_agents_are_refused(
    before: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        _run(monkeypatch, "--before", before, "--after", before, "--output", tmp_path / "o", "--share", 2)
    plain = tiny_models.cross_encoder(tmp_path / "other-plain")
    other = tiny_encoders.personal(plain, tmp_path / "other", [Agent("qa", "bob")])
    with pytest.raises(ModelError, match="other agents"):
        _run(monkeypatch, "--before", before, "--after", other, "--output", tmp_path / "o")
    assert not (tmp_path / "o").exists()
