"""Reports of trainers, which are separate processes, and the feedback that waits for them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from evenmesh_reranker.domain import Agent, Scope

SILENT_US: Final = 60 * 10**6
"""Time without a report after which a running training counts as failed. Microseconds."""


class State(IntEnum):
    """State of a trainer; the numbers are those of the database."""

    IDLE = 0
    RUNNING = 1
    FAILED = 2


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """A trainer's report of its training; while it runs it reports at least every twenty seconds.

    Attributes:
        scope: the agent whose own parameters are trained, or all agents of a tenant for their shared model.
        state: what it is doing.
        progress: share of the training that is done, [0, 1].
        message: one line for a person.
        trained_upto: sequence number of the last feedback that a finished training has read, [0, inf).
        candidate_version: the last version it made that was not promoted; empty if none.
    """

    scope: Scope
    state: State
    progress: float = 0.0
    message: str = ""
    trained_upto: int = 0
    candidate_version: str = ""

    @property
    def agent(self) -> Agent | None:
        """The agent; None if the training is for all agents of a tenant."""
        return self.scope if isinstance(self.scope, Agent) else None


@dataclass(frozen=True, slots=True)
class Training:
    """A training and the feedback that waits for it.

    Attributes:
        report: its trainer's last report; IDLE and empty if there is none.
        pending: items not yet trained on, without flagged ones, [0, inf).
        pending_queries: distinct queries among them, [0, pending].
        updated_at_us: time of the last report; None if there is none. Microseconds since 1970.
    """

    report: TrainingReport
    pending: int
    pending_queries: int
    updated_at_us: int | None

    def state(self, now_us: int) -> tuple[State, str]:
        """Return the state and a line about it; a running training without reports has failed.

        A report from the future is from before the clock went backwards: one that runs reports again soon.
        """
        silent = self.updated_at_us is None or abs(now_us - self.updated_at_us) > SILENT_US
        if self.report.state is State.RUNNING and silent:
            return State.FAILED, "the trainer has sent no report for a minute: it was killed or hangs"
        return self.report.state, self.report.message
