"""Encoders in OpenVINO: PyTorch's states, the same to the bit in any company, with changes, and quiet."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, DistilBertConfig, DistilBertModel, RobertaConfig, RobertaModel

from evenmesh_kit.compute import idle_memory
from evenmesh_kit.compute.cpu_engine import installed_version
from evenmesh_kit.compute.openvino_conversion import convert_layers, linear_layers, reads_types
from evenmesh_kit.compute.openvino_runtime import (
    CompiledLayers,
    CompiledModel,
    LayerChanges,
    multiplies_bfloat16,
)

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


def _ids(tokens: int) -> Tensor:
    """Drawn tokens, ``[1, tokens]``."""
    return torch.randint(5, 50, (1, tokens), generator=torch.Generator().manual_seed(tokens))


class _Compiled:
    """A converted encoder, and what it lacks: the embeddings of words."""

    def __init__(
        self,
        folder: Path,
        model: Any,
        *,
        bfloat16: bool = False,
        changed: Mapping[str, tuple[int, int]] = MappingProxyType({}),
        most: int | None = None,
    ) -> None:
        self.words = model.get_input_embeddings()
        self.types = reads_types(model)
        convert_layers(model, folder / "layers.xml", changed)
        self.compiled = CompiledLayers(folder / "layers.xml", bfloat16=bfloat16, parallel=2, most=most)

    def states(self, ids: Tensor, types: Tensor | None = None, changes: LayerChanges | None = None) -> Tensor:
        """The last hidden states, ``[1, tokens, hidden]``."""
        read = (torch.zeros_like(ids) if types is None else types).tolist() if self.types else None
        found = self.compiled.states(self.embedded, ids.tolist(), read, changes.arrays if changes else ())[0]
        return torch.from_numpy(found)[None]

    @property
    def embedded(self) -> Any:
        """The embeddings as an array."""
        return self.words.weight.detach().numpy()


@needs_openvino
@pytest.mark.parametrize("make", [_bert, _roberta, _distilbert])
def test_states_are_pytorchs(make: Callable[[], Any], tmp_path: Path) -> None:
    model = _model(make)
    compiled = _Compiled(tmp_path, model)
    with torch.inference_mode():
        for tokens in (2, 9, 64, 100):
            ids = _ids(tokens)
            wanted = model(input_ids=ids).last_hidden_state
            torch.testing.assert_close(compiled.states(ids), wanted, rtol=1e-4, atol=1e-4)


@needs_openvino
@pytest.mark.parametrize("make", [_bert, _roberta, _distilbert])
def test_padding_is_not_seen(
    make: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _model(make)
    compiled = _Compiled(tmp_path, model, most=120)
    read: list[int] = []
    call = CompiledModel.__call__
    monkeypatch.setattr(
        CompiledModel, "__call__", lambda self, given: (read.append(given[0].shape[1]), call(self, given))[1]
    )
    with torch.inference_mode():
        for tokens in (2, 15, 16, 17, 60, 115, 125):
            ids = _ids(tokens)
            wanted = model(input_ids=ids).last_hidden_state
            torch.testing.assert_close(compiled.states(ids), wanted, rtol=1e-4, atol=1e-4)
    assert read == [16, 16, 16, 32, 64, 120, 125]  # 128 would be more than the most


@needs_openvino
@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("make", [_bert, _roberta, _distilbert])
def test_rows_of_one_size_are_computed_together(
    make: Callable[[], Any], bfloat16: bool, tmp_path: Path
) -> None:
    model = _model(make)
    layers = {} if make is _distilbert else linear_layers(model)
    compiled = _Compiled(tmp_path, model, bfloat16=bfloat16, changed=layers)
    changes = LayerChanges(layers, {})
    rows = [_ids(tokens)[0].tolist() for tokens in (33, 48, 40)]
    types = [[0] * len(one) for one in rows] if compiled.types else None
    found = compiled.compiled.states(compiled.embedded, rows, types, changes.arrays)
    assert [one.shape for one in found] == [(33, 32), (48, 32), (40, 32)]
    near = 0.1 if bfloat16 else 1e-4
    for ids, together in zip(rows, found, strict=True):
        with torch.inference_mode():
            wanted = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        torch.testing.assert_close(torch.from_numpy(together), wanted, rtol=near, atol=near)


@needs_openvino
def test_rows_are_together_only_if_company_changes_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = _Compiled(tmp_path, _model())
    layers, ids = compiled.compiled, _ids(20)[0].tolist()
    assert layers.together == 1  # nobody has tried
    call = CompiledModel.__call__
    differences = [{32: 1e-3}, {80: 1e-3}, {}]  # by the tokens of a padded row

    def in_turn(self: CompiledModel, given: Sequence[Any]) -> Any:
        """Computes the rows one by one, as if company changed no more than is said."""
        rows = [call(self, [one[at : at + 1] for one in given]) for at in range(len(given[0]))]
        return np.concatenate(rows) + differences[0].get(given[0].shape[1] * (len(rows) > 1), 0)

    monkeypatch.setattr(CompiledModel, "__call__", in_turn)
    for together in (1, 1, 4):
        layers.try_together(compiled.embedded, ids, [0] * len(ids))
        assert layers.together == together
        differences.pop(0)


@needs_openvino
def test_weights_that_were_given_back_are_read_again(tmp_path: Path) -> None:
    compiled = _Compiled(tmp_path, _model())
    first = [compiled.states(_ids(tokens)) for tokens in (2, 9)]
    idle_memory.give_back()
    assert [
        torch.equal(compiled.states(_ids(tokens)), one) for tokens, one in zip((2, 9), first, strict=True)
    ] == [
        True,
        True,
    ]
    # A size that is new makes OpenVINO read them.
    other = tmp_path / "other"
    other.mkdir()
    assert torch.equal(compiled.states(_ids(70)), _Compiled(other, _model()).states(_ids(70)))


@needs_openvino
def test_segments_count(tmp_path: Path) -> None:
    model = _model()
    compiled = _Compiled(tmp_path, model)
    ids, types = _ids(12), (torch.arange(12) > 5).long()[None]
    with torch.inference_mode():
        wanted = model(input_ids=ids, token_type_ids=types).last_hidden_state
        torch.testing.assert_close(compiled.states(ids, types), wanted, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(compiled.states(ids), wanted, atol=1e-2)


@needs_openvino
@pytest.mark.parametrize("bfloat16", [False, True])
def test_many_threads_get_the_same_to_the_bit(bfloat16: bool, tmp_path: Path) -> None:
    compiled = _Compiled(tmp_path, _model(), bfloat16=bfloat16)
    rows = [_ids(tokens) for tokens in (17, 30, 5, 90, 64, 33, 2, 41)]
    with torch.inference_mode():
        alone = [compiled.states(ids) for ids in rows]

    def again(row: int) -> bool:
        with torch.inference_mode():
            return torch.equal(compiled.states(rows[row]), alone[row])

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(again, list(range(len(rows))) * 8))


@needs_openvino
def test_bfloat16_is_close_and_another(tmp_path: Path) -> None:
    model, ids = _model(), _ids(60)
    with torch.inference_mode():
        one, other = (_Compiled(tmp_path, model, bfloat16=narrow).states(ids) for narrow in (False, True))
    cosine = nn.functional.cosine_similarity(one.flatten(), other.flatten(), dim=0)
    assert cosine > 0.999
    if multiplies_bfloat16():
        assert not torch.equal(one, other)


@needs_openvino
def test_changes_of_layers_are_added(tmp_path: Path) -> None:
    model, ids = _model(), _ids(21)
    layers = linear_layers(model)
    assert "pooler.dense" not in layers
    compiled = _Compiled(tmp_path, model, changed=layers)
    names = ("encoder.layer.0.attention.self.query", "encoder.layer.1.output.dense")
    generator = torch.Generator().manual_seed(3)
    for rank in (1, 4, 7):
        pairs = {
            name: (
                torch.randn(rank, layers[name][0], generator=generator) / 8,
                torch.randn(layers[name][1], rank, generator=generator) / 8,
            )
            for name in names
        }
        changed = _model()
        inside = dict(changed.named_modules())
        with torch.no_grad():
            for name, (down, up) in pairs.items():
                inside[name].weight += up @ down
        arrays = {name: (down.numpy(), up.numpy()) for name, (down, up) in pairs.items()}
        with torch.inference_mode():
            wanted = changed(input_ids=ids).last_hidden_state
            found = compiled.states(ids, changes=LayerChanges(layers, arrays))
            plain = compiled.states(ids, changes=LayerChanges(layers, {}))
            torch.testing.assert_close(plain, model(input_ids=ids).last_hidden_state, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(found, plain, atol=1e-2)


_TINY = (
    "import os, pathlib, signal, sys, threading\n"
    "from transformers import BertConfig, BertModel\n"
    "from evenmesh_kit.compute.openvino_conversion import convert_layers\n"
    "from evenmesh_kit.compute.openvino_runtime import CompiledModel\n"
    "model = BertModel(BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,"
    " intermediate_size=8)).eval()\n"
    "file = pathlib.Path(sys.argv[1], 'layers.xml')\n"
    "convert_layers(model, file)\n"
    "kept = [CompiledModel(file, bfloat16=False, parallel=1)]\n"
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
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=290)
    assert done.stdout == "came\n"
