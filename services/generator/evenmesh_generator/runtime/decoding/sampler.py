"""Draw the tokens of one request, independent of what else runs."""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np
import torch
from torch import Tensor

from evenmesh_generator.domain import Decoding

_LIKELY: Final = 256
"""Tokens that are sorted at first: a draw is nearly always one of these."""

_COLDEST: Final = 1e-200
"""Scores divided by a lower temperature could be no numbers; at this one the likeliest token is certain."""

_ROUNDING: Final = 1e-12
"""Relative error of a sum of probabilities, which depends on the order of its terms."""


class Sampler:
    """Draws tokens of one request: temperature, then nucleus (Holtzman et al., 2020, section 3.1).

    The same seed and stream give the same draws whatever else runs: uniform numbers come from a generator of
    the request's own and pick by inverse distribution, most probable token first, and of equally probable
    ones that with the lower number first.

    Args:
        stream_id: names the request among those of the same seed, and among what else is drawn by it.
    """

    def __init__(self, decoding: Decoding, stream_id: str) -> None:
        self._temperature = max(decoding.temperature, _COLDEST)
        self._top_p = decoding.top_p
        self._rng = np.random.default_rng([decoding.seed, zlib.crc32(stream_id.encode())])

    def uniform(self) -> float:
        """Return the number in [0, 1) that picks the next token."""
        return float(self._rng.random())

    def pick(self, scores: Tensor, uniform: float) -> tuple[Tensor, Tensor]:
        """Return the token [] that a number picks by ``scores`` [V], and whether it is certain [].

        Only the likeliest tokens are looked at, and nothing waits for the device. A pick beyond them, among
        tokens as likely as the last of them, or from a nucleus whose end rounding decides is not certain:
        :meth:`pick_slowly` returns it.
        """
        probabilities = self._probabilities(scores)
        if len(probabilities) <= _LIKELY:
            token = self._picked(*probabilities.sort(descending=True, stable=True), uniform)
            return token, torch.ones((), dtype=torch.bool, device=token.device)
        found, tokens = probabilities.topk(_LIKELY)
        # Equal ones in the order of their numbers: topk says nothing of it.
        tokens, order = tokens.sort()
        found, order = found[order].sort(descending=True, stable=True)
        mass, last = found.cumsum(-1), _LIKELY - 1
        target = self._top_p * probabilities.sum()
        reach = torch.searchsorted(mass, target)
        kept = reach.clamp_max(last)
        # Where the nucleus ends further on, its mass is known up to one token's, of at most the last one's.
        beyond = found[-1] if self._top_p < 1 else torch.zeros_like(target)
        ends = torch.where(reach <= last, mass[kept], torch.stack([target, target + beyond]))
        places = torch.searchsorted(mass, uniform * ends, right=True).clamp_max(kept)
        certain = (places[0] == places[1]) & (found[places[0]] > found[-1])
        if self._top_p < 1:
            edges = torch.searchsorted(
                mass, torch.stack([target * (1 - _ROUNDING), target * (1 + _ROUNDING)])
            )
            certain &= edges[0] == edges[1]
        return tokens[order[places[0]]], certain

    def pick_slowly(self, scores: Tensor, uniform: float) -> Tensor:
        """Return the token [] that a number picks by ``scores`` [V]; all tokens are sorted."""
        return self._picked(*self._probabilities(scores).sort(descending=True, stable=True), uniform)

    def _probabilities(self, scores: Tensor) -> Tensor:
        return (scores.double() / self._temperature).softmax(-1)

    def _picked(self, ordered: Tensor, tokens: Tensor, uniform: float) -> Tensor:
        mass = ordered.cumsum(-1)
        # The smallest set whose mass reaches top_p: up to and with the first token that reaches it.
        kept = torch.searchsorted(mass, self._top_p * mass[-1]).clamp_max(len(mass) - 1)
        place = torch.searchsorted(mass, uniform * mass[kept], right=True)
        return tokens[torch.minimum(place, kept)]
