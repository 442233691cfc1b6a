"""Refuse observations that are too large or too costly, before they are read or take memory.

Such an observation never fits, so its status is final: RESOURCE_EXHAUSTED, ``OBSERVATION_TOO_LARGE``,
without a time to try again.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Final

import grpc

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField, MeshError
from evenmesh_core.answer_scores import check_references
from evenmesh_core.errors import InvalidInput
from evenmesh_evaluator import cost
from evenmesh_evaluator.fields import METRICS

REASON: Final = "OBSERVATION_TOO_LARGE"
"""Reason of the refusal."""
MAX_LABELS: Final = 10_000
"""Most useful passages of an observation."""
MAX_REFERENCES: Final = 1000
"""Most right answers of an observation."""
MAX_ANSWERS: Final = 1000
"""Most different answers of an observation."""
MAX_CANDIDATES: Final = 1000
"""Most candidates of an observation."""
MAX_INDICES: Final = 1_000_000
"""Most places of all rankings of an observation."""


def check(message: pb.Observation) -> float:
    """Check counts first, which takes no time, then bytes and the cost of measuring.

    Returns:
        The cost of measuring. CPU seconds, [0, inf).

    Raises:
        MeshError: one is above its bound.
    """
    counted: tuple[tuple[str, Sized, int], ...] = (
        ("candidates", message.candidates, MAX_CANDIDATES),
        ("shown.indices", message.shown.indices, MAX_INDICES),
        ("answers", message.answers, MAX_ANSWERS),
        ("labels.useful_passage_ids", message.labels.useful_passage_ids, MAX_LABELS),
        ("labels.references", message.labels.references, MAX_REFERENCES),
    )
    for field, values, most in counted:
        if len(values) > most:
            raise _too_large(field, f"must be at most {most:,}, has {len(values):,}")
    if (size := message.ByteSize()) > cost.MAX_OBSERVATION_BYTES:
        raise _too_large("", f"must be at most {cost.MAX_OBSERVATION_BYTES:,} bytes, has {size:,}")
    cpu_s = 0.0
    if message.HasField("conversation"):
        cpu_s += _check_conversation(message.conversation.judged)
    if message.HasField("vote_winner"):
        cpu_s += _check_vote(message)
    references = message.labels.references
    if references and message.labels.metric in pb.UtilityMetric.values():
        texts = (*references, *(answer.text for answer in message.answers))
        if (longest := max(map(len, texts), default=0)) > cost.MAX_TEXT:
            text = f"answers and references must be at most {cost.MAX_TEXT:,} characters, one has {longest:,}"
            raise _too_large("labels.references", text)
        metric = METRICS.read("labels.metric", message.labels.metric)
        try:
            check_references(references, metric.value)
        except InvalidInput as error:
            raise InvalidField(f"labels.{error.argument}", "must be a rating from 1 to 5") from error
        scoring_s = cost.answers([answer.text for answer in message.answers], references, metric).cpu_s
        held = sum(len(candidate.text) for candidate in message.candidates)
        scoring_s += cost.held(held, len(references) + len(message.answers)).cpu_s
        if scoring_s > cost.MAX_OBSERVATION_CPU_S:
            raise _too_large(
                "labels.references",
                f"scoring the answers would take {scoring_s:.1f} CPU seconds, at most "
                f"{cost.MAX_OBSERVATION_CPU_S:g} are allowed: give fewer or shorter references, answers or "
                "passages",
            )
        cpu_s += scoring_s
    return cpu_s


def _check_conversation(judged: pb.EvaluateConversationRequest) -> float:
    try:
        cpu_s = cost.conversation(judged).cpu_s
    except InvalidField as error:
        raise _too_large("conversation.judged", error.message) from error
    if cpu_s > cost.MAX_OBSERVATION_CPU_S:
        text = f"would take {cpu_s:.1f} CPU seconds, at most {cost.MAX_OBSERVATION_CPU_S:g} are allowed"
        raise _too_large("conversation.judged", f"{text}: send fewer turns, nuggets or groups")
    return cpu_s


def _check_vote(message: pb.Observation) -> float:
    given = [answer.text for answer in message.answers]
    if message.vote_winner >= len(given):  # is refused when it is read
        return 0.0
    cpu_s = cost.agreement(given[message.vote_winner], given).cpu_s
    if cpu_s > cost.MAX_OBSERVATION_CPU_S:
        raise _too_large(
            "answers",
            f"comparing the winning answer would take {cpu_s:.1f} CPU seconds, at most "
            f"{cost.MAX_OBSERVATION_CPU_S:g} are allowed: give fewer or shorter answers",
        )
    return cpu_s


def _too_large(field: str, text: str) -> MeshError:
    return MeshError(grpc.StatusCode.RESOURCE_EXHAUSTED, REASON, text, field=field or None)
