"""A Triton server that breaks in every way it can, under a generator that goes on.

Whatever breaks: requests end within their deadlines with errors that have names, the generator's health says
that it cannot answer, and both come back by themselves, without a restart of the generator.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import pytest_asyncio
from google.protobuf import text_format
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from evenmesh.common.v1 import common_pb2
from evenmesh.generator.v1 import generator_service_pb2 as pb
from evenmesh.generator.v1.generator_service_pb2_grpc import GeneratorServiceStub
from evenmesh.wire.channel import connect
from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import DeadlineExceeded, MeshError, Overloaded, Unavailable, from_rpc_error
from evenmesh_generator.__main__ import GeneratorService
from evenmesh_generator.backends.triton.model import TritonModel
from evenmesh_generator.domain import Passage, RelevanceRequest
from evenmesh_generator.ports import Cancellation
from evenmesh_generator.servicer import NAME
from evenmesh_generator.triton import environment
from evenmesh_generator.triton.models import language_model
from evenmesh_generator.triton.repository import read_config, write_model
from evenmesh_kit.rpc.server import MeshServer
from evenmesh_kit.telemetry.setup import Telemetry
from tests.support import tiny_models, triton_models
from tests.support.tiny_models import SENTENCES
from tests.support.triton_server import TritonServer, skip_where_impossible

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.faults, pytest.mark.timeout(900)]

PASSAGES = [common_pb2.Passage(id=str(at), title="t", text=text) for at, text in enumerate(SENTENCES[1:5])]
RECOVERY_S = 240.0
RELOADED_S = 90.0
AWAY_S = 60.0
TRIES = 3
REQUEST_S = 10.0
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A server of one tiny T5 that nobody but the generator looks after."""
    skip_where_impossible()
    folder = tiny_models.t5(tmp_path_factory.mktemp("t5"))
    settings = {"EVENMESH_TRITON_CHECK_S": "3600", "EVENMESH_TRITON_EXIT_TIMEOUT_S": "1"}
    with TritonServer(tmp_path_factory.mktemp("server"), {"t5": folder}, settings=settings) as server:
        yield server


@pytest.fixture(autouse=True)
def _running(request: pytest.FixtureRequest) -> None:
    """Start the server again if the test before left it dead.

    Triton (nvidia-pytriton 0.7.0) sometimes ends with signal 11 in its Python backend while it unloads a
    version that another one replaced; whoever runs it starts it again.
    """
    if "server" in request.fixturenames:
        server: TritonServer = request.getfixturevalue("server")
        if not server.running:
            server.start()


@dataclass
class Front:
    """The generator's service, over a real connection."""

    stub: Any
    health: Any

    async def status(self) -> int:
        """What its health says."""
        reply = await self.health.Check(health_pb2.HealthCheckRequest(service=NAME), timeout=30)
        return int(reply.status)

    async def becomes(self, status: int, within_s: float) -> None:
        """Waits until its health says so."""
        async with asyncio.timeout(within_s):
            while await self.status() != status:
                await asyncio.sleep(0.05)

    async def answer(self, **fields: Any) -> pb.Answer:
        """One answer."""
        request = pb.GenerateRequest(question=SENTENCES[0], passages=PASSAGES, **fields)
        parts = [part async for part in self.stub.Generate(request, timeout=REQUEST_S)]
        return parts[-1].answer

    async def error(self, **fields: Any) -> MeshError:
        """Why there is no answer; in time, and with nothing of the inside."""
        deadline = Deadline.after(REQUEST_S)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.answer(**fields)
        assert deadline.remaining() > -5
        error = from_rpc_error(caught.value)
        assert "Traceback" not in error.message
        assert error.code is grpc.StatusCode.DEADLINE_EXCEEDED or rpc_status.from_call(caught.value)
        return error

    async def answers_again(self, within_s: float) -> pb.Answer:
        """The first answer there is."""
        async with asyncio.timeout(within_s):
            while True:
                try:
                    return await self.answer()
                except grpc.aio.AioRpcError as error:
                    if error.code() not in _AWAY:
                        raise
                    await asyncio.sleep(0.1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(server: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Front]:
    """One generator for all faults: it is never restarted."""
    settings = triton_models.settings(
        server.target, ["t5"], home=tmp_path_factory.mktemp("generator"), triton_probe_s=5.0
    )
    async with MeshServer(
        "generator", settings, GeneratorService(settings), telemetry=Telemetry.disabled()
    ) as mesh_server:
        channel = connect(mesh_server.address, service=NAME)
        yield Front(GeneratorServiceStub(channel), health_pb2_grpc.HealthStub(channel))
        await channel.close()


@asynccontextmanager
async def _under_way(front: Front, count: int = 3) -> AsyncIterator[list[asyncio.Task[MeshError]]]:
    """Long answers that have begun; they come to the errors they end with."""

    async def write(begun: asyncio.Event, seed: int) -> MeshError:
        decoding = pb.Decoding(max_new_tokens=4000, temperature=5, seed=seed)
        request = pb.GenerateRequest(question=SENTENCES[0], passages=PASSAGES, decoding=decoding)
        try:
            async for _ in front.stub.Generate(request, timeout=RECOVERY_S):
                begun.set()
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error)
        raise AssertionError("the answer ended by itself")

    events = [asyncio.Event() for _ in range(count)]
    tasks = [asyncio.create_task(write(event, seed)) for seed, event in enumerate(events)]
    for event in events:
        await event.wait()
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()


async def _errors(tasks: list[asyncio.Task[MeshError]]) -> set[str]:
    async with asyncio.timeout(AWAY_S):
        return {(await task).reason for task in tasks}


async def test_a_full_queue_is_refused_with_a_delay(server: TritonServer) -> None:
    """The queue of what judges holds two requests, and its process is stopped.

    First, before a generator looks after the server: it would load the model anew at a time of its own.
    """
    path = server.repository / "t5.score_relevance" / "config.pbtxt"
    config = read_config(path)
    config.max_batch_size = 1
    config.dynamic_batching.default_queue_policy.max_queue_size = 2
    path.write_text(text_format.MessageToString(config))
    admin = InferenceServerClient(server.target)
    await admin.load_model("t5.score_relevance", client_timeout=RECOVERY_S)
    await admin.close()
    async with triton_models.opened(server.target, "t5", triton_probe_interval_s=600) as (model,):
        passages = tuple(Passage(str(at), "t", text) for at, text in enumerate(SENTENCES * 2))
        request = RelevanceRequest(SENTENCES[0], passages)
        await model.score_relevance(
            RelevanceRequest(SENTENCES[0], passages[:1]), Cancellation(Deadline.after(60))
        )
        process = psutil.Process(await _only_stub(server, "t5.score_relevance"))
        process.suspend()
        try:
            with pytest.raises(Overloaded) as caught:
                await model.score_relevance(request, Cancellation(Deadline.after(60)))
            assert caught.value.retry_after_s
            assert model.in_flight == 0
        finally:
            process.kill()  # one that was stopped and goes on can make the server abort
        assert len(await _judged_again(model, RelevanceRequest(SENTENCES[0], passages[:2]))) == 2


async def test_the_models_process_is_killed(front: Front, server: TritonServer) -> None:
    before = await front.answer()
    async with _under_way(front) as tasks:
        os.kill(await _only_stub(server, "t5"), signal.SIGKILL)
        await front.becomes(NOT_SERVING, AWAY_S)
        assert await _errors(tasks) == {"TRITON_UNAVAILABLE"}
    after = await _answers_again(front, server)
    assert (after.text, after.model_version) == (before.text, before.model_version)


async def _answers_again(front: Front, server: TritonServer) -> pb.Answer:
    """The first answer there is, from a server started anew where it does not load the model anew."""
    with suppress(TimeoutError):
        return await front.answers_again(RELOADED_S)
    await _start_anew(server)
    return await front.answers_again(RECOVERY_S)


async def _start_anew(server: TritonServer) -> None:
    """Do what the server's own watch does, which this server has not.

    Triton waits for ever for a process that was killed or stopped while it held their common memory. It may
    have ended, too.
    """
    _kill(server)
    await asyncio.to_thread(server.restart)


def _kill(server: TritonServer) -> None:
    """Kills ``tritonserver``, if it runs."""
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(server.pid).children():
            child.kill()


async def test_the_server_is_killed(front: Front, server: TritonServer) -> None:
    async with _under_way(front) as tasks:
        os.kill(server.server_pid, signal.SIGKILL)
        assert await _errors(tasks) == {"TRITON_UNAVAILABLE"}
    await front.becomes(NOT_SERVING, AWAY_S)
    error = await front.error()
    assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "TRITON_UNAVAILABLE")
    assert error.message == "the Triton server cannot be reached"
    assert error.retry_after_s
    await asyncio.to_thread(server.restart)
    await front.becomes(SERVING, RECOVERY_S)
    assert (await front.answer()).engine == "triton"


async def test_the_server_is_stopped_and_goes_on(front: Front, server: TritonServer) -> None:
    process = psutil.Process(server.server_pid)
    process.suspend()
    try:
        error = await front.error()
        assert error.reason in ("TRITON_UNAVAILABLE", "DEADLINE_EXCEEDED")
        await front.becomes(NOT_SERVING, AWAY_S)
        error = await front.error()
        assert (error.reason, error.message) == ("TRITON_UNAVAILABLE", "the Triton server does not answer")
    finally:
        process.resume()
    await front.becomes(SERVING, RECOVERY_S)
    assert (await front.answer()).engine == "triton"


async def test_the_models_process_is_stopped(front: Front, server: TritonServer) -> None:
    """Triton takes it for dead, and so does the generator, which has the model loaded into a new one."""
    process = psutil.Process(await _only_stub(server, "t5"))
    process.suspend()
    try:
        error = await front.error()
        assert error.reason in ("TRITON_UNAVAILABLE", "DEADLINE_EXCEEDED")
        assert (await _answers_again(front, server)).engine == "triton"
    finally:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    assert (await _answers_again(front, server)).engine == "triton"


async def test_versions_are_replaced_and_broken_ones_do_no_harm(
    front: Front, server: TritonServer, tmp_path: Path
) -> None:
    before = await front.answer()
    admin = InferenceServerClient(server.target)
    packages = environment.prepare().packages

    def write(version: int, folder: Path) -> None:
        model = language_model("t5", folder, packages=packages, device="cpu", dtype="float32", threads="1")
        model = type(model)(model.name, model.template, model.parameters, version)
        write_model(model, server.repository)

    broken = tiny_models.t5(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"nothing of the kind")
    write(2, broken)
    with pytest.raises(InferenceServerException):
        await admin.load_model("t5", client_timeout=RECOVERY_S)
    assert (await front.answer()).model_version == before.model_version
    assert await front.status() == SERVING

    other = tiny_models.bart(tmp_path / "other")
    write(3, other)
    await admin.load_model("t5", client_timeout=RECOVERY_S)
    after = await front.answer()
    assert after.model_version != before.model_version
    async with asyncio.timeout(AWAY_S):
        while (listed := await _listed(front)).version != after.model_version:
            await asyncio.sleep(0.05)
    assert listed.architecture == "BartForConditionalGeneration"
    await admin.close()


async def test_a_broken_version_keeps_a_dead_model_away_until_it_is_mended(
    front: Front, server: TritonServer, tmp_path: Path
) -> None:
    model = tiny_models.t5(tmp_path / "t5")
    weights = model / "model.safetensors"
    whole = weights.read_bytes()
    packages = environment.prepare().packages
    served = language_model("t5", model, packages=packages, device="cpu", dtype="float32", threads="1")
    write_model(type(served)(served.name, served.template, served.parameters, 4), server.repository)
    for _ in range(TRIES):
        weights.write_bytes(b"nothing of the kind")
        os.kill(await _only_stub(server, "t5"), signal.SIGKILL)
        await front.becomes(NOT_SERVING, AWAY_S)
        if await _cannot_be_loaded(front):
            break
        weights.write_bytes(whole)
        await _start_anew(server)
        await front.becomes(SERVING, RECOVERY_S)
    else:
        pytest.fail(f"Triton hung {TRIES} times")
    weights.write_bytes(whole)
    await front.becomes(SERVING, RECOVERY_S)
    assert (await front.answer()).engine == "triton"


async def _cannot_be_loaded(front: Front) -> bool:
    """Whether the generator says so, and not that Triton hangs."""
    with suppress(TimeoutError):
        async with asyncio.timeout(RELOADED_S):
            while True:
                error = await front.error()
                assert error.reason == "TRITON_UNAVAILABLE"
                if error.message == "t5 cannot be loaded at the Triton server; its log says why":
                    return True
                await asyncio.sleep(0.2)
    return False


async def _listed(front: Front) -> Any:
    (model,) = (await front.stub.ListModels(pb.ListModelsRequest(), timeout=REQUEST_S)).models
    return model


async def _only_stub(server: TritonServer, model: str) -> int:
    """The model's process, once the one it had before it was loaded anew is gone."""
    async with asyncio.timeout(AWAY_S):
        while True:
            try:
                return server.stub_pid(model)
            except ValueError:
                await asyncio.sleep(0.1)


async def _judged_again(model: TritonModel, request: RelevanceRequest) -> list[float]:
    async with asyncio.timeout(RECOVERY_S):
        while True:
            try:
                return await model.score_relevance(request, Cancellation(Deadline.after(REQUEST_S)))
            except (Overloaded, Unavailable, DeadlineExceeded):
                await asyncio.sleep(0.1)
