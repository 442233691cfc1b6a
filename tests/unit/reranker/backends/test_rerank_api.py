"""Requests to rerank servers, and what their replies must be."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from evenmesh_reranker.backends.rerank_api import (
    RerankServer,
    Scale,
    WrongReplyError,
    WrongScaleError,
    probability,
    read,
    request,
)


def results(*pairs: tuple[Any, Any], name: str = "relevance_score") -> list[dict[str, Any]]:
    return [{"index": index, name: score} for index, score in pairs]


def test_tei_is_asked_for_every_score_and_to_cut() -> None:
    assert request("tei", "ignored", "probability", "q", ["a", "b"]) == {
        "query": "q",
        "texts": ["a", "b"],
        "raw_scores": False,
        "return_text": False,
        "truncate": True,
    }
    assert request("tei", "", "logit", "q", ["a"])["raw_scores"] is True


@pytest.mark.parametrize(
    ("server", "more"),
    [
        ("cohere", {}),
        ("jina", {"return_documents": False}),
        ("infinity", {"return_documents": False, "raw_scores": False}),
        ("vllm", {"truncate_prompt_tokens": -1}),
    ],
)
def test_the_others_share_the_shape_of_cohere(server: RerankServer, more: dict[str, Any]) -> None:
    shared = {"model": "m", "query": "q", "documents": ["a", "b"], "top_n": 2}
    assert request(server, "m", "probability", "q", ["a", "b"]) == shared | more


def test_a_model_that_is_not_set_is_not_sent() -> None:
    assert "model" not in request("vllm", "", "probability", "q", ["a"])


def test_an_empty_text_is_sent_as_a_blank() -> None:
    assert request("tei", "", "probability", "", ["", "b"])["texts"] == [" ", "b"]
    assert request("tei", "", "probability", "", ["b"])["query"] == " "
    assert request("cohere", "m", "probability", "q", [""])["documents"] == [" "]


def test_scores_return_to_the_order_of_the_texts() -> None:
    found = read("cohere", {"results": results((2, 0.9), (0, 0.5), (1, 0.1)), "model": "m"}, 3, "probability")
    assert (found.values, found.model) == ((0.5, 0.1, 0.9), "m")
    ranks = results((1, 0.75), (0, 0.25), name="score")
    assert read("tei", ranks, 2, "probability").values == (0.25, 0.75)


def test_a_list_may_be_called_data() -> None:
    assert read("infinity", {"data": results((0, 1))}, 1, "probability").values == (1.0,)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (results((0, 0.5)), "1 results for 2 texts"),
        (results((0, 0.5), (1, 0.5), (1, 0.5)), "3 results for 2 texts"),
        (results((0, 0.5), (2, 0.5)), "index 2 of 2"),
        (results((0, 0.5), (-1, 0.5)), "index -1 of 2"),
        (results((1, 0.5), (1, 0.5)), "two results for index 1"),
        (results((0, 0.5), (None, 0.5)), "without an index"),
        (results((0, 0.5), (True, 0.5)), "without an index"),
        (results((0, 0.5), (1.0, 0.5)), "without an index"),
        (results((0, 0.5), (1, float("nan"))), "no finite number"),
        (results((0, 0.5), (1, float("inf"))), "no finite number"),
        (results((0, 0.5), (1, 10**400)), "no finite number"),
        (results((0, 0.5), (1, "0.5")), "no finite number"),
        (results((0, 0.5), (1, None)), "no finite number"),
        (results((0, 0.5), (1, True)), "no finite number"),
        (results((0, 0.5), (1, 0.5), name="score"), "relevance_score"),
        ([1, 2], "no JSON object"),
        ({"0": 1}, "no list of results"),
        (None, "no list of results"),
    ],
)
def test_a_reply_that_does_not_score_each_text_once_is_refused(given: Any, message: str) -> None:
    with pytest.raises(WrongReplyError, match=message):
        read("cohere", {"results": given}, 2, "probability")


@pytest.mark.parametrize("reply", [[], None, "results", 3])
def test_a_reply_that_is_no_object_is_refused(reply: Any) -> None:
    with pytest.raises(WrongReplyError, match="no JSON object"):
        read("cohere", reply, 2, "probability")
    with pytest.raises(WrongReplyError):
        read("tei", reply, 2, "probability")


def test_scores_of_each_scale_are_probabilities() -> None:
    # σ(0) = 1/2, σ(ln 3) = 3/4; a cosine of 1/2 is (1 + 1/2) / 2.
    assert probability(0.0, "logit") == 0.5
    assert probability(math.log(3), "logit") == pytest.approx(0.75)
    assert probability(-1e300, "logit") == 0.0
    assert probability(0.5, "cosine") == 0.75
    assert probability(-1.0, "cosine") == 0.0
    assert probability(0.25, "probability") == 0.25
    # Rounding of half precision stays in the range.
    assert probability(1.004, "cosine") == 1.0
    assert probability(-1e-4, "probability") == 0.0


@pytest.mark.parametrize(("scale", "score"), [("probability", 3.2), ("probability", -0.5), ("cosine", -4.0)])
def test_a_score_outside_its_scale_is_named(scale: Scale, score: float) -> None:
    with pytest.raises(WrongScaleError, match=r"outside \["):
        probability(score, scale)


def test_numbers_that_json_does_not_have_are_refused() -> None:
    reply = json.loads('{"results": [{"index": 0, "relevance_score": NaN}]}')
    with pytest.raises(WrongReplyError, match="no finite number"):
        read("vllm", reply, 1, "logit")
