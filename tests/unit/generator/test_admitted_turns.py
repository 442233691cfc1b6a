"""What earlier turns count at the admission: once beside all passages, and nothing where no model reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from evenmesh.common.v1.common_pb2 import Passage
from evenmesh.generator.v1 import generator_service_pb2 as pb
from evenmesh.wire.errors import MeshError
from evenmesh_generator.engine import Generator
from evenmesh_generator.servicer import GeneratorServicer
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.compute.tenant_pool import TenantPool
from tests.unit.generator.test_engine import TEMPLATES, Scribe

CAPACITY = 1_000
"""Tokens, of four characters each."""


@pytest.fixture
def model() -> Scribe:
    return Scribe("m")


@pytest.fixture
def servicer(model: Scribe) -> Iterator[GeneratorServicer]:
    pool = TenantPool(1, "codec")
    servicer = GeneratorServicer(Admission(CAPACITY, "tokens"), pool)
    servicer.open(Generator([model], TEMPLATES))
    yield servicer
    pool.close()


async def _ask(servicer: GeneratorServicer, characters: int, **fields: Any) -> None:
    request = pb.GenerateRequest(
        question="q",
        passages=[Passage(id=str(at), text="x") for at in range(10)],
        turns=[pb.Turn(question="q", answer="x" * characters)],
        **fields,
        decoding=pb.Decoding(max_new_tokens=1),
    )
    async for _ in servicer.Generate(request, cast(Any, None)):
        pass


@pytest.mark.parametrize("template", ["", "rankrag-answer-conversation"])
async def test_turns_count_once_beside_all_passages(servicer: GeneratorServicer, template: str) -> None:
    await _ask(servicer, 3_900, template=template)
    with pytest.raises(MeshError, match="at most 1000 tokens fit"):
        await _ask(servicer, 4_100, template=template)


async def test_turns_count_with_each_passage_that_is_read_alone(servicer: GeneratorServicer) -> None:
    fused = {"augmentation": pb.AUGMENTATION_FUSION_IN_DECODER}
    await _ask(servicer, 350, **fused)
    with pytest.raises(MeshError, match="at most 1000 tokens fit"):
        await _ask(servicer, 450, **fused)


async def test_turns_that_are_not_read_count_nothing(servicer: GeneratorServicer, model: Scribe) -> None:
    model.runtime = "pointer"
    await _ask(servicer, 60_000)
