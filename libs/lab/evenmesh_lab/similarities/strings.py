"""Similarities that need no model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from evenmesh_core.arrays import FloatArray, IntArray
from evenmesh_core.text_metrics import normalize_answer
from evenmesh_core.token_overlap import Bags
from evenmesh_lab.similarities.similarity import Check, Similarity

_PAIRS_AT_ONCE: Final = 4096


class TokenF1(Similarity):
    """F1 of the normalised tokens (:func:`evenmesh_core.text_metrics.token_f1`), in [0, 1]."""

    name = "token_f1"

    def judge(
        self, texts: Sequence[str], left: IntArray, right: IntArray, question: str, check: Check
    ) -> FloatArray:
        """Compare bags of tokens; every text is read once."""
        bags = Bags()
        read = [bags.of(text.split()) for text in _normalized(texts, check)]

        def compared() -> Iterator[float]:
            for one, other in _places(left, right, check):
                given, wanted = read[one], read[other]
                sizes = len(given) + len(wanted)
                yield 2 * len(given & wanted) / sizes if sizes else 1.0

        return np.fromiter(compared(), np.float64, count=len(left))


class ContainmentEm(Similarity):
    """1 if one normalised answer holds the other as whole words, else 0: the EM of Li et al. 2024, §4.1
    (:func:`evenmesh_core.ensemble.containment_em`)."""

    name = "containment_em"

    def judge(
        self, texts: Sequence[str], left: IntArray, right: IntArray, question: str, check: Check
    ) -> FloatArray:
        """Compare words within words; every text is read once."""
        read = [f" {text} " if text else "" for text in _normalized(texts, check)]

        def compared() -> Iterator[bool]:
            for one, other in _places(left, right, check):
                short, long = sorted((read[one], read[other]), key=len)
                yield short in long if short else not long

        return np.fromiter(compared(), np.float64, count=len(left))


def _places(left: IntArray, right: IntArray, check: Check) -> Iterator[tuple[int, int]]:
    for begin in range(0, len(left), _PAIRS_AT_ONCE):
        part = slice(begin, begin + _PAIRS_AT_ONCE)
        for places in zip(left[part].tolist(), right[part].tolist(), strict=True):
            check()
            yield places


def _normalized(texts: Sequence[str], check: Check) -> Iterator[str]:
    for text in texts:
        check()
        yield normalize_answer(text)
