"""Generate answers without retrieval, many in a call: for labels."""

# ruff: noqa: ASYNC109 - a timeout is gRPC's deadline here, sent along with the call

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from evenmesh._async.calls import AsyncCalls
from evenmesh.codec.mapping import encode
from evenmesh.generator.v1 import generator_service_pb2 as generator_pb2
from evenmesh.types.events import Failed
from evenmesh.types.passage import Passage
from evenmesh.types.request import Augmentation, Decoding, passage_message
from evenmesh.wire.deadline import Deadline
from evenmesh.wire.pieces import in_pieces

LARGEST_BATCH: Final = 256
"""Most answers of one call."""


@dataclass(frozen=True, slots=True)
class WrittenAnswer:
    """An answer and the model that wrote it.

    Attributes:
        text: the answer.
        model: name of the model.
        model_version: its version.
        total_ms: milliseconds from the request's arrival to the last token; NaN where not measured.
    """

    text: str
    model: str
    model_version: str
    total_ms: float = math.nan


class Generation(AsyncCalls):
    """Generates answers with the generator of a mesh; make and use it in one event loop."""

    async def answers(
        self,
        question: str,
        contexts: Sequence[Sequence[Passage]],
        *,
        model: str,
        augmentation: Augmentation | None = None,
        template: str | None = None,
        decoding: Decoding | None = None,
        turns: Sequence[tuple[str, str]] = (),
        contextual_question: str = "",
        timeout: float,
    ) -> list[WrittenAnswer | Failed]:
        """Return for each context its answer, or the reason for its absence.

        Where the generator takes fewer at once they are sent in several calls, one after the other.

        Args:
            question: the question.
            contexts: passages to answer from, at most 256 lists; an empty list means an answer from memory.
            model: its name.
            augmentation: how the model takes passages; None for the model's default.
            template: prompt by name, for contexts with passages; None for the model's default.
            decoding: how tokens are chosen; four beams without it.
            turns: earlier turns of the conversation, oldest first, at most 100: question and answer of each.
                A template must use them.
            contextual_question: the question with words of earlier turns, which a model without templates
                reads in its place.
            timeout: seconds all of it may take.

        Raises:
            MeshError: the call failed as a whole.
        """
        requests = [
            {
                "question": question,
                "model": model,
                "augmentation": augmentation if passages else "retrieval_free",
                "template": template if passages else None,
                "decoding": decoding,
                "passages": [passage_message(passage) for passage in passages],
                "turns": [{"question": asked, "answer": answer} for asked, answer in turns],
                "contextual_question": contextual_question,
            }
            for passages in contexts
        ]
        until = Deadline.after(timeout)

        async def answered(some: Sequence[Any]) -> Sequence[generator_pb2.GenerateBatchResult]:
            request = encode(generator_pb2.GenerateBatchRequest, {"requests": some})
            left = until.budget(margin_s=0.0)
            reply = await self._call("generator", self._generator.GenerateBatch, request, left)
            return reply.results

        results = [result for _, some in await in_pieces(requests, answered) for result in some]
        return [_outcome(place, result) for place, result in enumerate(results)]


def _outcome(place: int, result: generator_pb2.GenerateBatchResult) -> WrittenAnswer | Failed:
    if result.HasField("answer"):
        answer = result.answer
        taken = answer.cost.total_ms if answer.HasField("cost") else math.nan
        return WrittenAnswer(answer.text, answer.model, answer.model_version, taken)
    error = result.error
    return Failed((place,), error.code, error.reason, error.message, error.field)
