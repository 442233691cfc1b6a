"""Tiny encoders and classifiers with random weights, as folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoTokenizer, BertModel

from tests.support import tiny_models

Classifier = Callable[[dict[int, str]], Path]


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two layers that is only an encoder. Its path has "t5" in it, which bert-score would misread."""
    source = tiny_models.cross_encoder(tmp_path_factory.mktemp("source"))
    folder = tmp_path_factory.mktemp("not-a-t5-encoder")
    BertModel.from_pretrained(source).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def classifier(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    """Makes a classifier with the given labels."""

    return lambda labels: tiny_models.classifier(tmp_path_factory.mktemp("classifier"), tiny_encoder, labels)
