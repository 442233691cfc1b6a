"""Chat completions: the shapes of ``POST /v1/chat/completions``."""

from __future__ import annotations

from typing import Any

from evenmesh_gateway.openai.outcome import Outcome


def completion(outcome: Outcome, completion_id: str, model: str, created: int) -> dict[str, Any]:
    """Return a whole chat completion."""
    message = {
        "role": "assistant",
        "content": outcome.text,
        "refusal": None,
        "annotations": _annotations(outcome),
    }
    choice = {"index": 0, "message": message, "finish_reason": outcome.finish_reason, "logprobs": None}
    return {
        **_head("chat.completion", completion_id, model, created),
        "choices": [choice],
        "usage": usage(outcome),
        "evenmesh": outcome.extension(),
    }


class Chunks:
    """Makes the chunks of one streamed chat completion.

    Args:
        completion_id: id of the completion.
        model: name of the pipeline.
        created: when it was asked for. Seconds since 1970.
        with_usage: whether a last chunk has the usage.
    """

    def __init__(self, completion_id: str, model: str, created: int, *, with_usage: bool) -> None:
        self._head = _head("chat.completion.chunk", completion_id, model, created)
        self._with_usage = with_usage

    def begin(self) -> list[dict[str, Any]]:
        """Return the first chunk."""
        return [self._chunk({"role": "assistant", "content": ""})]

    def text(self, text: str) -> dict[str, Any]:
        """Return a chunk with a piece of the answer."""
        return self._chunk({"content": text})

    def end(self, outcome: Outcome) -> list[dict[str, Any]]:
        """Return the last chunks: why the model stopped, the citations, the extension, the usage."""
        last = self._chunk({"annotations": _annotations(outcome)}, outcome.finish_reason)
        chunks = [{**last, "evenmesh": outcome.extension()}]
        if self._with_usage:
            chunks.append({**self._head, "choices": [], "usage": usage(outcome)})
        return chunks

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        usage = {"usage": None} if self._with_usage else {}
        return {**self._head, "choices": [choice], **usage}


def usage(outcome: Outcome) -> dict[str, Any]:
    """Return the tokens of all answers of an ask."""
    read, cached, written = outcome.tokens
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _annotations(outcome: Outcome) -> list[dict[str, Any]]:
    return [{"type": "url_citation", "url_citation": one} for one in outcome.annotations]


def _head(kind: str, completion_id: str, model: str, created: int) -> dict[str, Any]:
    return {"id": completion_id, "object": kind, "created": created, "model": model}
