"""Similarities that need no model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ragcore.arrays import FloatArray
from ragcore.ensemble import containment_em
from ragcore.text_metrics import token_f1
from raglab.similarities.similarity import Pair, PairwiseSimilarity


class TokenF1(PairwiseSimilarity):
    """F1 of the normalised tokens (:func:`ragcore.text_metrics.token_f1`), in [0, 1]."""

    name = "token_f1"

    def judge(self, pairs: Sequence[Pair], question: str) -> FloatArray:
        """Bags of tokens, pair by pair."""
        return np.array([token_f1(left, right) for left, right in pairs])


class ContainmentEm(PairwiseSimilarity):
    """1 if one normalised answer holds the other as whole words, else 0 (the EM of ensemble-of-retrievers
    §4.1; :func:`ragcore.ensemble.containment_em`)."""

    name = "containment_em"

    def judge(self, pairs: Sequence[Pair], question: str) -> FloatArray:
        """Words within words, pair by pair."""
        return np.array([containment_em(left, right) for left, right in pairs])
