"""Counts what PyTorch does: operators, copies to the host and memory, on any device and on none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Memory(TorchDispatchMode):
    """Counts the bytes of floating-point tensors that are made within the block: alive, and at most."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        given = {_storage(one) for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)}
        for one in tree_leaves(found):
            if isinstance(one, torch.Tensor) and one.is_floating_point() and _storage(one) not in given:
                storage = one.untyped_storage()
                self._alive[_storage(one)] = (StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, self.alive)
        return found

    @property
    def alive(self) -> int:
        """Return the bytes of the tensors made within the block that still exist."""
        self._alive = {at: one for at, one in self._alive.items() if not one[0].expired()}
        return sum(size for _, size in self._alive.values())


class Operators(TorchDispatchMode):
    """Counts operators by name, such as ``aten.sort``, and the elements of their first tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.largest: dict[str, int] = {}
        self.casts: list[torch.Tensor] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = str(func.overloadpacket)
        self.calls[name] += 1
        first = next((one for one in tree_leaves(args) if isinstance(one, torch.Tensor)), None)
        if first is not None:
            self.largest[name] = max(self.largest.get(name, 0), first.numel())
        found = func(*args, **(kwargs or {}))
        if name in _CASTS and isinstance(first, torch.Tensor) and found.dtype != first.dtype:
            self.casts.append(first)
        return found


_CASTS: Final = ("aten._to_copy", "aten.to")
"""Without autograd the second is seen and not the first."""


class Waits(TorchFunctionMode):
    """Counts how often the host would wait for a GPU: it reads values of a tensor, or how many there are, or
    makes one on the device out of the host's.
    """

    _NAMES: Final = frozenset(
        {
            "tolist",
            "item",
            "cpu",
            "numpy",
            "nonzero",
            "masked_select",
            "equal",
            "allclose",
            "__bool__",
            "__int__",
            "__float__",
            "__index__",
        }
    )

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        by_mask = name in ("__getitem__", "__setitem__") and any(
            isinstance(one, torch.Tensor) and one.dtype is torch.bool for one in tree_leaves(args[1])
        )
        blocking = name == "tensor" and (kwargs or {}).get("device") is not None
        if name in self._NAMES or by_mask or blocking:
            self.calls[name] += 1
        return func(*args, **(kwargs or {}))

    @property
    def count(self) -> int:
        """Return how often it waited."""
        return self.calls.total()


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
