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

    In float32 a row's result depends on how many rows there are, too; ``rows`` computes so many at a time.

    Args:
        weight: ``[out, in]``.
        bias: ``[out]``; None adds none.
        rows: rows of ``hidden`` that are computed at a time, the last filled up with zeros; None: all.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, rows: int | None = None) -> None:
        self._bias = bias
        self._rows = rows
        self._laid_out = _laid_out(weight)
        self._weight = weight if self._laid_out is None else None

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return the projection of ``hidden`` [..., in], or [N, in] where rows are computed apart."""
        if self._rows is not None:
            missing = -len(hidden) % self._rows
            whole = functional.pad(hidden, (0, 0, 0, missing)).view(-1, self._rows, hidden.shape[1])
            return torch.cat([self._product(part) for part in whole])[: len(hidden)]
        return self._product(hidden)

    def _product(self, hidden: Tensor) -> Tensor:
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
