"""Relevance and group fairness of a conversation."""

from __future__ import annotations

import re

from meshkit.errors import InvalidField
from ragcore import group_fairness
from ragcore.errors import InvalidInput
from services.evaluator.domain import ConversationQuestion


def conversation(question: ConversationQuestion) -> group_fairness.ConversationFairness:
    """Relevance and group fairness of a conversation (GFRC, equations 3 to 10).

    Raises:
        InvalidField: arguments that do not fit each other, under the request's name for them.
    """
    try:
        return group_fairness.conversation(
            question.turns,
            question.attributes,
            patience=question.patience,
            method=question.method,
            irrelevant_turns=question.irrelevant_turns,
            alpha=question.alpha,
        )
    except InvalidInput as error:
        path = re.sub(r"^(?:len|sum)\((.*)\)$", r"\1", error.argument)
        path = re.sub(r"^turns\[(\d+)\]\[(\d+)\]", r"turns[\1].nuggets[\2]", path)
        if question.from_transcript and path.startswith("turns"):
            path = "transcript"
        raise InvalidField(path, str(error)) from error
