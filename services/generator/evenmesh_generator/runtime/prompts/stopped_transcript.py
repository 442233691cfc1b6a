"""The text of an answer that given texts end, token by token."""

from __future__ import annotations

from collections.abc import Sequence

from evenmesh_generator.domain import Span
from evenmesh_generator.runtime.prompts.transcript import Transcript
from evenmesh_generator.stopped_text import StoppedText


class StoppedTranscript:
    """Text of an answer up to the first of ``stop``.

    Args:
        transcript: what turns the tokens into text.
        stop: texts that end it, none of them empty.
    """

    def __init__(self, transcript: Transcript, stop: Sequence[str]) -> None:
        self._transcript = transcript
        self._stopped = StoppedText(stop)

    def push(self, token: int) -> str:
        """Return the text that is certain with one token more."""
        return "" if self.ended else self._stopped.add(self._transcript.push(token))

    def finish(self) -> str:
        """Return the text held back."""
        rest = "" if self.ended else self._stopped.add(self._transcript.finish())
        return rest + self._stopped.finish()

    @property
    def text(self) -> str:
        """Return all text so far."""
        return self._stopped.text

    @property
    def ended(self) -> bool:
        """Return whether one of the texts has come."""
        return self._stopped.ended

    @property
    def span(self) -> Span | None:
        """Return where the text stands: as long as it is, from where the whole answer begins."""
        span = self._transcript.span
        if span is None or not self.ended:
            return span
        return Span(span.passage, span.start, span.start + len(self.text)) if self.text else None

    def confidence(self, log_probabilities: Sequence[float]) -> float | None:
        """Return that of the whole answer; None of one that was ended here, which no calibration knows."""
        return None if self.ended else self._transcript.confidence(log_probabilities)
