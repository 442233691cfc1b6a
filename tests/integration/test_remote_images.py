"""Services as the images with models on servers have them: PyTorch, transformers, OpenVINO and weights are not there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from evenmesh.common.v1.common_pb2 import Passage
from evenmesh.reranker.v1 import reranker_service_pb2 as reranker_pb2
from evenmesh.reranker.v1 import reranker_service_pb2_grpc as reranker_grpc
from tests.integration.test_remote_models import embed, score
from tests.locks import extras_of
from tests.support import model_server, scripted_openai
from tests.support.images import IMAGES, call, command, hidden_from, running
from tests.support.scripted_http import serving

MISSING = {
    *(
        "torch",
        "transformers",
        "sentence_transformers",
        "tokenizers",
        "safetensors",
        "openvino",
        "ctranslate2",
    ),
    *("huggingface_hub", "evenmesh_models"),
}


def _asked(name: str, folder: Path, environment: dict[str, str], ask: Any) -> Any:
    """What a service answers that runs with what its image has and nothing else."""
    image = IMAGES[name]
    extras = extras_of(image, "remote")
    assert set(hidden_from(image, extras)) >= MISSING
    given = {f"EVENMESH_{name.upper()}_{key}": value for key, value in environment.items()}
    with running(image, command(image, extras), folder, settings=given) as address:
        return ask(address)


async def test_a_generator_answers_by_an_openai_compatible_server(tmp_path: Path) -> None:
    async with serving(scripted_openai.made_up()) as server:
        environment = {
            "ENGINE": "openai",
            "REMOTE_URLS": server.url,
            "MODELS": "made-up",
            "REMOTE_PROXIES": "false",
        }
        said = await asyncio.to_thread(
            _asked, "generator", tmp_path, environment, lambda address: call("generator", address)
        )
    assert said


async def test_a_retriever_encodes_on_a_server(tmp_path: Path) -> None:
    async with serving(model_server.tei(embed=embed)) as server:
        environment = {
            "ENCODER": "remote",
            "REMOTE_SERVER": "tei",
            "REMOTE_URLS": server.url,
            "REMOTE_PROXIES": "false",
        }
        found = await asyncio.to_thread(
            _asked, "retriever", tmp_path, environment, lambda address: call("retriever", address)
        )
        assert found == ["a", "b"]
        assert "/v1/embed" in [request.path for request in server.requests]


async def test_a_reranker_scores_on_a_server(tmp_path: Path) -> None:
    def ask(address: str) -> list[int]:
        passages = [Passage(id="a", text="a red lamp"), Passage(id="b", text="brake pads squeal")]
        request = reranker_pb2.RerankRequest(query="brake pads", passages=passages)
        with grpc.insecure_channel(address) as channel:
            reply = reranker_grpc.RerankerServiceStub(channel).Rerank(request, timeout=60)
        assert reply.reranker == "remote"
        return list(reply.order)

    async with serving(model_server.tei(score=score)) as server:
        environment = {
            "CROSS_ENCODER": "",
            "DEFAULT_RERANKER": "remote",
            "REMOTE_SERVER": "tei",
            "REMOTE_URLS": server.url,
            "REMOTE_PROXIES": "false",
        }
        assert await asyncio.to_thread(_asked, "reranker", tmp_path, environment, ask) == [1, 0]


@pytest.mark.parametrize("name", ["generator", "retriever", "reranker"])
def test_what_is_hidden_is_what_another_image_has(name: str) -> None:
    image = IMAGES[name]
    there = MISSING - {"openvino"} - ({"ctranslate2"} if name != "generator" else set())
    assert not there & set(hidden_from(image, image.extras))
