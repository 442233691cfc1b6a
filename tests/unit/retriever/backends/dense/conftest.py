"""A tiny random BERT for dense encoders."""

from pathlib import Path

import pytest
from transformers import BertModel

from tests.support import tiny_models

WORDS = ["query", "passage", ":", "a", "red", "lamp", "at", "night", "oil", "the", "chain"]


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformer as Contriever's folder is: no word on pooling or prompts."""
    return tiny_models.bert(tmp_path_factory.mktemp("models") / "plain", BertModel, WORDS, 0.3)
