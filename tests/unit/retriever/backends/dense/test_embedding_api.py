"""Requests to embedding servers, and what their replies must be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evenmesh_retriever.backends.dense.embedding_api import WrongReplyError, path, read, request


def entries(*pairs: tuple[Any, Any]) -> dict[str, Any]:
    return {"model": "m", "data": [{"index": index, "embedding": vector} for index, vector in pairs]}


def test_each_kind_has_its_path_and_request() -> None:
    assert (path("tei"), path("openai"), path("vllm")) == ("embed", "embeddings", "embeddings")
    assert request("tei", "m", ["a", ""]) == {"inputs": ["a", " "], "normalize": True, "truncate": True}
    asked = {"model": "m", "input": ["a", " "], "encoding_format": "float"}
    assert request("openai", "m", ["a", ""]) == asked
    assert request("vllm", "m", ["a", ""]) == asked | {"truncate_prompt_tokens": -1}


def test_vectors_get_length_one() -> None:
    vectors, model = read("tei", [[3.0, 4.0], [0, -2]], 2)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, [[0.6, 0.8], [0.0, -1.0]], atol=1e-7)
    assert model == ""


def test_vectors_too_large_to_square_get_length_one() -> None:
    vectors, _ = read("tei", [[1e300, 1e300]], 1)
    np.testing.assert_allclose(vectors, [[2**-0.5, 2**-0.5]], atol=1e-7)


def test_vectors_return_to_the_order_of_the_texts() -> None:
    vectors, model = read("openai", entries((1, [0.0, 1.0]), (0, [1.0, 0.0])), 2)
    np.testing.assert_array_equal(vectors, np.eye(2, dtype=np.float32))
    assert model == "m"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([[1.0, 2.0]], "1 vectors for 2 texts"),
        ([[1.0, 2.0]] * 3, "3 vectors for 2 texts"),
        ([[1.0, 2.0], [1.0]], "different length"),
        ([[], []], "no vectors of numbers"),
        ([["1", "2"], ["3", "4"]], "no vectors of numbers"),
        ([[1.0, None], [1.0, 2.0]], "no vectors of numbers"),
        ([[[1.0]], [[2.0]]], "no vectors of numbers"),
        ([[True, True], [True, True]], "no vectors of numbers"),
        ([[10**30, 1], [1, 1]], "no vectors of numbers"),
        ([[10**400, 1.5], [1, 1]], "no vectors of numbers"),
        ([[1.0, float("nan")], [1.0, 2.0]], "not finite"),
        ([[1.0, float("-inf")], [1.0, 2.0]], "not finite"),
        ([[0.0, 0.0], [1.0, 2.0]], "no direction"),
        ([1.0, 2.0], "no list of vectors"),
        ({"error": "x"}, "no list of vectors"),
        ("abc", "no list of vectors"),
        (None, "no list of vectors"),
    ],
)
def test_a_reply_that_is_no_vector_for_each_text_is_refused(given: Any, message: str) -> None:
    with pytest.raises(WrongReplyError, match=message):
        read("tei", given, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "no JSON object"),
        ({"data": None}, "no JSON object"),
        (entries((0, [1.0])), "1 vectors for 2 texts"),
        (entries((0, [1.0]), (0, [1.0])), "two vectors for index 0"),
        (entries((0, [1.0]), (2, [1.0])), "without an index from 0 to 1"),
        (entries((0, [1.0]), (True, [1.0])), "without an index"),
        (entries((0, [1.0]), (None, [1.0])), "without an index"),
        (entries((0, [1.0]), (1, None)), "no list of vectors"),
        (entries((0, [1.0]), (1, "AACAPw==")), "no list of vectors"),
        (entries((0, [1.0]), (1, [1.0, 2.0])), "different length"),
    ],
)
def test_an_openai_reply_that_is_no_vector_for_each_text_is_refused(given: Any, message: str) -> None:
    with pytest.raises(WrongReplyError, match=message):
        read("openai", given, 2)
