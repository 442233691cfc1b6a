"""Encoders in OpenVINO: PyTorch's states, the same to the bit in any company, with changes, and quiet."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, DistilBertConfig, DistilBertModel, RobertaConfig, RobertaModel

from evenmesh_kit.compute.conversions import Conversions
from evenmesh_kit.compute.cpu_engine import EngineError, installed_version
from evenmesh_kit.compute.openvino_encoder import OpenVinoEncoder
from evenmesh_kit.compute.placement import Placement

needs_openvino = pytest.mark.skipif(installed_version() is None, reason="openvino is not installed")


def _bert() -> Any:
    return BertModel(
        BertConfig(
            vocab_size=50,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=128,
        )
    )


def _roberta() -> Any:
    return RobertaModel(
        RobertaConfig(
            vocab_size=50,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=130,
            type_vocab_size=1,
        )
    )


def _distilbert() -> Any:
    return DistilBertModel(
        DistilBertConfig(
            vocab_size=50, dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=128
        )
    )


def _model(make: Callable[[], Any] = _bert, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return model


def _ids(*lengths: int) -> tuple[Tensor, Tensor]:
    """A padded batch of drawn tokens, and its mask."""
    generator = torch.Generator().manual_seed(sum(lengths))
    ids = torch.randint(5, 50, (len(lengths), max(lengths)), generator=generator)
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    return torch.where(mask, ids, 0), mask.long()


@pytest.fixture(scope="module")
def conversions(tmp_path_factory: pytest.TempPathFactory) -> Conversions:
    return Conversions(tmp_path_factory.mktemp("openvino"))


@needs_openvino
@pytest.mark.parametrize("make", [_bert, _roberta, _distilbert])
def test_states_are_pytorchs(make: Callable[[], Any], conversions: Conversions) -> None:
    model = _model(make)
    compiled = OpenVinoEncoder(model, bfloat16=False, parallel=1, conversions=conversions)
    ids, mask = _ids(1, 9, 64, 100)
    with torch.inference_mode():
        found = compiled.batch(ids, mask)
        for row, tokens in enumerate((1, 9, 64, 100)):
            wanted = model(input_ids=ids[row : row + 1, :tokens]).last_hidden_state[0]
            torch.testing.assert_close(found[row, :tokens], wanted, rtol=1e-4, atol=1e-4)
            assert not found[row, tokens:].any()


@needs_openvino
def test_segments_count(conversions: Conversions) -> None:
    model = _model()
    compiled = OpenVinoEncoder(model, bfloat16=False, parallel=1, conversions=conversions)
    ids, mask = _ids(12)
    types = (torch.arange(12) > 5).long()[None]
    with torch.inference_mode():
        wanted = model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state
        found = compiled.batch(ids, mask, types)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(compiled.batch(ids, mask), wanted, atol=1e-2)


@needs_openvino
@pytest.mark.parametrize("bfloat16", [False, True])
def test_a_row_is_the_same_to_the_bit_in_any_company(bfloat16: bool, conversions: Conversions) -> None:
    compiled = OpenVinoEncoder(_model(), bfloat16=bfloat16, parallel=2, conversions=conversions)
    ids, mask = _ids(17, 30, 5, 90, 64, 33, 2, 41)
    with torch.inference_mode():
        alone = [compiled.batch(ids[row : row + 1], mask[row : row + 1])[0] for row in range(len(ids))]
        for rows in ([0, 1], [3, 0, 2], [7, 6, 5, 4, 3, 2, 1, 0]):
            for row, states in zip(rows, compiled.batch(ids[rows], mask[rows]), strict=True):
                assert torch.equal(states, alone[row])
    left = torch.stack([row.roll(int((kept == 0).sum())) for row, kept in zip(ids, mask, strict=True)])
    with torch.inference_mode():
        for row, states in enumerate(compiled.batch(left, mask.flip(1))):
            assert torch.equal(states[mask[row].flip(0).bool()], alone[row][mask[row].bool()])

    def again(row: int) -> bool:
        with torch.inference_mode():
            return torch.equal(compiled.batch(ids[row : row + 1], mask[row : row + 1])[0], alone[row])

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(again, list(range(len(ids))) * 8))


@needs_openvino
def test_bfloat16_is_close_and_another(conversions: Conversions) -> None:
    model = _model()
    exact = OpenVinoEncoder(model, bfloat16=False, parallel=1, conversions=conversions)
    narrow = OpenVinoEncoder(model, bfloat16=True, parallel=1, conversions=conversions)
    ids, mask = _ids(60)
    with torch.inference_mode():
        one, other = exact.batch(ids, mask), narrow.batch(ids, mask)
    cosine = nn.functional.cosine_similarity(one.flatten(), other.flatten(), dim=0)
    assert cosine > 0.999
    if Placement.choose("cpu", "auto").dtype is torch.bfloat16:
        assert not torch.equal(one, other)


@needs_openvino
def test_changes_of_layers_are_added(conversions: Conversions) -> None:
    model = _model()
    compiled = OpenVinoEncoder(model, bfloat16=False, parallel=1, conversions=conversions)
    names = ("encoder.layer.0.attention.self.query", "encoder.layer.1.output.dense")
    layers = dict(model.named_modules())
    ids, mask = _ids(21)
    generator = torch.Generator().manual_seed(3)
    for rank in (1, 4, 7):
        pairs = {
            name: (
                torch.randn(rank, layers[name].in_features, generator=generator) / 8,
                torch.randn(layers[name].out_features, rank, generator=generator) / 8,
            )
            for name in names
        }
        changed = _model()
        inside = dict(changed.named_modules())
        with torch.no_grad():
            for name, (down, up) in pairs.items():
                inside[name].weight += up @ down
        with torch.inference_mode():
            wanted = changed(input_ids=ids, attention_mask=mask).last_hidden_state[0]
            embedded = model.get_input_embeddings()(ids)[0]
            found = compiled.states(embedded, changes=compiled.changes(pairs))
            plain = compiled.states(embedded)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(found, plain, atol=1e-2)


@needs_openvino
def test_a_released_model_keeps_words_and_head(conversions: Conversions) -> None:
    model = _model()
    compiled = OpenVinoEncoder(model, bfloat16=False, parallel=1, conversions=conversions)
    ids, mask = _ids(8)
    with torch.inference_mode():
        before = compiled.batch(ids, mask)
        compiled.release(_model)
        assert torch.equal(compiled.batch(ids, mask), before)
    there = {name for name, one in model.named_parameters() if one.device.type != "meta"}
    assert there >= {"embeddings.word_embeddings.weight", "pooler.dense.weight", "pooler.dense.bias"}
    assert not any(name.startswith("encoder.") for name in there)


@needs_openvino
def test_changes_after_a_release_are_those_of_the_model(tmp_path: Path) -> None:
    model = _model()
    kept = Conversions(tmp_path)
    compiled = OpenVinoEncoder(model, bfloat16=False, parallel=1, conversions=kept)
    compiled.release(_model)
    ids, _ = _ids(8)
    with torch.inference_mode():
        embedded = model.get_input_embeddings()(ids)[0]
        nothing = compiled.changes({})
        torch.testing.assert_close(
            compiled.states(embedded, changes=nothing), compiled.states(embedded), rtol=1e-5, atol=1e-5
        )


@needs_openvino
def test_it_is_converted_once_for_the_same_weights(tmp_path: Path) -> None:
    kept = Conversions(tmp_path)
    for seed, count in ((0, 1), (0, 1), (1, 2)):
        OpenVinoEncoder(_model(seed=seed), bfloat16=False, parallel=1, conversions=kept)
        assert len(list(tmp_path.iterdir())) == count


@needs_openvino
def test_a_folder_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    compiled = OpenVinoEncoder(
        _model(), bfloat16=False, parallel=1, conversions=Conversions(tmp_path / "file" / "kept")
    )
    ids, mask = _ids(5)
    assert compiled.batch(ids, mask).shape == (1, 5, 32)


@needs_openvino
def test_a_conversion_that_computes_something_else_is_refused(tmp_path: Path) -> None:
    class Other(BertModel):
        """Computes something else where it is given embeddings, as what is traced is."""

        def forward(self, *args: Any, inputs_embeds: Tensor | None = None, **options: Any) -> Any:
            given = None if inputs_embeds is None else -inputs_embeds
            return super().forward(*args, inputs_embeds=given, **options)

    model = _model(lambda: Other(_bert().config))
    with pytest.raises(EngineError, match="does not compute what PyTorch does"):
        OpenVinoEncoder(model, bfloat16=False, parallel=1, conversions=Conversions(tmp_path))


@needs_openvino
def test_a_model_that_is_too_small_to_compare_is_refused(tmp_path: Path) -> None:
    config = _bert().config
    config.max_position_embeddings = 20
    with pytest.raises(EngineError, match="cannot compute the model"):
        OpenVinoEncoder(
            _model(lambda: BertModel(config)), bfloat16=False, parallel=1, conversions=Conversions(tmp_path)
        )


_TINY = (
    "import os, pathlib, signal, sys, threading\n"
    "from transformers import BertConfig, BertModel\n"
    "from evenmesh_kit.compute.conversions import Conversions\n"
    "from evenmesh_kit.compute.openvino_encoder import OpenVinoEncoder\n"
    "model = BertModel(BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,"
    " intermediate_size=8)).eval()\n"
    "kept = [OpenVinoEncoder(model, bfloat16=False, parallel=1, "
    "conversions=Conversions(pathlib.Path(sys.argv[1])))]\n"
)


@needs_openvino
def test_nobody_hears_of_what_is_converted_and_signals_come(tmp_path: Path) -> None:
    """Its package reports each import and conversion to its makers, if it can.

    And OpenVINO unmaps the main thread's stack for signals where another thread lets go of its last model.
    """
    program = (
        f"{_TINY}from openvino.tools.ovc import telemetry_utils\n"
        "assert sys.modules['openvino_telemetry'] is None\n"
        "assert telemetry_utils.tm.__name__ == 'openvino.tools.ovc.telemetry_stub'\n"
        "other = threading.Thread(target=kept.clear)\n"
        "other.start()\n"
        "other.join()\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('came'))\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=120)
    assert done.stdout == "came\n"
