"""The reranker alone, as programs call it."""

import math

import pytest

from evenmesh import AsyncClient, Client, FirstStage
from evenmesh.wire.errors import InvalidField
from tests.integration.conftest import DEMO, RunningMesh

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(600)]

QUERY = "How often should I oil my bike chain?"


async def test_both_clients_rerank(mesh: RunningMesh) -> None:
    with Client(mesh.addresses) as client:
        retrieved = client.retrieve(QUERY, collection=DEMO, retriever="bm25", k=4)
        stage = FirstStage(retrieved.scores, mean=0.0, deviation=2.0)
        found = client.rerank(
            QUERY, retrieved.passages, reranker="cross-encoder", top_k=3, first_stage=stage, fusion=1.0
        )
        alone = client.rerank(QUERY, retrieved.passages, reranker="cross-encoder")
        with pytest.raises(InvalidField) as wrong:
            client.rerank(QUERY, retrieved.passages, top_k=5)
        with pytest.raises(InvalidField):
            client.rerank(QUERY, [])
    async with AsyncClient(mesh.addresses) as other:
        again = await other.rerank(
            QUERY, retrieved.passages, reranker="cross-encoder", top_k=3, first_stage=stage, fusion=1.0
        )

    assert again.order == found.order
    assert again.scores == pytest.approx(found.scores)
    assert (len(found.scores), len(found.order), found.fusion, found.unscored) == (4, 3, 1.0, ())
    assert [found.scores[place] for place in found.order] == sorted(found.scores, reverse=True)[:3]
    assert (alone.reranker, alone.fusion, alone.unscored_at_most) == ("cross-encoder", 0.0, None)
    odds = [math.log(one / (1 - one)) for one in alone.scores]
    fused = [math.log(one / (1 - one)) for one in found.scores]
    assert fused != pytest.approx(odds)
    assert wrong.value.field == "top_k"
