"""Estimate the work of a query before any of it is done.

The unit is a token that the encoder reads. Other work counts by the time that it takes on one processor, with
a third of a millisecond for a token.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isqrt
from typing import Final

from evenmesh_retriever.analyzer import UnicodeWordAnalyzer
from evenmesh_retriever.domain import AnyOf, Draw, Filter

WEB_SEARCH: Final = 512
"""A search of the web and the reading of its pages."""

_BYTES_A_TOKEN: Final = 2
_ANALYSED: Final = 256
_POSTINGS: Final = 2**16
_LOOKED_UP: Final = 64
_SCORED: Final = 256
_DRAWN: Final = 2**15
_INTEGRATED: Final = 48
_SEARCHED: Final = 4
_FILTERED: Final = 2**15
_COMPARED: Final = 256
_HELD: Final = 1024
_WORDS: Final = UnicodeWordAnalyzer()


def encoding(sizes: Iterable[int], longest: int) -> int:
    """Return the work of encoding texts.

    Args:
        sizes: their sizes. Bytes.
        longest: tokens that the encoder reads of a text; the rest is cut off.
    """
    return sum(min(longest, size // _BYTES_A_TOKEN + 1) for size in sizes)


def analysis(sizes: Iterable[int]) -> int:
    """Return the work of splitting texts into the tokens of BM25 and counting them. Sizes in bytes."""
    return sum(sizes) // _ANALYSED


def holding(size: int) -> int:
    """Return the work of holding a request in memory. Bytes."""
    return size // _HELD


def query(text: str, size: int, segments: int) -> int:
    """Return the work of finding the passages that share words with a query.

    Args:
        text: the query.
        size: passages of the collection.
        segments: segments that they are in; each is asked for every word.
    """
    # An analyzer splits as this one does, or at white space alone.
    words = max(len(_WORDS.tokens(text)), len(text.split()))
    return words * size // _POSTINGS + words * segments // _LOOKED_UP


def filtering(where: Filter, size: int, segments: int) -> int:
    """Return the work of finding which passages meet the conditions of a filter; see :func:`query`."""
    named = (len(one.allowed.values) for one in where.conditions if isinstance(one.allowed, AnyOf))
    # A segment finds each value by halving, or reads all that it has, which are no more than its passages.
    compared = sum(min(values * segments * size.bit_length(), size) for values in named)
    return len(where.conditions) * size // _FILTERED + compared // _COMPARED


def scoring(size: int) -> int:
    """Return the work of scoring and ordering ``size`` passages, however few words they share."""
    return size // _SCORED


def sampling(draw: Draw, size: int, k: int) -> int:
    """Return the work of drawing rankings of ``k`` of ``size`` passages: O(rankings · k · (k + log n))."""
    return draw.num_rankings * k * (k + size.bit_length()) // _DRAWN


def inclusion(size: int, k: int) -> int:
    """Return the work of exact inclusion probabilities: about O(√k · n)."""
    return size * (isqrt(k) + 1) // _INTEGRATED


def targeting(size: int, k: int) -> int:
    """Return the work of finding the policy of a target: inclusion probabilities, or a linear program."""
    return _SEARCHED * inclusion(size, k)
