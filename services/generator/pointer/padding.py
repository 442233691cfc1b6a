"""Pairs of different lengths in one tensor."""

from collections.abc import Sequence

import torch
from torch import Tensor

from services.generator.pointer.tokenization import PAD, Pair


def pad_pairs(pairs: Sequence[Pair]) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask (1 on tokens) and token types of ``pairs``, each [N, L] with L the longest."""
    length = max(len(p.ids) for p in pairs)
    input_ids = torch.full((len(pairs), length), PAD)
    mask = torch.zeros_like(input_ids)
    types = torch.zeros_like(input_ids)
    for row, p in enumerate(pairs):
        input_ids[row, : len(p.ids)] = torch.tensor(p.ids)
        mask[row, : len(p.ids)] = 1
        types[row, p.boundary : len(p.ids)] = 1
    return input_ids, mask, types
