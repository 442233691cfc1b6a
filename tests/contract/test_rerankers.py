"""What every reranker must do, however it scores."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from evenmesh_generator.__main__ import GeneratorService
from evenmesh_generator.settings import GeneratorSettings, ModelSource
from evenmesh_kit.compute import converting, cpu_engine
from evenmesh_kit.compute.conversions import Conversions
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.remote.client import RemoteClient
from evenmesh_kit.remote.options import RemoteOptions, speaks_grpc
from evenmesh_kit.remote.tei_grpc import TeiGrpcClient
from evenmesh_kit.rpc.server import MeshServer
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_reranker.backends.compiled_encoder import CompiledLoader
from evenmesh_reranker.backends.cross_encoder import CrossEncoderReranker
from evenmesh_reranker.backends.rankrag import RankRag
from evenmesh_reranker.backends.remote import RemoteReranker
from evenmesh_reranker.backends.rerank_api import RerankServer
from evenmesh_reranker.backends.unranked import Unranked
from evenmesh_reranker.domain import Agent, Passage, Scores
from evenmesh_reranker.ports import Reranker
from tests.support import (
    infinity_server,
    model_server,
    scripted_http,
    tei_grpc_server,
    tiny_encoders,
    tiny_models,
)
from tests.support.tiny_encoders import OneForAll
from tests.support.tiny_models import SENTENCES

QUERY = SENTENCES[0]
PASSAGES = [Passage(str(at), f"Title {at}", text) for at, text in enumerate(SENTENCES)]
MODELS: dict[str, Callable[[Path], Path] | None] = {
    "cross-encoder": tiny_models.cross_encoder,
    "cross-encoder in OpenVINO": tiny_models.cross_encoder,
    "rankrag": tiny_models.t5,
    "remote": tiny_models.cross_encoder,
    "remote over gRPC": tiny_models.cross_encoder,
    "remote by infinity": tiny_models.cross_encoder,
    "none": None,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make(tmp_path_factory.mktemp(name)) for name, make in MODELS.items() if make is not None}


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Conversions:
    """Conversions of those models, beside their folders: what is in a model's folder is part of it."""
    return Conversions(tmp_path_factory.mktemp("openvino"))


@pytest.fixture(scope="module")
def infinity(
    folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[infinity_server.InfinityServer]:
    """A real server of another project."""
    folder = tmp_path_factory.mktemp("infinity")
    model = shutil.copytree(folders["remote by infinity"], folder / "model")
    config = model / "tokenizer_config.json"
    # Its transformers is older, and has this class under its older name.
    older = json.loads(config.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    config.write_text(json.dumps(older))
    with infinity_server.serving(model, "tiny", folder / "log") as server:
        yield server


@pytest.fixture(params=MODELS)
async def reranker(
    request: pytest.FixtureRequest,
    folders: dict[str, Path],
    converted: Conversions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Reranker]:
    async with AsyncExitStack() as stack:
        if request.param == "none":
            yield Unranked()
        elif request.param == "cross-encoder":
            pool = ComputePool(2, "test")
            stack.callback(pool.close)
            model = tiny_encoders.encoder(folders["cross-encoder"], version="v1")
            cross_encoder = CrossEncoderReranker(
                OneForAll(model), pool=pool, batch_size=16, batch_tokens=4096, max_delay_s=0.002
            )
            stack.push_async_callback(cross_encoder.close)
            yield cross_encoder
        elif request.param == "cross-encoder in OpenVINO":
            if cpu_engine.installed_version() is None:
                pytest.skip("openvino is not installed")
            pool = ComputePool(3, "test")
            stack.callback(pool.close)
            monkeypatch.setattr(converting, "convert", tiny_encoders.convert_here)
            loader = CompiledLoader("auto", parallel=2, conversions=converted, required=True, threads=1)
            compiled = loader.full(
                folders["cross-encoder in OpenVINO"],
                "v1",
                provenance="by hand",
                created_at=datetime(2026, 1, 1, tzinfo=UTC),
            )
            cross_encoder = CrossEncoderReranker(
                OneForAll(compiled), pool=pool, batch_size=16, batch_tokens=4096, max_delay_s=0.002
            )
            stack.push_async_callback(cross_encoder.close)
            yield cross_encoder
        elif request.param in ("remote", "remote over gRPC"):
            scoring = tiny_encoders.encoder(folders[request.param], version="v1")

            def score(query: str, texts: Sequence[str]) -> list[float]:
                return scoring.scores(query, [Passage("", "", text) for text in texts], Agent())

            if request.param == "remote over gRPC":
                grpc_served = await stack.enter_async_context(tei_grpc_server.serving(score=score))
                yield await opened(stack, grpc_served.url, "tei")
                return
            served = await stack.enter_async_context(scripted_http.serving(model_server.tei(score=score)))
            yield await opened(stack, served.url, "tei")
        elif request.param == "remote by infinity":
            infinity = request.getfixturevalue("infinity")
            yield await opened(stack, infinity.url, "infinity")
        else:
            generator_settings = GeneratorSettings(
                port=0,
                home=tmp_path,
                bundled=False,
                dtype="float32",
                device="cpu",
                models=(ModelSource(name="t5", path=str(folders["rankrag"])),),
            )
            service = GeneratorService(generator_settings)
            server = await stack.enter_async_context(
                MeshServer("generator", generator_settings, service, telemetry=Telemetry.disabled())
            )
            rankrag = RankRag(server.address, model="", model_setting="X", max_message_bytes=2**22)
            stack.push_async_callback(rankrag.close)
            yield rankrag


async def opened(stack: AsyncExitStack, url: str, server: RerankServer) -> RemoteReranker:
    """A reranker on a server, in batches that a request of eight passages does not fit."""
    client = TeiGrpcClient if speaks_grpc(url) else RemoteClient
    remote = RemoteReranker(client(RemoteOptions(urls=(url,))), server=server, batch_size=3)
    stack.push_async_callback(remote.close)
    await remote.start()
    return remote


def same(one: Scores, other: Scores, reranker: Reranker) -> bool:
    """Whether two replies are equal; those of servers, which form batches by chance, but for rounding."""
    if not isinstance(reranker, RemoteReranker):
        return one == other
    rounded = replace(one, values=()) == replace(other, values=())
    return rounded and one.values == pytest.approx(other.values, rel=1e-4)


async def test_one_probability_per_passage(reranker: Reranker) -> None:
    for count in (1, 3, 8):
        scores = await reranker.score(QUERY, PASSAGES[:count], Agent())
        assert len(scores.values) == count
        assert all(0.0 <= value <= 1.0 for value in scores.values)


async def test_the_same_request_has_the_same_scores(reranker: Reranker) -> None:
    first = await reranker.score(QUERY, PASSAGES, Agent())
    assert same(await reranker.score(QUERY, PASSAGES, Agent()), first, reranker)


async def test_a_score_is_that_of_its_passage(reranker: Reranker) -> None:
    """Permuted passages have permuted scores; only `none` scores by place."""
    forwards = (await reranker.score(QUERY, PASSAGES, Agent())).values
    backwards = (await reranker.score(QUERY, PASSAGES[::-1], Agent())).values
    if isinstance(reranker, Unranked):
        assert backwards == forwards
    else:
        assert backwards[::-1] == pytest.approx(forwards, rel=1e-3, abs=1e-9)
        assert len(set(forwards)) > 1


async def test_requests_at_the_same_time_score_as_alone(reranker: Reranker) -> None:
    alone = [(await reranker.score(query, PASSAGES[:5], Agent())).values for query in SENTENCES[:4]]
    together = await asyncio.gather(
        *(reranker.score(query, PASSAGES[:5], Agent()) for query in SENTENCES[:4])
    )
    for one, other in zip(together, alone, strict=True):
        assert one.values == pytest.approx(other, rel=1e-3, abs=1e-9)


async def test_an_agent_it_was_not_trained_for_is_an_unknown_one(reranker: Reranker) -> None:
    known = await reranker.score(QUERY, PASSAGES, Agent("qa-open", "t5-small-fid"))
    assert same(known, await reranker.score(QUERY, PASSAGES, Agent()), reranker)


async def test_it_names_the_version_that_scored(reranker: Reranker) -> None:
    version = (await reranker.score(QUERY, PASSAGES, Agent())).model_version
    assert bool(version) is not isinstance(reranker, Unranked)
