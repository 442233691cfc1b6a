"""A set of texts that says of any text whether it is in it, without holding one: a Bloom filter."""

from __future__ import annotations

import hashlib
import math
import unicodedata
from collections.abc import Iterable
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from evenmesh_core.errors import InvalidInput

FALSE_POSITIVES: Final = 0.001
"""Share of other texts that a filter takes for one of its own, unless another is asked for."""
MOST_TEXTS: Final = 100_000_000
"""Most texts of one filter."""
MOST_HASHES: Final = 30
"""Most bits of one text."""

_LETTERS: Final = ("L", "M", "N")
_WORD: Final = 8
_FEWEST: Final = 64
"""Fewest bytes: in fewer the places of a text's bits are too alike to those of another's."""


def normal_form(text: str) -> str:
    """Return the letters, marks and digits of a text in lower case, without anything between them.

    Texts that differ by case, white space, punctuation or the form of their characters (NFKC) have the same
    normal form. Empty for a text without a letter or digit.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(one for one in folded if unicodedata.category(one)[0] in _LETTERS)


class TextFilter:
    """A set of texts by their :func:`normal_form`; a text without one is never in it.

    A text of the set is always found. Another text is taken for one of the set with the probability
    :attr:`false_positives`, independently of other texts. A text takes 14.4 bits at 0.001, all together 512
    at least.

    Attributes:
        count: number of texts that were put in; each once.
        hashes: bits of one text, [1, :data:`MOST_HASHES`].
        bits: all bits, eight in a byte.

    Source: Bloom 1970; Kirsch & Mitzenmacher 2008 for two hashes in place of many.
    """

    def __init__(self, bits: NDArray[np.uint8], hashes: int, count: int) -> None:
        if not 1 <= hashes <= MOST_HASHES:
            raise InvalidInput("hashes", hashes, f"1 to {MOST_HASHES}")
        if not 0 <= count <= MOST_TEXTS:
            raise InvalidInput("count", count, f"0 to {MOST_TEXTS}")
        if bits.dtype != np.uint8 or bits.ndim != 1 or (count and not len(bits)):
            raise InvalidInput("bits", bits, "a vector of bytes, with one at least where there are texts")
        self.bits = bits
        self.hashes = hashes
        self.count = count

    @classmethod
    def of(cls, texts: Iterable[str], *, false_positives: float = FALSE_POSITIVES) -> Self:
        """Return the filter of some texts, as small as it can be.

        Args:
            texts: may repeat.
            false_positives: share of other texts that are taken for one of these, [1e-9, 0.5].

        Raises:
            InvalidInput: ``false_positives`` is out of range, or there are more than :data:`MOST_TEXTS`.
        """
        if not 1e-9 <= false_positives <= 0.5:
            raise InvalidInput("false_positives", false_positives, "1e-9 to 0.5")
        keys = {_key(form) for text in texts if (form := normal_form(text))}
        if len(keys) > MOST_TEXTS:
            raise InvalidInput("texts", len(keys), f"at most {MOST_TEXTS}")
        hashes = max(1, round(-math.log2(false_positives)))
        size = math.ceil(-len(keys) * math.log(false_positives) / (math.log(2) ** 2) / _WORD)
        size = max(size, _FEWEST) if keys else 0
        bits = np.zeros(size, np.uint8)
        if keys:
            first, step = np.array(sorted(keys), np.uint64).T
            for number in range(hashes):
                places = _places(first, step, number, size)
                np.bitwise_or.at(bits, places // _WORD, (1 << (places % _WORD)).astype(np.uint8))
        return cls(bits, hashes, len(keys))

    @property
    def false_positives(self) -> float:
        """Probability that a text that was not put in is found, by the share of bits that are set, [0, 1]."""
        if not len(self.bits):
            return 0.0
        share = int(np.unpackbits(self.bits).sum()) / (_WORD * len(self.bits))
        return float(share**self.hashes)

    def __contains__(self, text: str) -> bool:
        """Return whether a text is in the set, surely if it was put in."""
        form = normal_form(text)
        if not form or not self.count:
            return False
        first, step = (np.uint64(one) for one in _key(form))
        for number in range(self.hashes):
            place = int(_places(first, step, number, len(self.bits)))
            if not self.bits[place // _WORD] >> (place % _WORD) & 1:
                return False
        return True


def _key(form: str) -> tuple[int, int]:
    digest = hashlib.blake2b(form.encode(), digest_size=16).digest()
    # An odd step visits different places whatever the number of bits.
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little") | 1


def _places(
    first: NDArray[np.uint64] | np.uint64, step: NDArray[np.uint64] | np.uint64, number: int, size: int
) -> NDArray[np.int64]:
    with np.errstate(over="ignore"):
        found = (first + np.uint64(number) * step) % np.uint64(_WORD * size)
    return np.asarray(found).astype(np.int64)
