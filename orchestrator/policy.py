"""What is done when a step of an ask fails: one table, step by failure, and the names it goes by.

- retrieve, any failure: the ask fails; there is nothing to answer from.
- retrieve, nothing found: the question is answered without passages.
- one source of several, any failure: the source is left out; without any source the ask fails.
- rerank, refused, and the ask named the reranker: the ask fails; its caller can mend it.
- rerank, any other failure: the retriever's order is used.
- first answer, before its first word: the ask fails; nothing useful was said yet.
- first answer, after its first word: no answer for its samples; the ask goes on.
- other answers, any failure: no answer for their samples; the ask goes on.
- answers of an audit, refused as a whole, or before any other was there: the audit fails.
- answers of an audit, any other failure: no answer for their samples; the audit goes on.
- vote of an ensemble, any failure: the answers vote here, by token F1.
- rewrite a turn of a conversation, any failure: words of earlier turns are looked for.
- judge a conversation, any failure: no report after this turn; later ones count it.
- keep the observation, any failure: the observation is dropped.
- send the observation, any failure: it stays in the outbox and is sent later.

Degradations are told in the reply. An ask that fails does so with the code of what failed: INVALID_ARGUMENT
and NOT_FOUND of an upstream reach the caller with the ask's own field, an upstream that is away is
UNAVAILABLE, as is one whose circuit is open (with the time after which it is tried again), one that is
overloaded RESOURCE_EXHAUSTED with its retry delay, and a step that used up its budget DEADLINE_EXCEEDED.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import grpc

from meshkit.errors import MeshError
from orchestrator.domain import Action, Stage


class Step(Enum):
    """A step that can fail; its value is the stage it is told under and what people call it."""

    RETRIEVE = (Stage.RETRIEVE, "the retriever")
    SOURCE = (Stage.RETRIEVE, "a source")
    RERANK = (Stage.RERANK, "the reranker")
    DEFAULT_RERANK = (Stage.RERANK, "the default reranker")
    FIRST_WORD = (Stage.GENERATE, "the generator")
    FIRST_ANSWER = (Stage.GENERATE, "the generator, in the middle of the first answer,")
    OTHER_ANSWERS = (Stage.GENERATE, "the generator, for other contexts than the first,")
    AUDIT_ANSWERS = (Stage.GENERATE, "the generator, for some contexts of the audit,")
    VOTE = (Stage.OBSERVE, "the evaluator, for the vote,")
    REWRITE = (Stage.RETRIEVE, "the generator, for a question that stands alone,")
    JUDGE = (Stage.OBSERVE, "the evaluator, for the conversation,")
    KEEP_OBSERVATION = (Stage.OBSERVE, "the outbox")
    SEND_OBSERVATION = (Stage.OBSERVE, "the evaluator")

    @property
    def stage(self) -> Stage:
        """The stage a degradation names."""
        return self.value[0]

    @property
    def who(self) -> str:
        """Who failed, for messages."""
        return self.value[1]


class Failure(Enum):
    """How a step failed; its value is the degradation's reason and what people call it."""

    UNAVAILABLE = ("UPSTREAM_UNAVAILABLE", "is unavailable")
    CIRCUIT_OPEN = ("CIRCUIT_OPEN", "gave no answers and is left alone for a moment")
    BUDGET = ("BUDGET_EXCEEDED", "used up its share of the time")
    OVERLOADED = ("UPSTREAM_OVERLOADED", "is overloaded")
    REFUSED = ("UPSTREAM_REFUSED", "refused the request")
    ERROR = ("UPSTREAM_ERROR", "failed")

    @property
    def reason(self) -> str:
        """Machine-readable reason."""
        return self.value[0]

    @property
    def what(self) -> str:
        """What happened, for messages."""
        return self.value[1]


POLICY: Final[dict[tuple[Step, Failure], Action]] = {
    **{(Step.RETRIEVE, failure): Action.FAIL for failure in Failure},
    **{(Step.SOURCE, failure): Action.SOURCE_LEFT_OUT for failure in Failure},
    **{(Step.RERANK, failure): Action.RETRIEVER_ORDER for failure in Failure},
    (Step.RERANK, Failure.REFUSED): Action.FAIL,
    **{(Step.DEFAULT_RERANK, failure): Action.RETRIEVER_ORDER for failure in Failure},
    **{(Step.FIRST_WORD, failure): Action.FAIL for failure in Failure},
    **{(Step.FIRST_ANSWER, failure): Action.NO_ANSWER for failure in Failure},
    **{(Step.OTHER_ANSWERS, failure): Action.NO_ANSWER for failure in Failure},
    **{(Step.AUDIT_ANSWERS, failure): Action.NO_ANSWER for failure in Failure},
    (Step.AUDIT_ANSWERS, Failure.REFUSED): Action.FAIL,
    **{(Step.VOTE, failure): Action.LOCAL_VOTE for failure in Failure},
    **{(Step.REWRITE, failure): Action.HISTORY_WORDS for failure in Failure},
    **{(Step.JUDGE, failure): Action.NO_REPORT for failure in Failure},
    **{(Step.KEEP_OBSERVATION, failure): Action.OBSERVATION_DROPPED for failure in Failure},
    **{(Step.SEND_OBSERVATION, failure): Action.OBSERVATION_QUEUED for failure in Failure},
}
"""Every step and failure, and what is done."""

INSTEAD: Final = {
    Action.RETRIEVER_ORDER: "the retriever's order is used",
    Action.NO_CONTEXT: "the question is answered without passages",
    Action.SOURCE_LEFT_OUT: "it is left out",
    Action.NO_ANSWER: "the answer is left out",
    Action.LOCAL_VOTE: "the answers vote without it, by token F1",
    Action.NO_REPORT: "its relevance and fairness are told after a later turn",
    Action.HISTORY_WORDS: "passages are looked for with words of earlier turns",
    Action.OBSERVATION_QUEUED: "the observation is kept and sent later",
    Action.OBSERVATION_DROPPED: "the observation is lost",
}
"""What a degradation's message says was done."""

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
    """What kind of failure an error is."""
    if error.reason == Failure.CIRCUIT_OPEN.reason:
        return Failure.CIRCUIT_OPEN
    if error.code is grpc.StatusCode.UNAVAILABLE:
        return Failure.UNAVAILABLE
    if error.code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Failure.BUDGET
    if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Failure.OVERLOADED
    if error.code in _REFUSALS:
        return Failure.REFUSED
    return Failure.ERROR


def table() -> str:
    """The policy in Markdown: how each step fails, what is done, and the action that the reply names."""
    rows = ["| stage | what fails | how | what is done | told as |", "|---|---|---|---|---|"]
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
                done, told = "the call fails", "its status"
            else:
                done, told = INSTEAD[action], f"`{action}`"
            rows.append(f"| {step.stage} | {step.who.rstrip(',')} | {how} | {done} | {told} |")
    return "\n".join(rows)
