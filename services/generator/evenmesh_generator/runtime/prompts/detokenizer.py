"""Turn tokens into text as they come; the pieces joined are exactly the text of all tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_HALF_A_CHARACTER = "\N{REPLACEMENT CHARACTER}"


class IncrementalDetokenizer:
    """Turns tokens into text one at a time, in constant time each.

    Decodes a short window twice, without and with the new token, and hands out the difference, so that
    joining rules between neighbours (spaces, word pieces, bytes of one character) are the tokenizer's own.
    A character whose bytes are not all there yet is held back. Where later tokens change the text of earlier
    ones (a run of byte tokens that turns out to be no UTF-8), what was handed out stands, and is the text.

    Args:
        decode: text of token ids, as the whole answer would be decoded.
    """

    ended = False

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._given: list[str] = []
        # ids[begin:end] is text that was handed out and gives the new tokens their left neighbours.
        self._begin = 0
        self._end = 0

    def push(self, token: int) -> str:
        """Return the text that ``token`` completes; empty while there is none."""
        self._ids.append(token)
        known = self._decode(self._ids[self._begin : self._end])
        longer = self._decode(self._ids[self._begin :])
        if len(longer) <= len(known) or longer.endswith(_HALF_A_CHARACTER) or not longer.startswith(known):
            return ""
        self._begin, self._end = self._end, len(self._ids)
        delta = longer[len(known) :]
        self._given.append(delta)
        return delta

    def finish(self) -> str:
        """Return what was held back, if anything; text that was given out stays."""
        given = self.text
        whole = self._decode(self._ids)
        if not whole.startswith(given):
            return ""
        rest = whole[len(given) :]
        self._given.append(rest)
        return rest

    @property
    def span(self) -> None:
        """Return None: the text stands nowhere."""

    def confidence(self, log_probabilities: Sequence[float]) -> None:
        """Return None: these models are not calibrated."""

    @property
    def text(self) -> str:
        """Return all text given out so far."""
        return "".join(self._given)
