"""Convert weights to a number type once, when a model is loaded.

Needs ``torch``; only services that load models import this.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


def narrow(modules: Iterable[nn.Module], dtype: torch.dtype, *, but: Iterable[nn.Module] = ()) -> None:
    """Convert the weights of all linear layers in place, for computing under autocast with this type.

    Autocast converts weights of another type anew in every pass. The results are the same to the bit: it
    rounds in the same way.

    Args:
        modules: whose linear layers are converted.
        dtype: type of autocast.
        but: layers that stay as they are, because they compute in float32.
    """
    kept = {id(one) for one in but}
    for module in modules:
        for layer in module.modules():
            if isinstance(layer, nn.Linear) and id(layer) not in kept:
                layer.to(dtype)
