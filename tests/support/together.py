"""Requests that a language model has at the same time."""

import asyncio
from collections.abc import Sequence

from evenmesh.wire.errors import MeshError
from evenmesh_generator.domain import Answer, GenerationRequest
from evenmesh_generator.ports import Cancellation, LanguageModel


async def outcomes(
    model: LanguageModel, requests: Sequence[GenerationRequest], cancel: Cancellation
) -> list[Answer | MeshError]:
    """The answer or the error of each request, in order."""

    async def outcome(request: GenerationRequest) -> Answer | MeshError:
        try:
            return await model.generate(request, cancel)
        except MeshError as error:
            return error

    return await asyncio.gather(*map(outcome, requests))
