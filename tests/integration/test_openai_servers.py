"""The generator before OpenAI-compatible servers, as a process: without torch, over gRPC, and as servers come and go."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evenmesh.common.v1 import common_pb2
from evenmesh.generator.v1 import generator_service_pb2 as pb
from evenmesh.generator.v1.generator_service_pb2_grpc import GeneratorServiceStub
from evenmesh.wire.channel import connect
from evenmesh_generator.servicer import NAME
from tests.support import scripted_openai
from tests.support.killable import Killable
from tests.support.scripted_http import serving
from tests.support.tiny_models import SENTENCES
from tests.support.transformers_server import TransformersServer
from tests.support.waiting import until

pytestmark = pytest.mark.xdist_group("triton")  # as the other tests that ask the session's server

TIMEOUT = 60
PASSAGES = [common_pb2.Passage(id=str(at), title="t", text=text) for at, text in enumerate(SENTENCES[1:5])]
WITHOUT_TORCH = """
import asyncio, sys
from evenmesh_generator.__main__ import GeneratorService
from evenmesh_generator.settings import GeneratorSettings
from evenmesh_kit.settings import load

async def main():
    service = GeneratorService(load(GeneratorSettings))
    await service.start()
    assert service.readiness.ready
    await service.stop()
    found = sorted({"torch", "transformers", "tokenizers", "tritonclient"} & sys.modules.keys())
    assert not found, found

asyncio.run(main())
"""


def _variables(url: str, **variables: str) -> dict[str, str]:
    return {
        "EVENMESH_GENERATOR_ENGINE": "openai",
        "EVENMESH_GENERATOR_REMOTE_URLS": url,
        "EVENMESH_GENERATOR_REMOTE_PROXIES": "false",
        **{f"EVENMESH_GENERATOR_{name}": value for name, value in variables.items()},
    }


async def test_a_generator_before_servers_starts_without_torch() -> None:
    async with serving(scripted_openai.made_up()) as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", WITHOUT_TORCH),
            env=os.environ | _variables(server.url, MODELS="made-up"),
            stderr=subprocess.PIPE,
        )
        _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()


@asynccontextmanager
async def _generator(folder: Path, url: str, **variables: str) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a generator that runs as a process of its own."""
    process = Killable("evenmesh_generator", "generator", folder).also(**_variables(url, **variables))
    try:
        await process.start()
        async with connect(process.address, service=NAME) as channel:
            yield channel
    finally:
        process.kill()


def _request(**fields: Any) -> pb.GenerateRequest:
    decoding = pb.Decoding(max_new_tokens=12)
    return pb.GenerateRequest(
        **{"question": SENTENCES[0], "passages": PASSAGES, "decoding": decoding, **fields}
    )


async def _has(channel: grpc.aio.Channel, status: int) -> bool:
    request = health_pb2.HealthCheckRequest(service=NAME)
    return (await health_pb2_grpc.HealthStub(channel).Check(request, timeout=TIMEOUT)).status == status


async def test_answers_name_engine_and_version_and_readiness_follows_the_server(
    transformers_server: TransformersServer, tmp_path: Path
) -> None:
    """The session's server is killed, and runs again at the end."""
    server = transformers_server
    (tmp_path / "generator").mkdir()
    serving_status = health_pb2.HealthCheckResponse.SERVING
    async with _generator(
        tmp_path / "generator",
        server.url,
        MODELS='[{"name": "chat", "path": "tests/llama-chat", "context_tokens": 1024}]',
        REMOTE_PROBE_INTERVAL_S="0.1",
        HOME=str(tmp_path),
    ) as channel:
        stub = GeneratorServiceStub(channel)
        await until(lambda: _has(channel, serving_status))
        parts = [part async for part in stub.Generate(_request(), timeout=TIMEOUT)]
        answer = parts[-1].answer
        assert answer.text == "".join(part.delta for part in parts[:-1])
        assert (answer.engine, answer.model, answer.model_version) == (
            "openai",
            "chat",
            "tests/llama-chat@main",
        )
        assert 1 <= answer.completion_tokens <= 12
        assert answer.prompt_tokens > 20

        (model,) = (await stub.ListModels(pb.ListModelsRequest(), timeout=TIMEOUT)).models
        assert (model.engine, model.runtime, model.device) == ("openai", "tests", server.url[7:-3])
        assert (model.max_input_tokens, model.scores_relevance) == (1024, False)

        batch = pb.GenerateBatchRequest(requests=[_request(decoding=pb.Decoding(max_new_tokens=3))])
        (result,) = (await stub.GenerateBatch(batch, timeout=TIMEOUT)).results
        assert result.answer.text, "the default of four beams is not the caller's wish"
        batch.requests[0].decoding.num_beams = 4
        (result,) = (await stub.GenerateBatch(batch, timeout=TIMEOUT)).results
        assert (result.error.code, result.error.field) == ("INVALID_ARGUMENT", "decoding.num_beams")
        fused = _request(augmentation=pb.AUGMENTATION_FUSION_IN_DECODER)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(stub.Generate(fused, timeout=TIMEOUT)))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

        server.kill()
        try:
            await until(lambda: _has(channel, health_pb2.HealthCheckResponse.NOT_SERVING))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await anext(aiter(stub.Generate(_request(), timeout=TIMEOUT)))
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        finally:
            server.start()
        await until(lambda: _has(channel, serving_status))
        again = [part async for part in stub.Generate(_request(), timeout=TIMEOUT)][-1].answer
        assert again.text == answer.text
