"""End the text of an answer before the first of given texts."""

from __future__ import annotations

from collections.abc import Sequence


class StoppedText:
    """Text that comes in pieces, up to the first of ``stop``; what may be the beginning of one is held back.

    Args:
        stop: texts that end it, none of them empty; without any nothing does.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = stop
        self._held = ""
        self._said: list[str] = []
        self.ended = False
        """Whether one of the texts has come."""

    @property
    def text(self) -> str:
        """Return what was handed out so far."""
        return "".join(self._said)

    def add(self, piece: str) -> str:
        """Return what is certain with one piece more; may be empty."""
        if self.ended:
            return ""
        text = self._held + piece
        ends = [at for one in self._stop if (at := text.find(one)) >= 0]
        self.ended = bool(ends)
        size = min(ends) if ends else len(text) - max((_begun(text, one) for one in self._stop), default=0)
        self._held = "" if ends else text[size:]
        return self._say(text[:size])

    def finish(self) -> str:
        """Return what was held back: nothing comes any more."""
        held, self._held = self._held, ""
        return self._say(held)

    def _say(self, text: str) -> str:
        self._said.append(text)
        return text


def _begun(text: str, stop: str) -> int:
    """Return how many characters at the end of ``text`` may be the beginning of ``stop``."""
    most = min(len(text), len(stop) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(stop[:size])), 0)
