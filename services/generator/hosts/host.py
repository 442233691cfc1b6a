"""What the composition root needs of the place where models run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.generator.ports import LanguageModel
from services.generator.runtime.statistics import EngineStatistics


@dataclass(frozen=True, slots=True)
class HostedModel:
    """A model that runs.

    Attributes:
        model: the model.
        statistics: what it has done so far.
    """

    model: LanguageModel
    statistics: Callable[[], EngineStatistics]


class Host(Protocol):
    """Has models run."""

    async def start(self) -> Sequence[HostedModel]:
        """Every model, the default first.

        Raises:
            SettingsError: a model cannot be had; one line that names the setting.
        """
        ...

    async def stop(self) -> None:
        """Lets go of them."""
        ...
