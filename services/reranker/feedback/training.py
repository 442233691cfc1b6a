"""What trainers, which are processes of their own, say of their work, and what waits for them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from services.reranker.domain import Agent, Audience

SILENT_US: Final = 60 * 10**6
"""A training that runs and was not heard of for so long has failed. Microseconds."""


class State(IntEnum):
    """What a trainer is doing; the numbers are those of the database."""

    IDLE = 0
    RUNNING = 1
    FAILED = 2


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """What a trainer says of its training now. It says so at least every twenty seconds while it runs.

    Attributes:
        whose: the agent whose own parameters are trained, or all of a tenant for the model that serves them.
        state: what it is doing.
        progress: share of it that is done, [0, 1].
        message: one line for a person.
        trained_upto: sequence number of the last feedback that a finished training has seen, [0, inf); what
            comes after it waits.
        candidate_version: the last version it made that was not promoted; empty if there is none.
    """

    whose: Audience
    state: State
    progress: float = 0.0
    message: str = ""
    trained_upto: int = 0
    candidate_version: str = ""

    @property
    def agent(self) -> Agent | None:
        """The agent; None if it is the model of all agents of a tenant."""
        return self.whose if isinstance(self.whose, Agent) else None


@dataclass(frozen=True, slots=True)
class Training:
    """A training and what waits for it.

    Attributes:
        report: what its trainer said last; IDLE and empty if there never was one.
        pending: items not yet trained on, those that are flagged aside, [0, inf).
        pending_queries: distinct queries among them, [0, pending].
        updated_at_us: when its trainer was last heard of; None if never. Microseconds since 1970.
    """

    report: TrainingReport
    pending: int
    pending_queries: int
    updated_at_us: int | None

    def state(self, now_us: int) -> tuple[State, str]:
        """The state as it can be believed, and a line about it: a silent trainer is a dead one."""
        silent = self.updated_at_us is None or now_us - self.updated_at_us > SILENT_US
        if self.report.state is State.RUNNING and silent:
            return State.FAILED, "the trainer was not heard of for a minute: it was killed or hangs"
        return self.report.state, self.report.message
