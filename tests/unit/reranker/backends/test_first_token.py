"""The last layer of the first token alone: the same scores, and only where the head reads nothing else."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForSequenceClassification,
    PreTrainedModel,
)

from evenmesh_kit.compute import cpu_engine
from evenmesh_kit.compute.first_token import last_layer_of_first_token
from evenmesh_kit.compute.openvino_runtime import CompiledLayers
from evenmesh_kit.compute.placement import Placement
from evenmesh_reranker.backends import compiled_encoder, conversion
from evenmesh_reranker.backends.encoder import EncoderLoader, load
from evenmesh_reranker.backends.first_token import needs_first_token_alone
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.ports import Row
from tests.support import tiny_encoders, tiny_models
from tests.support.tiny_models import SENTENCES

CPU = Placement(torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.cross_encoder(tmp_path_factory.mktemp("bert"))


def _of_kind(folder: Path, target: Path, kind: str, **more: Any) -> Path:
    """Write a drawn model of another architecture with the tokenizer of a folder."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    names = {"distilbert": ("dim", "n_layers", "n_heads", "hidden_dim")}.get(
        kind, ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    )
    config = AutoConfig.for_model(
        kind,
        vocab_size=len(tokenizer),
        num_labels=1,
        pad_token_id=tokenizer.pad_token_id,
        max_position_embeddings=140,
        **dict(zip(names, (32, 2, 4, 64), strict=True)),
        **more,
    )
    torch.manual_seed(3)
    model: PreTrainedModel = AutoModelForSequenceClassification.from_config(config)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # drawn weights are so small that all scores are nearly the same
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return target


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "xlm-roberta"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_scores_of_a_padded_batch_are_those_of_the_whole_model(
    folder: Path, tmp_path: Path, kind: str, attention: str
) -> None:
    more = {"embedding_size": 32} if kind == "electra" else {}
    loader = EncoderLoader(CPU)
    encoder = loader.full(
        _of_kind(folder, tmp_path / kind, kind, **more),
        "v",
        provenance="by hand",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    cast(Any, encoder.encoder.model).set_attn_implementation(attention)
    rows = encoder.rows(SENTENCES[0], [SENTENCES[1], "a lamp", " ".join(SENTENCES)], Agent())
    few, many = FlopCounterMode(display=False), FlopCounterMode(display=False)
    with few:
        found = encoder.probabilities(rows, [None] * 3)
    encoder._first_token = False
    with many:
        wanted = encoder.probabilities(rows, [None] * 3)
    assert found == pytest.approx(wanted, abs=1e-5)
    assert max(wanted) - min(wanted) > 1e-3, "the comparison would be vacuous"
    assert few.get_total_flops() < 0.7 * many.get_total_flops()  # two layers, one of them nearly free


def test_a_head_that_reads_all_states_needs_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = load(folder, CPU)
    assert needs_first_token_alone(encoder)
    model: Any = encoder.model
    pooler = model.bert.pooler
    monkeypatch.setattr(
        type(pooler), "forward", lambda self, states: self.activation(self.dense(states.mean(1)))
    )
    assert not needs_first_token_alone(encoder)


def test_an_attention_that_computes_something_else_is_left_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one with relative positions would."""
    encoder = load(folder, CPU)
    own = type(cast(Any, encoder.model).bert.encoder.layer[-1].attention.self)
    whole: Callable[..., Any] = own.forward

    def other(self: Any, states: Tensor, *given: Any, **options: Any) -> Any:
        return whole(self, states.roll(1, -1), *given, **options)

    monkeypatch.setattr(own, "forward", other)
    assert not needs_first_token_alone(encoder)


def test_a_model_with_other_parts_is_left_whole(folder: Path, tmp_path: Path) -> None:
    assert not needs_first_token_alone(load(_of_kind(folder, tmp_path / "other", "distilbert"), CPU))


def test_the_model_is_as_before_afterwards(folder: Path) -> None:
    model = BertForSequenceClassification.from_pretrained(folder)
    ids = torch.tensor([[2, 9, 11, 3]])
    with torch.inference_mode():
        before = model.bert(ids).last_hidden_state
        with last_layer_of_first_token(model.bert):
            assert model.bert(ids).last_hidden_state.shape == (1, 1, 32)
        assert torch.equal(model.bert(ids).last_hidden_state, before)


@pytest.mark.skipif(cpu_engine.installed_version() is None, reason="openvino is not installed")
def test_what_is_converted_returns_one_state(folder: Path, tmp_path: Path) -> None:
    conversion.convert(load(folder, CPU), tmp_path, changeable=False)
    layers = CompiledLayers(tmp_path / compiled_encoder.LAYERS, bfloat16=False, parallel=1)
    assert layers.states(np.zeros((5, 32), np.float32), [[1] * 9], [[0] * 9])[0].shape == (1, 32)
    states = np.load(tmp_path / compiled_encoder.CHECKED)["states_3"]
    assert states.shape == (1, 32)


def test_agents_changes_are_added_to_the_last_layer_too(folder: Path) -> None:
    encoder = tiny_encoders.encoder(folder, version="v")
    rows = [Row((2, 9, 11, 3), None), Row((2, 12, 3), None)]
    adapters = [tiny_encoders.low_rank(1), None]  # of the last layer's query, and of the head
    found, plain = encoder.probabilities(rows, adapters), encoder.probabilities(rows, [None, None])
    encoder._first_token = False
    assert found == pytest.approx(encoder.probabilities(rows, adapters), abs=1e-5)
    assert abs(found[0] - plain[0]) > 0.1, "the comparison would be vacuous"


def test_a_mask_of_another_shape_is_left_to_the_models_own_attention(folder: Path) -> None:
    """As FlashAttention's, which names the tokens of packed rows."""
    model: Any = BertForSequenceClassification.from_pretrained(folder).eval()
    layer = model.bert.encoder.layer[-1]
    states, mask = torch.randn(1, 5, 32), torch.ones(5, 5, dtype=torch.bool)
    mask[:, 3:] = False
    with torch.inference_mode():
        whole = layer(states, mask)
        with last_layer_of_first_token(model.bert):
            first = layer(states, mask)
    torch.testing.assert_close(first, whole[:, :1])
    assert not torch.allclose(whole, layer(states, None))
