"""Write requests to rerank servers and read their replies.

Two shapes are in use. TEI has its own; Cohere's is also that of Jina, infinity and vLLM, each with options of
its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

RerankServer = Literal["tei", "cohere", "jina", "infinity", "vllm"]
"""Kind of a server."""
Scale = Literal["probability", "logit", "cosine"]
"""What a server's scores are: in [0, 1]; log-odds; in [-1, 1]."""

PATH: Final = "rerank"
"""Path below the base URL, for every kind."""

_ROUNDING: Final = 0.01
"""How far a score may exceed its range: servers compute in half precision."""
_NOTHING: Final = " "
"""Stands for an empty text: servers refuse that one, and read no token of this one."""


class WrongReplyError(ValueError):
    """Raised for a reply that does not give each text one score; the message says what is wrong."""


class WrongScaleError(ValueError):
    """Raised for a score outside the range of the scale."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Scores in [0, 1] in the order of the texts, and the model that the server names; empty if none."""

    values: tuple[float, ...]
    model: str


def request(
    server: RerankServer, model: str, scale: Scale, query: str, texts: Sequence[str]
) -> dict[str, Any]:
    """Return the body of a request that scores every text; the server is asked to cut what is too long.

    Cohere, Jina and infinity cut without being asked.

    Args:
        server: kind of the server.
        model: model to ask for; empty: the only one.
        scale: what the scores shall be, where the server has a choice.
        query: the query.
        texts: from 1.
    """
    raw = scale == "logit"
    asked, read = query or _NOTHING, [text or _NOTHING for text in texts]
    if server == "tei":
        return {"query": asked, "texts": read, "raw_scores": raw, "return_text": False, "truncate": True}
    body: dict[str, Any] = {"query": asked, "documents": read, "top_n": len(read)}
    if model:
        body["model"] = model
    if server in ("jina", "infinity"):
        body["return_documents"] = False
    if server == "infinity":
        body["raw_scores"] = raw
    if server == "vllm":
        body["truncate_prompt_tokens"] = -1
    return body


def read(server: RerankServer, reply: object, count: int, scale: Scale) -> Reply:
    """Return the scores of a reply to a request with ``count`` texts.

    Raises:
        WrongReplyError: it is no list of results, or an index is missing, doubled or out of range, or a
            score is no finite number.
        WrongScaleError: a score is outside the range of ``scale``.
    """
    results, model, named = reply, "", "score"
    if server != "tei":
        if not isinstance(reply, dict):
            raise WrongReplyError("no JSON object")
        results, named = reply.get("results", reply.get("data")), "relevance_score"
        given = reply.get("model")
        model = given if isinstance(given, str) else ""
    if not isinstance(results, list):
        raise WrongReplyError("no list of results")
    if len(results) != count:
        raise WrongReplyError(f"{len(results)} results for {count} texts")
    values: list[float | None] = [None] * count
    for result in results:
        index, score = _result(result, named)
        if not 0 <= index < count:
            raise WrongReplyError(f"a result for index {index} of {count} texts")
        if values[index] is not None:
            raise WrongReplyError(f"two results for index {index}")
        values[index] = probability(score, scale)
    return Reply(tuple(value for value in values if value is not None), model)


def probability(score: float, scale: Scale) -> float:
    """Return a score as a number in [0, 1] that orders as it does.

    Raises:
        WrongScaleError: it is outside the range of the scale.
    """
    if scale == "logit":
        return 0.5 * (1.0 + math.tanh(0.5 * score))
    lowest = 0.0 if scale == "probability" else -1.0
    if not lowest - _ROUNDING <= score <= 1.0 + _ROUNDING:
        raise WrongScaleError(f"a score of {score:g}, which is outside [{lowest:g}, 1]")
    bounded = min(max(score, lowest), 1.0)
    return bounded if scale == "probability" else 0.5 * (1.0 + bounded)


def _result(result: object, named: str) -> tuple[int, float]:
    if not isinstance(result, dict):
        raise WrongReplyError("a result that is no JSON object")
    index, score = result.get("index"), result.get(named)
    if type(index) is not int:
        raise WrongReplyError("a result without an index")
    value = _number(score)
    if not math.isfinite(value):
        raise WrongReplyError(f"a {named} that is no finite number")
    return index, value


def _number(given: object) -> float:
    """Return a number of JSON; NaN if it is none, or is larger than a float."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        return math.nan
    try:
        return float(given)
    except OverflowError:
        return math.nan
