"""A model server with the interface of TEI around models of the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tests.support.scripted_http import HttpReply, HttpRequest, Script

Embed = Callable[[Sequence[str]], list[list[float]]]
Score = Callable[[str, Sequence[str]], list[float]]


def tei(*, embed: Embed | None = None, score: Score | None = None, model: str = "stand-in") -> Script:
    """Return a script that computes: ``/embed`` by one function and ``/rerank`` by another, in threads."""
    kind = {"embedding": {"pooling": "mean"}} if embed is not None else {"reranker": {}}
    info = {
        "model_id": model,
        "model_sha": "1",
        "model_dtype": "float32",
        "model_type": kind,
        "max_input_length": 256,
        "max_client_batch_size": 32,
    }

    async def script(request: HttpRequest, reply: HttpReply) -> None:
        if request.path.endswith("/info"):
            await reply.send(200, info)
        elif request.path.endswith("/embed") and embed is not None:
            await reply.send(200, await asyncio.to_thread(embed, request.json["inputs"]))
        elif request.path.endswith("/rerank") and score is not None:
            body = request.json
            scores = await asyncio.to_thread(score, body["query"], body["texts"])
            ranks: list[dict[str, Any]] = [{"index": at, "score": one} for at, one in enumerate(scores)]
            await reply.send(200, sorted(ranks, key=lambda rank: -rank["score"]))
        else:
            await reply.send(424, {"error": "`model` cannot do that", "error_type": "backend"})

    return script
