"""Low-rank changes: what they compute, and that a batch may mix agents with and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from evenmesh_kit.compute.model_files import ModelError
from evenmesh_reranker.backends.adapters import FILE, LowRankAdapter
from evenmesh_reranker.backends.encoder import Encoder
from evenmesh_reranker.domain import Agent, Fusion
from evenmesh_reranker.models import fusions
from evenmesh_reranker.models.fusions import NONE
from evenmesh_reranker.ports import Assigned
from tests.support import tiny_encoders, tiny_models
from tests.support.tiny_models import SENTENCES

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.cross_encoder(tmp_path_factory.mktemp("cross-encoder"))


def _scores(model: Encoder, *adapters: LowRankAdapter | None) -> list[float]:
    rows = model.rows(SENTENCES[0], SENTENCES[: len(adapters)], Agent())
    return model.probabilities(rows, adapters)


def _merged(folder: Path, adapter: LowRankAdapter) -> Encoder:
    """The model with W + B A in place of W."""
    model = tiny_encoders.encoder(folder, version="merged")
    layers: Any = dict(model.encoder.model.named_modules())  # type: ignore[union-attr]
    with torch.no_grad():
        for name, (down, up) in adapter.pairs.items():
            layers[name].weight += up @ down
    return model


def test_a_row_is_computed_with_its_own_changes(folder: Path) -> None:
    model = tiny_encoders.encoder(folder, version="v")
    small, large = tiny_encoders.low_rank(1), tiny_encoders.low_rank(2, rank=5)
    got = _scores(model, small, None, large, small, None)
    plain = _scores(model, *[None] * 5)
    of_small, of_large = (_scores(_merged(folder, one), *[None] * 5) for one in (small, large))
    expected = [of_small[0], plain[1], of_large[2], of_small[3], plain[4]]
    assert got == pytest.approx(expected, abs=1e-5)
    assert max(abs(one - other) for one, other in zip(got, plain, strict=True)) > 0.01
    # Nothing of it stays behind.
    assert _scores(model, *[None] * 5) == plain


def test_an_adapter_is_read_as_it_was_written(folder: Path, tmp_path: Path) -> None:
    model = tiny_encoders.encoder(folder, version="v")
    adapter = tiny_encoders.low_rank(1)
    adapter.save(tmp_path)
    again = LowRankAdapter.load(tmp_path, "b", model.encoder.model, CPU)
    assert again.version == "b"
    assert again.size == adapter.size == 4 * 2 * (32 + 32 + 32 + 1)
    assert _scores(model, again) == _scores(model, adapter)


def test_an_adapter_may_have_a_fusion_and_change_no_layer(folder: Path, tmp_path: Path) -> None:
    model = tiny_encoders.encoder(folder, version="v")
    fusion = Fusion(0.5, 2.0, slope=0.25, intercept=-3.0)
    LowRankAdapter("a", {}, fusion).save(tmp_path)
    again = LowRankAdapter.load(tmp_path, "b", model.encoder.model, CPU)
    assert (again.fusion, again.size) == (fusion, 0)
    assert Assigned(model, again).fusion(Agent()) == fusion
    assert (
        Assigned(model).fusion(Agent()) == Assigned(model, tiny_encoders.low_rank(1)).fusion(Agent()) == NONE
    )
    assert _scores(model, again, None, tiny_encoders.low_rank(1)) == pytest.approx(
        _scores(model, None, None, tiny_encoders.low_rank(1)), abs=1e-6
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{", "Expecting property name"),
        ("[1.0]", "it must be an object"),
        ('{"weight": 11}', r"a weight and neighbors in \[0, 10\]"),
        ('{"weight": 1, "agents": []}', "it must have weight"),
        ("null", "it must be an object"),
    ],
)
def test_a_damaged_fusion_is_refused(folder: Path, tmp_path: Path, given: str, said: str) -> None:
    LowRankAdapter("a", {}).save(tmp_path)
    (tmp_path / fusions.FILE).write_text(given)
    model = tiny_encoders.encoder(folder, version="v")
    with pytest.raises(ModelError, match=rf"fusion\.json: .*{said}"):
        LowRankAdapter.load(tmp_path, "a", model.encoder.model, CPU)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"nowhere.lora_A": (2, 32), "nowhere.lora_B": (1, 2)}, "changes nowhere.lora_A"),
        ({"classifier.lora_A": (2, 32)}, "changes classifier.lora_A"),
        ({"classifier.lora_A": (2, 31), "classifier.lora_B": (1, 2)}, "another shape than classifier"),
        ({"classifier.lora_A": (2, 32), "classifier.lora_B": (1, 3)}, "another shape than classifier"),
        ({"classifier.weight": (1, 32)}, "changes classifier.weight"),
        ({"classifier.lora_B": (1, 2)}, "without their other half"),
    ],
)
def test_what_does_not_fit_is_refused(
    folder: Path, tmp_path: Path, tensors: dict[str, tuple[int, ...]], said: str
) -> None:
    model = tiny_encoders.encoder(folder, version="v")
    save_file({name: torch.zeros(shape) for name, shape in tensors.items()}, tmp_path / FILE)
    with pytest.raises(ModelError, match=said):
        LowRankAdapter.load(tmp_path, "a", model.encoder.model, CPU)


def test_a_damaged_file_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no")
    model = tiny_encoders.encoder(folder, version="v")
    with pytest.raises(ModelError, match="the adapter a cannot be loaded"):
        LowRankAdapter.load(tmp_path, "a", model.encoder.model, CPU)
