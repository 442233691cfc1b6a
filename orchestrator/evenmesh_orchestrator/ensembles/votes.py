"""The vote of one ensemble ask: with the evaluator, or locally by token F1 after its first failure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc
import numpy as np

from evenmesh.evaluator.v1.evaluator_service_pb2 import VoteRequest
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.errors import DeadlineExceeded, MeshError
from evenmesh_core.ensemble import anytime_vote
from evenmesh_core.ensemble.votes import POOLINGS
from evenmesh_core.text_metrics import token_f1
from evenmesh_orchestrator.asks.budgets import Clock, HandledFailure, PipelineConfig, handle
from evenmesh_orchestrator.asks.failure_policy import Step
from evenmesh_orchestrator.domain import EnsembleAsk, Event, word_of
from evenmesh_orchestrator.ports import VoteSession, VoteSessions, VoteState


class LocalVoteSession:
    """A :class:`evenmesh_orchestrator.ports.VoteSession` without the evaluator; similarities are token F1.

    Args:
        vote: weights and pooling; its similarity measures are ignored.
    """

    def __init__(self, vote: VoteRequest) -> None:
        size = len(vote.retriever_weights)
        self._vote = vote
        self._pooling = word_of(VoteRequest.Pooling, vote.pooling)
        self._answers: list[str | None] = [None] * size
        self._missing = [False] * size
        self._similarity = np.zeros((1, size, size))

    async def add(self, member: int, answer: str | None) -> VoteState:
        """Count one answer; see the port."""
        if answer is None:
            self._missing[member] = True
        else:
            for other, text in enumerate(self._answers):
                if text is not None:
                    alike = token_f1(answer, text)
                    self._similarity[0, member, other] = self._similarity[0, other, member] = alike
            self._answers[member] = answer
        found = anytime_vote(
            self._similarity,
            [1.0],
            self._vote.retriever_weights,
            [answer is not None for answer in self._answers],
            self._missing,
            pooling=next(name for name in POOLINGS if name == self._pooling),
            threshold=self._vote.threshold,
            retriever_filter=self._vote.retriever_filter,
            drop_filtered=self._vote.drop_filtered,
        )
        known = np.array([text is not None for text in self._answers])
        known[member] = False
        row = () if answer is None else np.where(known, self._similarity[0, member], np.nan)
        return VoteState(found.winner, found.decided, tuple(found.scores), tuple(row))

    def close(self) -> None:
        """Do nothing; see the port."""


class EnsembleVote:
    """The vote of one ensemble ask.

    Args:
        votes: opens the vote at the evaluator.
        ensemble: the ask.
        names: of the members.
        clock: of the ask.
        config: how long to wait for the evaluator.
    """

    def __init__(
        self,
        votes: VoteSessions,
        ensemble: EnsembleAsk,
        names: Sequence[str],
        clock: Clock,
        config: PipelineConfig,
    ) -> None:
        self._names = names
        self._clock = clock
        self._wait_s = config.report_wait_s
        self._answers: dict[int, str | None] = {}
        self._vote = VoteRequest()
        self._vote.CopyFrom(ensemble.vote)
        self._vote.question = ensemble.ask.question
        self._session: VoteSession = votes.open_vote(self._vote, timeout_s=max(clock.left_s, 0.001))
        self._local = False
        self._state = VoteState(None, decided=False)
        self._similarity = np.full((len(names), len(names)), np.nan)

    async def add(self, member: int, answer: str | None) -> list[Event]:
        """Count a member's answer, None for a missing one.

        Returns:
            What degraded, and after an answer the vote so far.
        """
        self._answers[member] = answer
        events: list[Event] = []
        outcome = await self._add(member, answer)
        if isinstance(outcome, HandledFailure):
            events.append(outcome.degraded)
            self.close()
            self._session, self._local = LocalVoteSession(self._vote), True
            self._similarity.fill(np.nan)
            for earlier, text in self._answers.items():
                self._count(earlier, await self._session.add(earlier, text))
        else:
            self._count(member, outcome)
        if answer is not None:
            events.append(self.result())
        return events

    def result(self, *, final: bool = False) -> pb.VoteEvent:
        """Return the vote so far, or the final one."""
        winner = self._state.winner
        missing = [name for member, name in enumerate(self._names) if self._answers.get(member) is None]
        return pb.VoteEvent(
            answer="" if winner is None else self._answers[winner] or "",
            member="" if winner is None else self._names[winner],
            num_answers=len(self._names) - len(missing),
            num_missing=len(missing),
            missing=missing,
            may_change=not final and not self._state.decided,
            final=final,
            members=self._names,
            scores=self._state.scores,
            similarities=self._similarity.ravel(),
        )

    def close(self) -> None:
        """End the vote."""
        self._session.close()

    def _count(self, member: int, state: VoteState) -> None:
        self._state = state
        if state.similarities:
            self._similarity[member] = self._similarity[:, member] = state.similarities

    async def _add(self, member: int, answer: str | None) -> VoteState | HandledFailure:
        if self._local:
            return await self._session.add(member, answer)
        # A late member still counts as missing when only the closing time is left.
        try:
            async with asyncio.timeout(self._clock.closing_budget(cap_s=self._wait_s)):
                return await self._session.add(member, answer)
        except (TimeoutError, DeadlineExceeded):
            late = MeshError(
                grpc.StatusCode.DEADLINE_EXCEEDED, "BUDGET_EXCEEDED", "the evaluator did not count in time"
            )
            return handle(Step.VOTE, late)
        except MeshError as error:
            return handle(Step.VOTE, error)
