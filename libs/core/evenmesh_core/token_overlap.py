"""Overlap of tokenised texts: bags of tokens or n-grams, and longest common subsequences.

Bags are compared in time linear in the smaller one. Subsequences are compared bit-parallel (Hyyrö 2004,
through ``rapidfuzz``): m · n / 64 steps and linear memory instead of a table of m · n numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final

import numpy as np

from evenmesh_core.arrays import FloatArray

_BLOCK_TOKENS: Final = 1 << 18  # tokens of bags compared between two checks: some milliseconds
_BLOCK_STEPS: Final = 1 << 24  # steps of subsequences compared between two checks: some ten milliseconds
_BLOCK_PAIRS: Final = 1 << 16  # pairs whose results are held at a time

Check = Callable[[], None]
"""Called every few milliseconds; what it raises ends the computation."""
Score = Callable[[FloatArray, int, FloatArray], FloatArray]
"""From the tokens shared with each reference, those of a text, and those of each reference, to its scores."""


class Bags:
    """Reads bags of tokens as sets of numbers: two bags share as many tokens as their sets share numbers.

    The k-th occurrence of a token has a number of its own, so both bags share it if both hold the token k
    times.
    """

    def __init__(self) -> None:
        self._places: dict[Hashable, int] = {}

    def of(self, tokens: Iterable[Hashable]) -> frozenset[int]:
        """Return a bag of fewer than 2^32 tokens."""
        times: dict[int, int] = {}
        bag = []
        for token in tokens:
            place = self._places.setdefault(token, len(self._places))
            times[place] = times.get(place, 0) + 1
            bag.append(place << 32 | times[place])
        return frozenset(bag)


def ngrams(tokens: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """Return the runs of ``size`` tokens, in order."""
    return [tuple(tokens[at : at + size]) for at in range(len(tokens) - size + 1)]


def f1(common: FloatArray, given: int, wanted: FloatArray) -> FloatArray:
    """Return F1 of bags from the sizes of both and of what they share: 1 if neither has any, 0 if one has
    none."""
    sizes = given + wanted
    return np.divide(2 * common, sizes, out=np.ones_like(sizes), where=sizes > 0)


def rouge_f(common: FloatArray, given: int, wanted: FloatArray) -> FloatArray:
    """Return the F-measure of ``rouge_score``, to the last bit; 0 where nothing is shared."""
    precision, recall = common / max(given, 1), common / np.maximum(wanted, 1)
    both = precision + recall
    return np.divide(2 * precision * recall, both, out=np.zeros_like(both), where=both > 0)


def best_of_bags(
    given: Sequence[frozenset[int]], wanted: Sequence[frozenset[int]], score: Score, check: Check
) -> FloatArray:
    """Return each bag's best score against the wanted bags: vector [len(given)]."""
    sizes = [len(one) for one in wanted]
    best = np.empty(len(given))
    compared = 0
    for place, one in enumerate(given):
        common = []
        for other, size in zip(wanted, sizes, strict=True):
            compared += 8 + min(size, len(one))
            if compared > _BLOCK_TOKENS:
                compared = 0
                check()
            common.append(len(one & other))
        best[place] = score(np.array(common, np.float64), len(one), np.array(sizes, np.float64)).max()
    return best


def best_of_subsequences(
    given: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]], check: Check
) -> FloatArray:
    """Return each text's best ROUGE-L F-measure against the wanted texts: vector [len(given)]."""
    numbers: dict[str, int] = {}
    rows, columns = ([_numbered(one, numbers) for one in texts] for texts in (given, wanted))
    best = np.zeros(len(rows))
    for left, right in _blocks([1 + len(one) // 64 for one in columns], _BLOCK_PAIRS):
        some = columns[left:right]
        sizes = np.array([len(one) for one in some], np.float64)
        steps = sum(1 + len(one) // 64 for one in some)
        most = min(_BLOCK_STEPS, _BLOCK_PAIRS * steps // len(some))
        for top, bottom in _blocks([(1 + len(one)) * steps for one in rows], most):
            check()
            common = _common(rows[top:bottom], some)
            for place, shared in enumerate(common, start=top):
                best[place] = max(best[place], rouge_f(shared, len(rows[place]), sizes).max())
    return best


def _common(rows: Sequence[Sequence[int]], columns: Sequence[Sequence[int]]) -> FloatArray:
    """Return the lengths of longest common subsequences, [rows, columns]; other threads run meanwhile."""
    from rapidfuzz.distance import LCSseq
    from rapidfuzz.process import cdist

    found: FloatArray = cdist(rows, columns, scorer=LCSseq.similarity, workers=1).astype(np.float64)
    return found


def _numbered(tokens: Sequence[str], numbers: dict[str, int]) -> list[int]:
    return [numbers.setdefault(token, len(numbers)) for token in tokens]


def _blocks(sizes: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Cut a sequence into runs whose sizes add up to at most ``most``, or of one entry."""
    cuts, total = [0], 0
    for at, size in enumerate(sizes):
        if total and total + size > most:
            cuts.append(at)
            total = 0
        total += size
    return list(zip(cuts, [*cuts[1:], len(sizes)], strict=True))
