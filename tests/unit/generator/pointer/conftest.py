"""Tiny pointer models with weights large enough that outputs differ from token to token."""

from collections.abc import Callable

import pytest

import evenmesh_models
from evenmesh_generator.pointer.configuration import PointerConfig
from evenmesh_generator.pointer.modeling import PointerForConditionalGeneration
from evenmesh_generator.pointer.tokenization import PairTokenizer
from tests.support import tiny_models

Build = Callable[..., PointerForConditionalGeneration]


@pytest.fixture
def build() -> Build:
    """Builds a tiny model; ``seed`` draws it, other arguments go to its configuration."""

    def build(seed: int = 0, **sizes: int) -> PointerForConditionalGeneration:
        settings = {
            "vocab_size": 40,
            "hidden_size": 16,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "frozen_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 24,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
            "bos_token_id": 6,
            "eos_token_id": 3,
            "true_token_id": 4,
            "false_token_id": 5,
        }
        model = PointerForConditionalGeneration(PointerConfig(**(settings | sizes)))
        tiny_models.draw_pointer(model, seed)
        model.train(False)
        return model

    return build


@pytest.fixture
def tiny(build: Build) -> PointerForConditionalGeneration:
    """A tiny model with a vocabulary of 40."""
    return build()


@pytest.fixture(scope="session")
def tokenizer() -> PairTokenizer:
    """The base model's tokenizer."""
    return PairTokenizer(evenmesh_models.minilm())
