"""Write requests to embedding servers and read their replies: TEI's shape, and OpenAI's that many share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np

from evenmesh_retriever.domain import VectorArray

EmbeddingServer = Literal["tei", "openai", "vllm"]
"""Kind of a server; ``openai`` is also infinity, Ollama and others."""

_NOTHING: Final = " "
"""Stands for an empty text: servers refuse that one, and read no token of this one."""
_SHORTEST: Final = 1e-12


class WrongReplyError(ValueError):
    """Raised for a reply that does not give each text one vector; the message says what is wrong."""


def path(server: EmbeddingServer) -> str:
    """Return the path below the base URL."""
    return "embed" if server == "tei" else "embeddings"


def request(server: EmbeddingServer, model: str, texts: Sequence[str]) -> dict[str, Any]:
    """Return the body of a request; TEI and vLLM are asked to cut what is too long.

    OpenAI's shape has no option for it: infinity and Ollama cut by themselves, other servers may refuse.

    Args:
        server: kind of the server.
        model: model to ask for; TEI has only one.
        texts: from 1.
    """
    read = [text or _NOTHING for text in texts]
    if server == "tei":
        return {"inputs": read, "normalize": True, "truncate": True}
    body = {"model": model, "input": read, "encoding_format": "float"}
    return body | {"truncate_prompt_tokens": -1} if server == "vllm" else body


def read(server: EmbeddingServer, reply: object, count: int) -> tuple[VectorArray, str]:
    """Return vectors of length 1 in the order of the texts, ``[count, dimension]``, and the model named.

    TEI names none: the model is empty.

    Args:
        server: kind of the server.
        reply: its reply.
        count: texts of the request, from 1.

    Raises:
        WrongReplyError: vectors are missing, doubled, of different length, without direction or not finite.
    """
    if server == "tei":
        return _vectors(reply, count), ""
    if not isinstance(reply, dict) or not isinstance(reply.get("data"), list):
        raise WrongReplyError("no JSON object with a list 'data'")
    entries: list[Any] = [None] * count
    if len(reply["data"]) != count:
        raise WrongReplyError(f"{len(reply['data'])} vectors for {count} texts")
    for entry in reply["data"]:
        index = entry.get("index") if isinstance(entry, dict) else None
        if type(index) is not int or not 0 <= index < count:
            raise WrongReplyError(f"a vector without an index from 0 to {count - 1}")
        if entries[index] is not None:
            raise WrongReplyError(f"two vectors for index {index}")
        entries[index] = entry.get("embedding", ())
    model = reply.get("model")
    return _vectors(entries, count), model if isinstance(model, str) else ""


def _vectors(rows: object, count: int) -> VectorArray:
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise WrongReplyError("no list of vectors")
    if len(rows) != count:
        raise WrongReplyError(f"{len(rows)} vectors for {count} texts")
    try:
        found = np.array(rows)
    except ValueError:
        raise WrongReplyError("vectors of different length") from None
    except OverflowError:
        raise WrongReplyError("no vectors of numbers") from None
    if found.ndim != 2 or found.shape[1] == 0 or found.dtype.kind not in "fiu":
        raise WrongReplyError("no vectors of numbers")
    found = found.astype(np.float64)
    # The largest component first: the squares of what a float64 holds may not be one.
    largest = np.abs(found).max(axis=1, keepdims=True)
    if not np.isfinite(largest).all():
        raise WrongReplyError("a vector with a number that is not finite")
    if (largest < _SHORTEST).any():
        raise WrongReplyError("a vector of zeros, which has no direction")
    scaled = found / largest
    vectors: VectorArray = (scaled / np.linalg.norm(scaled, axis=1, keepdims=True)).astype(np.float32)
    return vectors
