"""Draw the tokens of one request, independent of what else runs."""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import Tensor

from evenmesh_generator.domain import Decoding


class Sampler:
    """Draws tokens of one request: temperature, then nucleus (Holtzman et al., 2020, section 3.1).

    The same seed and stream give the same draws whatever else runs: uniform numbers come from a generator of
    the request's own and pick by inverse distribution, most probable token first.

    Args:
        stream_id: names the request among those of the same seed.
    """

    def __init__(self, decoding: Decoding, stream_id: str) -> None:
        self._temperature = decoding.temperature
        self._top_p = decoding.top_p
        self._rng = np.random.default_rng([decoding.seed, zlib.crc32(stream_id.encode())])

    def draw(self, scores: Tensor) -> int:
        """Draw a token by ``scores`` [V], unnormalised log-probabilities."""
        probabilities = (scores.double() / self._temperature).softmax(-1)
        ordered, tokens = probabilities.sort(descending=True, stable=True)
        mass = ordered.cumsum(-1)
        # The smallest set whose mass reaches top_p: up to and with the first token that reaches it.
        kept = int(torch.searchsorted(mass, self._top_p * float(mass[-1]))) + 1
        kept = min(kept, len(mass))
        point = self._rng.random() * float(mass[kept - 1])
        return int(tokens[min(int(torch.searchsorted(mass, point, right=True)), kept - 1)])
