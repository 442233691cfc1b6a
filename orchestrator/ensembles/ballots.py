"""A vote that needs nobody else: by token F1, for when the evaluator is away."""

from __future__ import annotations

import numpy as np

from orchestrator.ensembles.definitions import Voting
from orchestrator.ports import Standing
from ragcore.ensemble import anytime_vote
from ragcore.ensemble.votes import POOLINGS
from ragcore.text_metrics import token_f1


class LocalBallot:
    """One vote, as :class:`orchestrator.ports.Ballot`; similarities are token F1, whatever the voting says.

    Args:
        voting: weights and pooling.
    """

    def __init__(self, voting: Voting) -> None:
        size = len(voting.member_weights)
        self._voting = voting
        self._answers: list[str | None] = [None] * size
        self._missing = [False] * size
        self._similarity = np.zeros((1, size, size))

    async def cast(self, member: int, answer: str | None) -> Standing:
        """See the port."""
        if answer is None:
            self._missing[member] = True
        else:
            for other, text in enumerate(self._answers):
                if text is not None:
                    alike = token_f1(answer, text)
                    self._similarity[0, member, other] = self._similarity[0, other, member] = alike
            self._answers[member] = answer
        voting = self._voting
        found = anytime_vote(
            self._similarity,
            [1.0],
            voting.member_weights,
            [answer is not None for answer in self._answers],
            self._missing,
            pooling=next(name for name in POOLINGS if name == voting.pooling),
            threshold=voting.threshold,
            retriever_filter=voting.retriever_filter,
            drop_filtered=voting.drop_filtered,
        )
        return Standing(found.winner, found.decided)

    def close(self) -> None:
        """See the port."""
