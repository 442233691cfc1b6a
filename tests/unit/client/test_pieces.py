"""Large batches go in as few calls as the service takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh.addresses import Addresses
from evenmesh.generation import Generation
from evenmesh.generator.v1 import generator_service_pb2 as pb
from evenmesh.types.passage import Passage
from evenmesh.wire.errors import MeshError
from evenmesh.wire.pieces import in_pieces


def _too_large(reason: str = "REQUEST_TOO_LARGE") -> MeshError:
    return MeshError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason, "too much")


class Service:
    """Takes calls of at most ``most`` together, in units that the items say."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken: list[list[int]] = []
        self.refused = 0

    async def call(self, items: Sequence[int]) -> int:
        if sum(items) > self.most:
            self.refused += 1
            raise _too_large()
        self.taken.append(list(items))
        return sum(items)


@given(st.lists(st.integers(0, 10), max_size=40), st.integers(10, 100))
async def test_every_item_is_sent_once_and_in_order(items: list[int], most: int) -> None:
    service = Service(most)
    done = await in_pieces(items, service.call)
    assert [one for piece, _ in done for one in piece] == items
    assert [sum(piece) for piece, _ in done] == [reply for _, reply in done]
    assert [list(piece) for piece, _ in done] == service.taken
    assert service.refused <= 6  # halves of 40 items: 20, 10, 5, 3, 2, 1


async def test_an_item_that_alone_is_too_large_fails() -> None:
    with pytest.raises(MeshError, match="too much"):
        await in_pieces([1, 20, 1], Service(10).call)


async def test_other_refusals_are_not_repeated() -> None:
    calls = 0

    async def busy(items: Sequence[int]) -> None:
        nonlocal calls
        calls += 1
        raise _too_large("OVERLOADED")

    with pytest.raises(MeshError):
        await in_pieces([1, 2], busy)
    assert calls == 1


async def test_answers_to_many_contexts_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    async def batch(
        self: object, service: str, method: object, request: pb.GenerateBatchRequest, timeout: float
    ) -> Any:
        sizes.append(len(request.requests))
        if len(request.requests) > 100:
            raise _too_large()
        results = [
            pb.GenerateBatchResult(answer=pb.Answer(text=one.passages[0].id)) for one in request.requests
        ]
        return pb.GenerateBatchResponse(results=results)

    monkeypatch.setattr(Generation, "_call", batch)
    async with Generation(Addresses("127.0.0.1:1")) as generation:
        contexts = [[Passage(f"p{at}", "text")] for at in range(256)]
        answers = await generation.answers("q", contexts, model="m", timeout=30)
    assert [getattr(one, "text", None) for one in answers] == [f"p{at}" for at in range(256)]
    assert sizes == [256, 128, 64, 64, 64, 64]
