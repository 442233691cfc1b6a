"""What matrix products alone would take: the bound that encoders are held against."""

from __future__ import annotations

import time
from typing import Final

import torch

from evenmesh_reranker.bundled import base_config

_SIZE: Final = 1024
_ROUNDS: Final = 5


def operations(tokens: int) -> int:
    """Return the floating-point operations of one pair's matrix products, padding not counted.

    Of the last layer the first token's output is needed alone (:mod:`evenmesh_kit.compute.first_token`).

    Args:
        tokens: of the pair, [1, inf); the encoder has MiniLM-L6's shape.
    """
    shape = base_config()
    hidden, inner = shape.hidden_size, shape.intermediate_size
    keys_and_values = 2 * 2 * hidden * hidden
    the_rest = 2 * (2 * hidden * hidden + 2 * hidden * inner) + 4 * tokens * hidden
    whole = tokens * (keys_and_values + the_rest)
    last = tokens * keys_and_values + the_rest
    return int((shape.num_hidden_layers - 1) * whole + last)


def gflops(dtype: torch.dtype = torch.float32) -> float:
    """Return the billion operations a second of a matrix product that suits the processor.

    It is the best of several, on as many threads as PyTorch has now.

    Args:
        dtype: number type of the matrices.
    """
    one = torch.randn(_SIZE, _SIZE).to(dtype)
    torch.mm(one, one)
    times = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        torch.mm(one, one)
        times.append(time.perf_counter() - began)
    return 2 * _SIZE**3 / min(times) / 1e9
