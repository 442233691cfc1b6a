"""The generator in front of a real Triton server: over the wire, as a process, and when callers leave."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from evenmesh.common.v1 import common_pb2
from evenmesh.generator.v1 import generator_service_pb2 as pb
from evenmesh.generator.v1.generator_service_pb2_grpc import GeneratorServiceStub
from evenmesh.wire.channel import connect
from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import DeadlineExceeded
from evenmesh_generator.__main__ import GeneratorService
from evenmesh_generator.backends.in_process import InProcessModel
from evenmesh_generator.backends.tasks import ended
from evenmesh_generator.backends.triton.model import TritonModel
from evenmesh_generator.domain import Answer, Decoding, GenerationRequest, Passage
from evenmesh_generator.ports import Cancellation, Cancelled
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.runtime.assembly import assemble
from evenmesh_generator.runtime.options import EngineOptions
from evenmesh_generator.servicer import NAME
from evenmesh_generator.settings import ModelSource
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.rpc.server import MeshServer
from evenmesh_kit.security import caller as callers
from evenmesh_kit.settings import SettingsError
from evenmesh_kit.telemetry.setup import Telemetry
from tests.support import tiny_models, triton_models
from tests.support.started import Start, serving, starting
from tests.support.tiny_models import SENTENCES
from tests.support.together import outcomes
from tests.support.triton_server import TritonServer, skip_where_impossible
from tests.support.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

MODELS = ("evenmesh-pointer", "t5", "bart", "llama", "llama-chat")
FOLDERS: dict[str, Callable[[Path], Path]] = {
    "t5": tiny_models.t5,
    "bart": tiny_models.bart,
    "llama": tiny_models.llama,
    "llama-chat": lambda folder: tiny_models.llama(folder, chat=True),
}
PASSAGES = tuple(Passage(str(at), f"Title {at}", text) for at, text in enumerate(SENTENCES[1:5]))
ON_WIRE = [common_pb2.Passage(id=one.id, title=one.title, text=one.text) for one in PASSAGES]
ENDLESS = GenerationRequest(triton_models.ENDLESS_QUESTION, PASSAGES, decoding=Decoding(max_new_tokens=4000))
TIMEOUT = 120


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def models(triton: TritonServer) -> AsyncIterator[dict[str, TritonModel]]:
    """The models of the server by name."""
    async with triton_models.opened(triton.target, *MODELS) as opened:
        yield {one.describe().name: one for one in opened}


@pytest.fixture(scope="module")
def endless_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A server of ``endless``, whose counts only the tests of a worker change, one after the other."""
    skip_where_impossible()
    folder = triton_models.endless(tmp_path_factory.mktemp("endless"))
    with TritonServer(tmp_path_factory.mktemp("server"), {"endless": folder}) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def endless(endless_server: TritonServer) -> AsyncIterator[TritonModel]:
    """The model that writes until it is stopped."""
    async with triton_models.opened(endless_server.target, "endless") as (model,):
        yield model


@asynccontextmanager
async def _served(target: str, names: Sequence[str], home: Path) -> AsyncIterator[Any]:
    """The generator's service in front of a server, over a real connection."""
    settings = triton_models.settings(target, names, home=home)
    async with MeshServer(
        "generator", settings, GeneratorService(settings), telemetry=Telemetry.disabled()
    ) as server:
        channel = connect(server.address, service=NAME)
        yield GeneratorServiceStub(channel)
        await channel.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stub(triton: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    """The service with all models."""
    async with _served(triton.target, MODELS, tmp_path_factory.mktemp("generator")) as stub:
        yield stub


def _request(question: str = SENTENCES[0], **fields: Any) -> GenerationRequest:
    return replace(GenerationRequest(question, PASSAGES, decoding=Decoding(max_new_tokens=16)), **fields)


async def _idle(model: TritonModel) -> bool:
    """Whether nothing is under way, here and in the model's own process."""
    await model.check()
    statistics = model.statistics()
    return not (model.in_flight or statistics.waiting or statistics.active_requests or statistics.active_rows)


async def _at_most(tasks: int) -> bool:
    """Whether there are no more tasks."""
    return len(asyncio.all_tasks()) <= tasks


async def _stepped(model: TritonModel, steps: int) -> bool:
    """Whether the model's process has computed so many steps."""
    await model.check()
    return model.statistics().steps >= steps


async def test_an_answer_is_streamed_through_the_service(stub: Any) -> None:
    request = pb.GenerateRequest(
        question=SENTENCES[0], passages=ON_WIRE, model="llama", decoding=pb.Decoding(max_new_tokens=40)
    )
    parts = [part async for part in stub.Generate(request, timeout=TIMEOUT)]
    assert [part.WhichOneof("part") for part in parts] == ["delta"] * (len(parts) - 1) + ["answer"]
    answer = parts[-1].answer
    assert len(parts) > 2
    assert "".join(part.delta for part in parts[:-1]) == answer.text
    assert (answer.model, answer.engine, len(answer.model_version)) == ("llama", "triton", 16)
    assert answer.cost.total_ms >= answer.cost.first_token_ms > 0


async def test_batches_judgements_and_models_through_the_service(stub: Any) -> None:
    requests = [
        pb.GenerateRequest(question=question, passages=ON_WIRE, model=name)
        for name in MODELS
        for question in SENTENCES[:2]
    ]
    batch = await stub.GenerateBatch(pb.GenerateBatchRequest(requests=requests), timeout=TIMEOUT)
    assert [result.WhichOneof("outcome") for result in batch.results] == ["answer"] * len(requests)
    assert [result.answer.model for result in batch.results] == [name for name in MODELS for _ in range(2)]
    many = [
        common_pb2.Passage(id=f"{at}-{one.id}", title=one.title, text=one.text)
        for at in range(100)
        for one in PASSAGES
    ]
    judged = await stub.ScoreRelevance(
        pb.ScoreRelevanceRequest(question=SENTENCES[0], passages=many), timeout=TIMEOUT
    )
    assert len(judged.probabilities) == len(many)
    assert judged.probabilities[: len(PASSAGES)] == pytest.approx(
        judged.probabilities[-len(PASSAGES) :], rel=1e-3
    )
    listed = await stub.ListModels(pb.ListModelsRequest(), timeout=TIMEOUT)
    assert [(model.name, model.engine) for model in listed.models] == [(name, "triton") for name in MODELS]


@pytest.mark.parametrize("name", MODELS)
async def test_greedy_and_beam_answers_are_those_of_the_in_process_engine(
    models: dict[str, TritonModel], name: str, tmp_path: Path
) -> None:
    path = str(FOLDERS[name](tmp_path)) if name in FOLDERS else ""
    options = EngineOptions(path=path, device="cpu", dtype="float32")
    engine = assemble(name, options, TemplateLibrary.bundled())
    pool = ComputePool(1, "engine")
    try:
        in_process = InProcessModel(engine, interval_s=0)
        here, there = in_process.describe(), models[name].describe()
        assert there == replace(here, engine="triton", runtime=here.engine)
        requests = [
            _request(
                question,
                passages=PASSAGES[: 1 + at % 4],
                augmentation=here.augmentations[
                    at % 2 if here.augmentations[1].value != "retrieval-free" else 0
                ],
                decoding=Decoding(num_beams=beams, max_new_tokens=24),
            )
            for beams in (1, 4)
            for at, question in enumerate(SENTENCES)
        ]
        expected = await outcomes(in_process, requests, Cancellation())
        got = await outcomes(models[name], requests, Cancellation())
        for mine, other in zip(got, expected, strict=True):
            assert isinstance(mine, Answer)
            assert isinstance(other, Answer)
            assert replace(mine, log_probability=0.0, confidence=None) == replace(
                other, log_probability=0.0, confidence=None
            )
            assert mine.log_probability == pytest.approx(other.log_probability, abs=1e-3)
            assert mine.model_version == here.version
        assert len({one.text for one in got if isinstance(one, Answer)}) > 4
    finally:
        pool.close()
        engine.close()


@pytest.mark.parametrize("num_beams", [1, 4])
async def test_a_caller_that_leaves_stops_the_model_within_two_steps(
    endless_server: TritonServer, endless: TritonModel, tmp_path: Path, num_beams: int
) -> None:
    """With beams nothing is reported before the end: the caller leaves when steps are being computed."""
    await until(lambda: _idle(endless))
    before = endless.statistics()
    async with _served(endless_server.target, ["endless"], tmp_path) as stub:
        request = pb.GenerateRequest(
            question=ENDLESS.question,
            passages=ON_WIRE,
            decoding=pb.Decoding(max_new_tokens=4000, num_beams=num_beams),
        )
        call = stub.Generate(request, timeout=TIMEOUT)
        reading = asyncio.ensure_future(call.read())
        await until(lambda: _stepped(endless, before.steps + 5))
        call.cancel()
        await asyncio.wait((reading,))
        await until(lambda: _idle(endless))
        after = endless.statistics()
        assert after.cancelled == before.cancelled + 1
        assert after.most_steps_after_cancel <= 2
        assert after.steps - before.steps < 4000
        short = pb.GenerateRequest(
            question=SENTENCES[0], passages=ON_WIRE, decoding=pb.Decoding(max_new_tokens=5)
        )
        parts = [part async for part in stub.Generate(short, timeout=TIMEOUT)]
        assert 1 <= parts[-1].answer.completion_tokens <= 5


@pytest.mark.parametrize("how", ["deadline", "cancellation", "close", "task"])
async def test_every_way_to_leave_reaches_the_model(endless: TritonModel, how: str) -> None:
    await until(lambda: _idle(endless))
    before = endless.statistics().cancelled
    cancel = Cancellation(Deadline.after(2.0 if how == "deadline" else TIMEOUT))
    begun = asyncio.Event()

    async def read() -> None:
        async with aclosing(endless.generate_stream(ENDLESS, cancel)) as parts:
            async for _ in parts:
                begun.set()
                if how == "close":
                    return

    reading = asyncio.create_task(read())
    await asyncio.wait((reading, asyncio.create_task(begun.wait())), return_when=asyncio.FIRST_COMPLETED)
    if how == "cancellation":
        await asyncio.to_thread(cancel.cancel)
    if how == "task":
        reading.cancel()
    await asyncio.wait((reading,))
    ends = {"deadline": DeadlineExceeded, "cancellation": Cancelled, "close": type(None)}
    assert reading.cancelled() if how == "task" else isinstance(reading.exception(), ends[how])

    async def left() -> bool:  # idle for a moment it may also be before the model counts who has gone
        return await _idle(endless) and endless.statistics().cancelled > before

    await until(left)
    assert endless.statistics().cancelled == before + 1
    assert endless.statistics().most_steps_after_cancel <= 2


async def test_two_hundred_random_cancels_leave_nothing_behind(
    endless_server: TritonServer, endless: TritonModel
) -> None:
    randomness = random.Random(200)
    process = psutil.Process(endless_server.stub_pid("endless"))

    async def leave() -> None:
        decoding = replace(ENDLESS.decoding, num_beams=randomness.choice([1, 1, 2]))
        request = replace(ENDLESS, decoding=decoding)
        if randomness.random() < 0.5:
            task = asyncio.create_task(outcomes(endless, [request] * 2, Cancellation()))
            await asyncio.sleep(randomness.uniform(0, 0.2))
            task.cancel()
            await asyncio.wait((task,))
            return
        deltas = randomness.randrange(5)
        async with aclosing(endless.generate_stream(ENDLESS, Cancellation())) as parts:
            async for _ in parts:
                deltas -= 1
                if deltas < 0:
                    return

    async def leave_many(count: int) -> None:
        for _ in range(count // 10):
            await asyncio.gather(*(leave() for _ in range(10)))
        await until(lambda: _idle(endless))

    here = psutil.Process()

    def used() -> list[int]:
        gc.collect()
        return [one.num_threads() for one in (here, process)] + [
            one.memory_info().rss for one in (here, process)
        ]

    await leave_many(100)
    tasks = len(asyncio.all_tasks())
    before = used()
    # An allocator takes what it needs in steps, and gRPC's threads come and go: what is left behind every time
    # shows in both halves.
    grown = []
    for _ in range(2):
        await leave_many(100)
        await until(lambda: _at_most(tasks))  # a look at a model may be under way, with tasks of its own
        after = used()
        grown.append([now - then for now, then in zip(after, before, strict=True)])
        before = after
    threads_here, threads, memory_here, memory = (min(both) for both in zip(*grown, strict=True))
    assert threads_here <= 2
    assert threads <= 1
    assert memory_here < 16 * 2**20
    assert memory < 16 * 2**20
    request = replace(ENDLESS, decoding=Decoding(max_new_tokens=5))
    await endless.generate(request, Cancellation(Deadline.after(TIMEOUT)))
    assert endless.statistics().most_steps_after_cancel <= 2


async def test_settings_of_prompts_are_refused_where_the_server_makes_them(triton: TritonServer) -> None:
    models = (ModelSource(name="llama", context_tokens=100, request={"top_k": 5}),)
    with pytest.raises(
        SettingsError, match=r"'llama'.*has context_tokens, request, which only models of its vLLM"
    ):
        async with triton_models.opened(triton.target, "llama", models=models):
            pass


async def test_no_more_are_sent_than_there_are_places(endless_server: TritonServer) -> None:
    async with triton_models.opened(endless_server.target, "endless", triton_in_flight=1) as (model,):
        async with aclosing(model.generate_stream(ENDLESS, Cancellation())) as parts:
            await anext(parts)
            waiting = asyncio.create_task(model.generate(_request(), Cancellation()))
            with pytest.raises(DeadlineExceeded):
                await anext(model.generate_stream(_request(), Cancellation(Deadline.after(0.3))))
            assert model.in_flight == 2
            assert not waiting.done()
        await waiting
        assert model.in_flight == 0


async def test_a_tenant_with_its_share_of_the_places_leaves_the_rest_to_another(
    endless_server: TritonServer,
) -> None:
    async def first(model: TritonModel, tenant: str, request: GenerationRequest, seconds: float) -> object:
        callers.enter(callers.Caller(tenant, tenant, frozenset()))
        async with aclosing(model.generate_stream(request, Cancellation(Deadline.after(seconds)))) as parts:
            part = await anext(parts)
            if tenant == "greedy":
                await asyncio.Event().wait()
            return part

    sizes = {"triton_in_flight": 2, "tenant_share": 0.5}
    async with triton_models.opened(endless_server.target, "endless", **sizes) as (model,):
        greedy = asyncio.create_task(first(model, "greedy", ENDLESS, TIMEOUT))
        while not model.in_flight:
            await asyncio.sleep(0.01)
        with pytest.raises(DeadlineExceeded, match="no place"):
            await asyncio.create_task(first(model, "greedy", _request(), 0.3))
        assert await asyncio.create_task(first(model, "polite", _request(), TIMEOUT)) is not None
        await ended(greedy)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Start]:
    with starting("generator", tmp_path, ENGINE="triton") as start:
        yield start


async def test_as_a_process_it_needs_neither_torch_nor_transformers(
    process: Start, triton: TritonServer, tmp_path: Path
) -> None:
    running = process(TRITON_TARGET=triton.target, MODELS="t5", BUNDLED="false")
    channel = connect(await serving(running, "generator", tmp_path, NAME), service=NAME)
    request = pb.GenerateRequest(question=SENTENCES[0], passages=ON_WIRE)
    parts = [part async for part in GeneratorServiceStub(channel).Generate(request, timeout=TIMEOUT)]
    assert (parts[-1].answer.model, parts[-1].answer.engine) == ("t5", "triton")
    libraries = {Path(one.path).name for one in psutil.Process(running.pid).memory_maps()}
    assert not {name for name in libraries if "torch" in name or "tokenizers" in name}
    await channel.close()
    running.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(running.wait, 60) == 0


async def test_its_modules_load_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, evenmesh_generator.__main__, evenmesh_generator.hosts.triton;"
        "print([name for name in ('torch', 'transformers', 'tokenizers') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_what_cannot_be_served_ends_in_one_line(
    process: Start, triton: TritonServer, unused_tcp_port: int
) -> None:
    nobody = f"127.0.0.1:{unused_tcp_port}"
    starts = {
        "EVENMESH_GENERATOR_TRITON_TARGET=: must be host:port of the Triton server": {},
        f"EVENMESH_GENERATOR_TRITON_TARGET={nobody}: no Triton server within 1 s": {
            "TRITON_TARGET": nobody,
            "TRITON_START_S": "1",
        },
        "EVENMESH_GENERATOR_MODELS: model 'nope'": {"TRITON_TARGET": triton.target, "MODELS": "nope"},
    }
    running = {words: process(**settings) for words, settings in starts.items()}
    for words, one in running.items():
        assert await asyncio.to_thread(one.wait, TIMEOUT) == 2
        assert one.stderr is not None
        lines = one.stderr.read().splitlines()
        said = [line for line in lines if not line.startswith("{")]
        assert len(said) == 1, lines
        assert words in said[0]
        if "nope" in words:
            assert "is not in its repository, which has" in said[0]
            assert "llama-chat" in said[0]
