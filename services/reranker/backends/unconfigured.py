"""A reranker this server could have, but was not given a model for."""

from __future__ import annotations

from collections.abc import Sequence

from meshkit.errors import FailedPrecondition
from services.reranker.domain import Agent, LearnedModel, Passage, Scores


class Unconfigured:
    """Refuses, and says which setting would change that.

    Args:
        name: the reranker's name.
        setting: environment variable that names its model.
    """

    def __init__(self, name: str, setting: str) -> None:
        self._name = name
        self._setting = setting

    async def score(self, query: str, passages: Sequence[Passage], agent: Agent) -> Scores:
        """Refuses.

        Raises:
            FailedPrecondition: always.
        """
        raise FailedPrecondition(
            "NOT_CONFIGURED",
            f"the reranker {self._name!r} has no model: set {self._setting} to a model's folder or hub name",
        )

    def models(self) -> list[LearnedModel]:
        """None."""
        return []
