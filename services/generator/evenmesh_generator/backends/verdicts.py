"""P(True) from the most probable first tokens of an answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from evenmesh.wire.errors import FailedPrecondition
from evenmesh_generator.domain import Normalization

_BLANKS: Final = " \t\r\n\N{LOWER ONE EIGHTH BLOCK}\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}"
"""How tokenizers write the blank before a word."""


class NoRelevance(FailedPrecondition):
    """FAILED_PRECONDITION: the model cannot judge, as its server gives no log-probabilities."""

    def __init__(self, model: str) -> None:
        super().__init__(
            "NO_RELEVANCE", f"{model} cannot judge relevance: its server gives no log-probabilities"
        )


def p_true(top: Mapping[str, float], normalization: Normalization) -> float:
    """Return P(True), [0, 1], given the natural log-probabilities of the most probable tokens.

    A token counts for a verdict if it is the word, or its beginning. A verdict that is not among the tokens
    is less probable than each of them, and than what they leave: this bound stands for it. So P(True) is
    exact where both verdicts are among the tokens, and 1/2 where none is.

    Args:
        top: log-probability by token, at least one. Nats, (-inf, 0].
        normalization: over which tokens P(True) is normalised.
    """
    probabilities = {token: math.exp(min(0.0, value)) for token, value in top.items()}
    bound = max(0.0, min(*probabilities.values(), 1.0 - math.fsum(probabilities.values())))
    true, false = (_probability(probabilities, word, bound) for word in ("True", "False"))
    if normalization is Normalization.VOCABULARY:
        return min(1.0, true)
    return 0.5 if true + false == 0.0 else true / (true + false)


def _probability(probabilities: Mapping[str, float], word: str, bound: float) -> float:
    found = [
        value
        for token, value in probabilities.items()
        if (stripped := token.strip(_BLANKS)) and word.startswith(stripped)
    ]
    return math.fsum(found) if found else bound
