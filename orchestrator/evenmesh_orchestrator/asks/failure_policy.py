"""The failure policy: one table of what the orchestrator does when a step of an ask fails, by failure.

The reply reports degradations. A failed ask has the status of the failed step: INVALID_ARGUMENT and NOT_FOUND
of an upstream name the ask's own field; an unreachable upstream is UNAVAILABLE, as is one whose circuit is
open (with the delay until the next trial call); an overloaded one is RESOURCE_EXHAUSTED with its retry delay;
a step that used up its budget is DEADLINE_EXCEEDED.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import grpc

from evenmesh.wire.errors import SHARE_FULL, MeshError
from evenmesh_orchestrator.domain import Action, Stage


class Step(Enum):
    """A step that can fail; its value is the stage of its degradation, and its name in messages."""

    RETRIEVE = (Stage.RETRIEVE, "the retriever")
    SOURCE = (Stage.RETRIEVE, "a source")
    RERANK = (Stage.RERANK, "the reranker")
    DEFAULT_RERANK = (Stage.RERANK, "the default reranker")
    FIRST_WORD = (Stage.GENERATE, "the generator")
    FIRST_ANSWER = (Stage.GENERATE, "the generator, in the middle of the first answer,")
    OTHER_ANSWERS = (Stage.GENERATE, "the generator, for other contexts than the first,")
    AUDIT_ANSWERS = (Stage.GENERATE, "the generator, for some contexts of the audit,")
    READ_BALANCE = (Stage.RERANK, "the evaluator, for what providers are owed,")
    VOTE = (Stage.OBSERVE, "the evaluator, for the vote,")
    REWRITE = (Stage.RETRIEVE, "the generator, for a question that stands alone,")
    MEASURE_CONVERSATION = (Stage.OBSERVE, "the evaluator, for the conversation,")
    STORE_OBSERVATION = (Stage.OBSERVE, "the outbox")
    SEND_OBSERVATION = (Stage.OBSERVE, "the evaluator")

    @property
    def stage(self) -> Stage:
        """The stage of its degradation."""
        return self.value[0]

    @property
    def who(self) -> str:
        """Name of the failed service, for messages."""
        return self.value[1]


class Failure(Enum):
    """How a step failed; its value is the reason of the degradation, and the words in messages."""

    UNAVAILABLE = ("UPSTREAM_UNAVAILABLE", "is unavailable")
    CIRCUIT_OPEN = ("CIRCUIT_OPEN", "did not answer and is not called for a moment")
    BUDGET = ("BUDGET_EXCEEDED", "used up its share of the time")
    OVER_CAPACITY = ("OVER_CAPACITY", "never takes so much at once")
    OVERLOADED = ("UPSTREAM_OVERLOADED", "is overloaded")
    SHARE_FULL = (SHARE_FULL, "works for the tenant as much as it may")
    REFUSED = ("UPSTREAM_REFUSED", "refused the request")
    ERROR = ("UPSTREAM_ERROR", "failed")

    @property
    def reason(self) -> str:
        """Machine-readable reason."""
        return self.value[0]

    @property
    def what(self) -> str:
        """The failure in words, for messages."""
        return self.value[1]


POLICY: Final[dict[tuple[Step, Failure], Action]] = {
    **{(Step.RETRIEVE, failure): Action.FAIL for failure in Failure},
    **{(Step.SOURCE, failure): Action.SOURCE_LEFT_OUT for failure in Failure},
    **{(Step.RERANK, failure): Action.RETRIEVER_ORDER for failure in Failure},
    (Step.RERANK, Failure.REFUSED): Action.FAIL,
    (Step.RERANK, Failure.OVER_CAPACITY): Action.FAIL,
    **{(Step.DEFAULT_RERANK, failure): Action.RETRIEVER_ORDER for failure in Failure},
    **{(Step.FIRST_WORD, failure): Action.FAIL for failure in Failure},
    **{(Step.FIRST_ANSWER, failure): Action.NO_ANSWER for failure in Failure},
    **{(Step.OTHER_ANSWERS, failure): Action.NO_ANSWER for failure in Failure},
    **{(Step.AUDIT_ANSWERS, failure): Action.NO_ANSWER for failure in Failure},
    (Step.AUDIT_ANSWERS, Failure.REFUSED): Action.FAIL,
    (Step.AUDIT_ANSWERS, Failure.OVER_CAPACITY): Action.FAIL,
    **{(Step.READ_BALANCE, failure): Action.NO_BALANCE for failure in Failure},
    **{(Step.VOTE, failure): Action.LOCAL_VOTE for failure in Failure},
    **{(Step.REWRITE, failure): Action.HISTORY_WORDS for failure in Failure},
    **{(Step.MEASURE_CONVERSATION, failure): Action.NO_REPORT for failure in Failure},
    **{(Step.STORE_OBSERVATION, failure): Action.OBSERVATION_DROPPED for failure in Failure},
    **{(Step.SEND_OBSERVATION, failure): Action.OBSERVATION_QUEUED for failure in Failure},
}
"""The action for every step and failure."""

INSTEAD: Final = {
    Action.RETRIEVER_ORDER: "the retriever's order is used",
    Action.NO_CONTEXT: "the question is answered without passages",
    Action.SOURCE_LEFT_OUT: "it is left out",
    Action.NO_ANSWER: "the answer is left out",
    Action.LOCAL_VOTE: "the answers vote without it, by token F1",
    Action.NO_REPORT: "its relevance and fairness are reported after a later turn",
    Action.NO_BALANCE: "rankings are drawn without it",
    Action.HISTORY_WORDS: "words of earlier turns extend the search text",
    Action.OBSERVATION_QUEUED: "the observation is kept and sent later",
    Action.OBSERVATION_DROPPED: "the observation is lost",
}
"""Actions in words, for the messages of degradations."""

_TOO_MUCH: Final = frozenset({"OVER_CAPACITY", "REQUEST_TOO_LARGE"})
"""Reasons of requests that never fit: the caller must ask for less."""
_REFUSALS: Final = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)


def failure_of(error: MeshError) -> Failure:
    """Return the kind of failure of an error."""
    if error.reason == Failure.CIRCUIT_OPEN.reason:
        return Failure.CIRCUIT_OPEN
    if error.code is grpc.StatusCode.UNAVAILABLE:
        return Failure.UNAVAILABLE
    if error.code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Failure.BUDGET
    if error.reason in _TOO_MUCH:
        return Failure.OVER_CAPACITY
    if error.reason == SHARE_FULL:
        return Failure.SHARE_FULL
    if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Failure.OVERLOADED
    if error.code in _REFUSALS:
        return Failure.REFUSED
    return Failure.ERROR


def table() -> str:
    """Return the policy as a Markdown table, for docs/operate/limits.md."""
    rows = ["| stage | what fails | how | what is done | reported as |", "|---|---|---|---|---|"]
    for step in Step:
        by_action: dict[Action, list[Failure]] = {}
        for failure in Failure:
            by_action.setdefault(POLICY[step, failure], []).append(failure)
        # Exceptions first.
        ordered = sorted(by_action.items(), key=lambda one: len(one[1]))
        for action, failures in ordered:
            how = ", ".join(f"`{failure.reason}`" for failure in failures)
            if action is ordered[-1][0]:
                how = "any failure" if len(ordered) == 1 else "any other failure"
            if action is Action.FAIL:
                done, report = "the call fails", "its status"
            else:
                done, report = INSTEAD[action], f"`{action}`"
            rows.append(f"| {step.stage} | {step.who.rstrip(',')} | {how} | {done} | {report} |")
    return "\n".join(rows)
