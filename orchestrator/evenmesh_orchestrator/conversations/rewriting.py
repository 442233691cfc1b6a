"""The task of rewriting a turn so that it can be understood without the turns before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from evenmesh.generator.v1 import generator_service_pb2 as generator_pb
from evenmesh_core.earlier_words import MAX_BYTES
from evenmesh_orchestrator.domain import Ask

REWRITE_TEMPLATE: Final = "question"
"""Prompt template that consists of the question, which here is the rewriting task."""

_MAX_REWRITE_TOKENS: Final = 64
_MAX_ANSWER_CHARS: Final = 500


def rewrite_prompt(ask: Ask, turns: Sequence[generator_pb.Turn]) -> generator_pb.GenerateRequest:
    """Return the prompt to rewrite a question so that it can be understood alone.

    Args:
        ask: the turn.
        turns: those before it, oldest first; the oldest are left out where all would be too long.
    """
    task = "Rewrite the last question so that it can be understood without the conversation.\n"
    end = f"Last question: {ask.question}\nRewritten question:"
    included: list[str] = []
    for turn in reversed(turns):
        one = f"Question: {turn.question}\nAnswer: {turn.answer[:_MAX_ANSWER_CHARS]}\n"
        if len((task + one + "".join(included) + end).encode()) > MAX_BYTES:
            break
        included.insert(0, one)
    return generator_pb.GenerateRequest(
        question=task + "".join(included) + end,
        model=ask.model,
        augmentation=generator_pb.AUGMENTATION_RETRIEVAL_FREE,
        decoding=generator_pb.Decoding(num_beams=1, max_new_tokens=_MAX_REWRITE_TOKENS),
        template=REWRITE_TEMPLATE,
    )
