"""A tiny random SPLADE model, built here."""

from pathlib import Path

import pytest
from transformers import BertForMaskedLM

from evenmesh_retriever.backends.splade.sparse_encoder import SpladeEncoder
from tests.support import tiny_models

WORDS = ["a", "at", "chain", "is", "lamp", "mend", "night", "oil", "red", "the", "tube"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A masked language model that knows the words above."""
    return tiny_models.bert(tmp_path_factory.mktemp("splade"), BertForMaskedLM, WORDS, 0.5)


@pytest.fixture(scope="session")
def encoder(folder: Path) -> SpladeEncoder:
    return SpladeEncoder(str(folder))
