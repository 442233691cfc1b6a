"""Projections, whose weights are laid out once for the processor that reads them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


class Linear:
    """A projection in the type it is computed in.

    In bfloat16 on a processor, oneDNN lays the weights out for its kernels in every call, which for a few
    rows takes as long as the product. Here they are laid out once. A row's result was then also the same to
    the bit alone and among 64 (PyTorch 2.13, a processor with AMX), as it otherwise was not.

    Args:
        weight: ``[out, in]``.
        bias: ``[out]``; None adds none.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = bias
        self._laid_out = _laid_out(weight)
        self._weight = weight if self._laid_out is None else None

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return the projection of ``hidden`` [..., in]."""
        if self._weight is not None:
            return functional.linear(hidden, self._weight, self._bias)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            hidden, self._laid_out, self._bias, "none", [], ""
        )
        return product


def _laid_out(weight: Tensor) -> Tensor | None:
    """Return the weights in oneDNN's own order; None where it would not be faster, or cannot be had."""
    if weight.dtype is not torch.bfloat16 or weight.device.type != "cpu":
        return None
    try:
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return None
        rows = 1  # laid out for more, a row's result depended on how many there were
        laid_out: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    except (AttributeError, RuntimeError):  # a PyTorch without oneDNN, as on some ARM builds
        return None
    return laid_out
