"""Read a stream to an answer that is whole, or to an error."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from evenmesh_generator.backends.openai.errors import Withheld
from evenmesh_generator.backends.openai.wire import Chunk
from evenmesh_generator.domain import Answer, Cost, FinishReason
from evenmesh_generator.runtime.prompts.fitting import Fitted
from evenmesh_generator.stopped_text import StoppedText
from evenmesh_kit.remote.errors import MalformedReply, ServerUnavailable

_REASONS: Final = {
    "stop": FinishReason.STOP,
    "eos_token": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "length": FinishReason.LENGTH,
}
"""Reasons to finish of an answer that is whole; text-generation-inference has words of its own."""
_FILTERED: Final = "content_filter"
_BROKEN: Final = frozenset({"abort", "error", "load"})
"""Reasons to finish of an answer that the server gave up."""


class AnswerReader:
    """Collects the pieces of one answer, from its request on.

    Args:
        on_delta: called with each text that is not empty.
        stop: texts that end the answer. Servers end it, too, but some of them after the text.
    """

    def __init__(self, on_delta: Callable[[str], object], stop: Sequence[str] = ()) -> None:
        self._on_delta = on_delta
        self._stopped = StoppedText(stop)
        self._began = time.perf_counter()
        self._first_s: float | None = None
        self._last_s = 0.0
        self._pieces = 0
        self._finish: str | None = None
        self._log_probability = 0.0
        self._usage: tuple[int, int, int] | None = None
        self._model = ""
        self._fingerprint = ""

    def add(self, chunk: Chunk) -> None:
        """Take a piece.

        Raises:
            MalformedReply: text comes after the end.
        """
        if chunk.text:
            if self._finish is not None:
                raise MalformedReply("the model server sent text after the end of its answer")
            self._pieces += 1
            self._last_s = time.perf_counter() - self._began
            self._first_s = self._last_s if self._first_s is None else self._first_s
            self._say(self._stopped.add(chunk.text))
        if chunk.finish:
            self._finish = chunk.finish
            self._say(self._stopped.finish())
        self._log_probability += chunk.log_probability or 0.0
        self._usage = chunk.usage or self._usage
        self._model = chunk.model or self._model
        self._fingerprint = chunk.fingerprint or self._fingerprint

    def answer(self, fitted: Fitted[str], prompt_tokens: int, model: str) -> Answer:
        """Return the answer at the end of the stream.

        Args:
            fitted: the prompt that it answers.
            prompt_tokens: estimate of the prompt's tokens, where the server counts none. Tokens, [1, inf).
            model: the model's name, where the server names none.

        Raises:
            ServerUnavailable: the answer is not whole.
            Withheld: a filter of the server ended it.
            MalformedReply: it ended for a reason that the interface does not have.
        """
        if self._finish is None or self._finish in _BROKEN:
            raise ServerUnavailable(
                "REMOTE_CUT_STREAM", "the model server ended an answer before its end", rests=False
            )
        if self._finish == _FILTERED:
            raise Withheld(self._finish)
        reason = _REASONS.get(self._finish)
        if reason is None:
            raise MalformedReply("the model server ended an answer for an unknown reason")
        read, cached, written = self._usage or (0, 0, self._pieces)
        read = read or prompt_tokens  # Ollama counts no tokens of a prompt that it knows
        total_s = time.perf_counter() - self._began
        name = self._model or model
        return Answer(
            self._stopped.text,
            FinishReason.STOP if self._stopped.ended else reason,
            prompt_tokens=read,
            completion_tokens=max(1, written),
            log_probability=min(0.0, self._log_probability),
            dropped_passages=fitted.dropped_passages,
            cut_passages=fitted.cut_passages,
            dropped_turns=fitted.dropped_turns,
            model_version=f"{name}+{self._fingerprint}" if self._fingerprint else name,
            cost=Cost(
                first_token_s=total_s if self._first_s is None else self._first_s,
                total_s=total_s,
                computed_tokens=read - cached,
                reused_tokens=cached,
                batch_rows=1,
            ),
        )

    def _say(self, text: str) -> None:
        if text:
            self._on_delta(text)
