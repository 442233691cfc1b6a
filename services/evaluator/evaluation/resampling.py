"""How intervals are bootstrapped."""

from __future__ import annotations

from dataclasses import dataclass

from ragcore.intervals import BootstrapMethod


@dataclass(frozen=True, slots=True)
class Resampling:
    """A bootstrap over queries; the same seed gives the same interval."""

    method: BootstrapMethod = "bca"
    num_resamples: int = 2000
    level: float = 0.95
    seed: int = 0
