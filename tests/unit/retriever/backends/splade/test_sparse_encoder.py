"""SPLADE with a tiny random masked language model, built here."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SparseEncoder
from transformers import BertForMaskedLM, PreTrainedTokenizerFast

from evenmesh_retriever.backends.splade.postings import ImpactPostings
from evenmesh_retriever.backends.splade.sparse_encoder import SpladeEncoder
from evenmesh_retriever.ports import CannotStart

TEXTS = [
    "oil the chain",
    "a red lamp at night",
    "mend the tube",
    "",
    "oil the chain",
    "the lamp is red " * 40,
]


def dense(folder: Path, texts: list[str]) -> np.ndarray:
    model = SparseEncoder(str(folder), device="cpu")
    return np.stack([model.encode(text, convert_to_sparse_tensor=False).cpu().numpy() for text in texts])


def test_vectors_are_those_of_sentence_transformers(encoder: SpladeEncoder, folder: Path) -> None:
    done: list[int] = []
    vectors = encoder.encode_passages(TEXTS, done.append)
    assert done == [5]  # distinct texts
    for vector, expected in zip(vectors, dense(folder, TEXTS), strict=True):
        found = np.zeros(encoder.vocabulary)
        found[vector.terms] = vector.weights
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert encoder.vocabulary == 5 + len({word for text in TEXTS for word in text.split()})
    assert 0 < len(vectors[0].terms) < encoder.vocabulary
    assert vectors[0].weights.tolist() == vectors[4].weights.tolist()  # the same text, encoded once


def test_scores_are_those_of_a_dense_product(encoder: SpladeEncoder, folder: Path) -> None:
    postings = ImpactPostings.build(encoder.encode_passages(TEXTS, lambda _: None), encoder.vocabulary)
    matrix = dense(folder, TEXTS).astype(np.float64)
    for query in ("red lamp", "chain oil oil", "night"):
        scores = postings.scores(encoder.encode_query(query))
        np.testing.assert_allclose(scores, matrix @ matrix_of(folder, query), rtol=1e-4)
        assert scores.max() > 0


def matrix_of(folder: Path, query: str) -> np.ndarray:
    vector: np.ndarray = dense(folder, [query])[0].astype(np.float64)
    return vector


def test_the_fingerprint_names_the_weights(encoder: SpladeEncoder, folder: Path, tmp_path: Path) -> None:
    assert encoder.fingerprint == SpladeEncoder(str(folder)).fingerprint
    assert encoder.name == folder.name
    assert encoder.device == "cpu" or encoder.device.startswith("cuda")
    other = BertForMaskedLM.from_pretrained(folder)
    with torch.no_grad():
        next(other.parameters()).add_(1.0)
    other.save_pretrained(tmp_path)
    PreTrainedTokenizerFast.from_pretrained(folder).save_pretrained(tmp_path)
    assert SpladeEncoder(str(tmp_path)).fingerprint != encoder.fingerprint


@pytest.mark.parametrize("model", ["/no/such/folder", "no-one/has-such-a-model"])
def test_a_missing_model_is_one_line_that_names_the_setting(model: str) -> None:
    with pytest.raises(CannotStart, match=rf"^S='{model}': no such folder") as error:
        SpladeEncoder(model, setting="S")
    assert "\n" not in str(error.value)


def test_a_folder_that_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"^S='.*': is no sparse encoder: ") as error:
        SpladeEncoder(str(tmp_path), setting="S")
    assert "\n" not in str(error.value)
