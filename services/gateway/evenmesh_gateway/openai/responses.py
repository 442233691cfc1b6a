"""Responses: the shapes and the events of ``POST /v1/responses``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evenmesh_gateway.openai.outcome import Outcome
from evenmesh_gateway.openai.requests import ResponseRequest


class Response:
    """Makes a response, whole or as the events of a stream.

    Args:
        name: what its ids end with.
        asked: the request.
        created: when it was asked for. Seconds since 1970.
    """

    def __init__(self, name: str, asked: ResponseRequest, created: int) -> None:
        self._name = name
        self._asked = asked
        self._created = created
        self._number = -1

    def whole(self, outcome: Outcome) -> dict[str, Any]:
        """Return the finished response."""
        cut = outcome.finish_reason == "length"
        read, cached, written = outcome.tokens
        return {
            **self._open("incomplete" if cut else "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self._item(outcome)],
            "usage": {
                "input_tokens": read,
                "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
                "output_tokens": written,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": read + written,
            },
            "evenmesh": outcome.extension(),
        }

    def begin(self) -> Iterator[dict[str, Any]]:
        """Yield the first events."""
        yield self._event("response.created", response=self._open("in_progress"))
        yield self._event("response.in_progress", response=self._open("in_progress"))
        item = {**self._head("in_progress"), "content": []}
        yield self._event("response.output_item.added", output_index=0, item=item)
        yield self._event("response.content_part.added", **self._place, part=_part("", []))

    def text(self, text: str) -> dict[str, Any]:
        """Return the event of a piece of the answer."""
        return self._event("response.output_text.delta", **self._place, delta=text, logprobs=[])

    def end(self, outcome: Outcome) -> Iterator[dict[str, Any]]:
        """Yield the last events: citations, and everything again as a whole."""
        item = self._item(outcome)
        part = item["content"][0]
        for at, one in enumerate(part["annotations"]):
            yield self._event(
                "response.output_text.annotation.added", **self._place, annotation_index=at, annotation=one
            )
        yield self._event("response.output_text.done", **self._place, text=part["text"], logprobs=[])
        yield self._event("response.content_part.done", **self._place, part=part)
        yield self._event("response.output_item.done", output_index=0, item=item)
        whole = self.whole(outcome)
        yield self._event(f"response.{whole['status']}", response=whole)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": f"msg_{self._name}", "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **members: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **members}

    def _open(self, status: str) -> dict[str, Any]:
        return {
            "id": f"resp_{self._name}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self._asked.model,
            "output": [],
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": False,
            "temperature": self._asked.temperature,
            "tool_choice": "none",
            "tools": [],
            "top_p": self._asked.top_p,
            "max_output_tokens": self._asked.max_output_tokens,
            "store": False,
            "usage": None,
        }

    def _head(self, status: str) -> dict[str, Any]:
        return {"id": f"msg_{self._name}", "type": "message", "role": "assistant", "status": status}

    def _item(self, outcome: Outcome) -> dict[str, Any]:
        annotations = [{"type": "url_citation", **one} for one in outcome.annotations]
        return {**self._head("completed"), "content": [_part(outcome.text, annotations)]}


def _part(text: str, annotations: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": []}
