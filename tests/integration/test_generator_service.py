"""The generator over the wire: streams, batches, judgements, bad input, cancellation, and as a process."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from evenmesh.common.v1 import common_pb2
from evenmesh.generator.v1 import generator_service_pb2 as pb
from evenmesh.generator.v1.generator_service_pb2_grpc import (
    GeneratorServiceStub,
    add_GeneratorServiceServicer_to_server,
)
from evenmesh.wire.channel import connect, connect_sync
from evenmesh.wire.credentials import Credential
from evenmesh.wire.errors import from_rpc_error
from evenmesh.wire.security import ChannelSecurity
from evenmesh_generator.__main__ import GeneratorService
from evenmesh_generator.backends.in_process import InProcessModel
from evenmesh_generator.engine import Generator
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.runtime.engine import LanguageEngine
from evenmesh_generator.runtime.loading import load
from evenmesh_generator.runtime.options import EngineOptions
from evenmesh_generator.runtime.transformers_engines import transformers_engine
from evenmesh_generator.servicer import NAME, GeneratorServicer
from evenmesh_generator.settings import GeneratorSettings, ModelSource
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.compute.placement import Placement
from evenmesh_kit.rpc.server import MeshServer, Registration
from evenmesh_kit.security import keys
from evenmesh_kit.telemetry.setup import Telemetry
from tests.support import tiny_models
from tests.support.lifecycle import Idle
from tests.support.started import Start, end_in_one_line, serving, starting
from tests.support.tiny_models import SENTENCES
from tests.support.waiting import until

QUESTION = SENTENCES[0]
PASSAGES = [common_pb2.Passage(id=str(at), title="t", text=text) for at, text in enumerate(SENTENCES[1:5])]
TIMEOUT = 60
CPU = Placement(torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        "t5": tiny_models.t5(tmp_path_factory.mktemp("t5")),
        "chat": tiny_models.llama(tmp_path_factory.mktemp("chat"), chat=True),
    }


@pytest.fixture
async def stub(folders: dict[str, Path], tmp_path: Path) -> AsyncIterator[Any]:
    """A generator with two tiny models, put together as its process does it, over a real connection."""
    settings = GeneratorSettings(
        port=0,
        home=tmp_path,
        bundled=False,
        models=tuple(ModelSource(name=name, path=str(folder)) for name, folder in folders.items()),
        dtype="float32",
        device="cpu",
        delta_interval_ms=0,
    )
    async with MeshServer(
        "generator", settings, GeneratorService(settings), telemetry=Telemetry.disabled()
    ) as server:
        channel = connect(server.address, service=NAME)
        yield GeneratorServiceStub(channel)
        await channel.close()


def _request(**fields: Any) -> pb.GenerateRequest:
    decoding = pb.Decoding(max_new_tokens=12)
    return pb.GenerateRequest(**{"question": QUESTION, "passages": PASSAGES, "decoding": decoding, **fields})


async def _stream(stub: Any, request: pb.GenerateRequest) -> tuple[list[str], pb.Answer]:
    parts = [part async for part in stub.Generate(request, timeout=TIMEOUT)]
    assert [part.WhichOneof("part") for part in parts] == ["delta"] * (len(parts) - 1) + ["answer"]
    return [part.delta for part in parts[:-1]], parts[-1].answer


async def test_an_answer_is_streamed(stub: Any) -> None:
    deltas, answer = await _stream(stub, _request())
    assert "".join(deltas) == answer.text
    assert len(deltas) > 1
    assert (answer.model, answer.engine) == ("t5", "transformers")
    assert len(answer.model_version) == 16
    assert answer.finish_reason in (pb.Answer.FINISH_REASON_STOP, pb.Answer.FINISH_REASON_LENGTH)
    assert answer.prompt_tokens > 50
    assert 1 <= answer.completion_tokens <= 12
    assert answer.log_probability < 0


async def test_beams_come_as_one_delta(stub: Any) -> None:
    deltas, answer = await _stream(stub, _request(decoding=pb.Decoding(max_new_tokens=12, num_beams=4)))
    assert deltas == [answer.text]


@pytest.mark.parametrize(
    ("augmentation", "shown"),
    [
        (pb.AUGMENTATION_IN_PROMPT, True),
        (pb.AUGMENTATION_FUSION_IN_DECODER, True),
        (pb.AUGMENTATION_RETRIEVAL_FREE, False),
    ],
)
async def test_augmentations(stub: Any, augmentation: pb.Augmentation.ValueType, shown: bool) -> None:
    request = _request(augmentation=augmentation, passages=PASSAGES if shown else [])
    _, answer = await _stream(stub, request)
    assert answer.completion_tokens >= 1
    assert answer.dropped_passages == 0


async def test_a_chat_model_writes_its_own_background(stub: Any) -> None:
    request = _request(model="chat", augmentation=pb.AUGMENTATION_PARAMETRIC_KNOWLEDGE, passages=[])
    deltas, answer = await _stream(stub, request)
    assert "".join(deltas) == answer.text
    _, direct = await _stream(
        stub, _request(model="chat", augmentation=pb.AUGMENTATION_RETRIEVAL_FREE, passages=[])
    )
    assert answer.prompt_tokens > direct.prompt_tokens


async def test_a_chat_model_summarises_the_passages(stub: Any) -> None:
    deltas, answer = await _stream(
        stub, _request(model="chat", augmentation=pb.AUGMENTATION_COMPRESSION, passages=PASSAGES)
    )
    assert "".join(deltas) == answer.text
    _, direct = await _stream(stub, _request(model="chat", augmentation=pb.AUGMENTATION_IN_PROMPT))
    assert answer.prompt_tokens > direct.prompt_tokens


async def test_a_batch_has_one_outcome_per_item(stub: Any) -> None:
    requests = [
        _request(),
        _request(question=""),
        _request(model="nope"),
        _request(),
        _request(model="chat"),
        _request(augmentation=pb.AUGMENTATION_RETRIEVAL_FREE),
    ]
    results = (await stub.GenerateBatch(pb.GenerateBatchRequest(requests=requests), timeout=TIMEOUT)).results
    kinds = [result.WhichOneof("outcome") for result in results]
    assert kinds == ["answer", "error", "error", "answer", "answer", "error"]
    first, again = results[0].answer, results[3].answer
    assert (first.cost.reused_tokens, again.cost.computed_tokens) == (0, 0)
    assert first.cost.computed_tokens == again.cost.reused_tokens == first.prompt_tokens
    for answer in (first, again):
        answer.ClearField("cost")
    assert first == again
    assert results[4].answer.model == "chat"
    assert [(results[at].error.code, results[at].error.field) for at in (1, 2, 5)] == [
        ("INVALID_ARGUMENT", "question"),
        ("NOT_FOUND", "model"),
        ("INVALID_ARGUMENT", "passages"),
    ]
    _, four_beams = await _stream(stub, _request(decoding=pb.Decoding(max_new_tokens=12, num_beams=4)))
    assert results[0].answer.text == four_beams.text


async def test_judgements(stub: Any) -> None:
    request = pb.ScoreRelevanceRequest(question=QUESTION, passages=PASSAGES)
    judged = await stub.ScoreRelevance(request, timeout=TIMEOUT)
    assert len(judged.probabilities) == len(PASSAGES)
    assert all(0 <= value <= 1 for value in judged.probabilities)
    assert (judged.model, len(judged.model_version)) == ("t5", 16)
    request.normalization = pb.ScoreRelevanceRequest.NORMALIZATION_VOCABULARY
    over_all = await stub.ScoreRelevance(request, timeout=TIMEOUT)
    assert all(a < b for a, b in zip(over_all.probabilities, judged.probabilities, strict=True))


async def test_models(stub: Any) -> None:
    models = (await stub.ListModels(pb.ListModelsRequest(), timeout=TIMEOUT)).models
    assert [(model.name, model.is_default) for model in models] == [("t5", True), ("chat", False)]
    assert models[0].augmentations[0] == pb.AUGMENTATION_IN_PROMPT
    assert pb.AUGMENTATION_PARAMETRIC_KNOWLEDGE in models[1].augmentations
    assert all(model.scores_relevance and model.max_input_tokens for model in models)


BAD: list[tuple[dict[str, Any], grpc.StatusCode, str]] = [
    ({"question": ""}, grpc.StatusCode.INVALID_ARGUMENT, "question"),
    ({"question": "  "}, grpc.StatusCode.INVALID_ARGUMENT, "question"),
    ({"question": "x" * 2**20}, grpc.StatusCode.INVALID_ARGUMENT, "question"),
    ({"question": "word " * 1600}, grpc.StatusCode.INVALID_ARGUMENT, "question"),
    ({"passages": PASSAGES + PASSAGES[:1]}, grpc.StatusCode.INVALID_ARGUMENT, "passages[4].id"),
    (
        {"passages": [common_pb2.Passage(id="a", text="x" * 65_537)]},
        grpc.StatusCode.INVALID_ARGUMENT,
        "passages[0].text",
    ),
    (
        {"passages": [common_pb2.Passage(id=str(at), text="x") for at in range(101)]},
        grpc.StatusCode.INVALID_ARGUMENT,
        "passages",
    ),
    (
        {"passages": [], "augmentation": pb.AUGMENTATION_IN_PROMPT},
        grpc.StatusCode.INVALID_ARGUMENT,
        "passages",
    ),
    ({"augmentation": pb.AUGMENTATION_RETRIEVAL_FREE}, grpc.StatusCode.INVALID_ARGUMENT, "passages"),
    (
        {"passages": [], "augmentation": pb.AUGMENTATION_PARAMETRIC_KNOWLEDGE},
        grpc.StatusCode.INVALID_ARGUMENT,
        "augmentation",
    ),
    ({"augmentation": 77}, grpc.StatusCode.INVALID_ARGUMENT, "augmentation"),
    ({"model": "nope"}, grpc.StatusCode.NOT_FOUND, "model"),
    ({"template": "nope"}, grpc.StatusCode.NOT_FOUND, "template"),
    ({"template": "question"}, grpc.StatusCode.INVALID_ARGUMENT, "template"),
    ({"decoding": pb.Decoding(num_beams=0)}, grpc.StatusCode.INVALID_ARGUMENT, "decoding.num_beams"),
    ({"decoding": pb.Decoding(num_beams=17)}, grpc.StatusCode.INVALID_ARGUMENT, "decoding.num_beams"),
    (
        {"decoding": pb.Decoding(temperature=float("nan"))},
        grpc.StatusCode.INVALID_ARGUMENT,
        "decoding.temperature",
    ),
    ({"decoding": pb.Decoding(top_p=0)}, grpc.StatusCode.INVALID_ARGUMENT, "decoding.top_p"),
    (
        {"decoding": pb.Decoding(max_new_tokens=4097)},
        grpc.StatusCode.INVALID_ARGUMENT,
        "decoding.max_new_tokens",
    ),
    (
        {"model": "chat", "decoding": pb.Decoding(max_new_tokens=4096)},
        grpc.StatusCode.INVALID_ARGUMENT,
        "decoding.max_new_tokens",
    ),
    ({"decoding": pb.Decoding(seed=2**63)}, grpc.StatusCode.INVALID_ARGUMENT, "decoding.seed"),
    (
        {"decoding": pb.Decoding(num_beams=2, temperature=1)},
        grpc.StatusCode.INVALID_ARGUMENT,
        "decoding.num_beams",
    ),
]


async def test_bad_requests_name_their_field(stub: Any) -> None:
    for fields, code, field in BAD:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _stream(stub, _request(**fields))
        assert (caught.value.code(), from_rpc_error(caught.value).field) == (code, field), fields
    await _stream(stub, _request())  # and it still answers


async def test_bad_judgements_and_batches_name_their_field(stub: Any) -> None:
    calls = [
        (stub.ScoreRelevance, pb.ScoreRelevanceRequest(passages=PASSAGES), "question"),
        (stub.ScoreRelevance, pb.ScoreRelevanceRequest(question="q"), "passages"),
        (stub.ScoreRelevance, pb.ScoreRelevanceRequest(question="q", passages=PASSAGES, normalization=9), "normalization"),
        (stub.ScoreRelevance, pb.ScoreRelevanceRequest(question="q", passages=PASSAGES, model="x"), "model"),
        (stub.GenerateBatch, pb.GenerateBatchRequest(), "requests"),
        (stub.GenerateBatch, pb.GenerateBatchRequest(requests=[_request()] * 257), "requests"),
    ]  # fmt: skip
    for call, request, field in calls:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(request, timeout=TIMEOUT)
        assert from_rpc_error(caught.value).field == field
        assert caught.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)


class Gate:
    """Lets a model take one step per permit, and counts the steps."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.permits = threading.Semaphore(0)
        self.steps = 0
        self._hook = model.register_forward_pre_hook(self._step)

    def _step(self, *_: Any) -> None:
        assert self.permits.acquire(timeout=TIMEOUT)
        self.steps += 1

    def open(self) -> None:
        """Lets every step pass."""
        self._hook.remove()
        self.permits.release(10_000)


Serve = Callable[..., Any]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Serves one model and gives its stub and its admission."""
    async with AsyncExitStack() as stack:

        async def start(model: LanguageEngine, capacity: int = 10**6) -> tuple[Any, Admission]:
            pool, codec_pool = ComputePool(1, "engine"), ComputePool(1, "codec")
            stack.callback(model.close)
            stack.callback(pool.close)
            stack.callback(codec_pool.close)
            admission = Admission(capacity, "tokens")
            servicer = GeneratorServicer(admission, codec_pool)
            servicer.open(Generator([InProcessModel(model, interval_s=0)], TemplateLibrary.bundled()))
            settings = GeneratorSettings(port=0, home=tmp_path, grace_s=0)
            registration = Registration(add_GeneratorServiceServicer_to_server, servicer, NAME)
            server = MeshServer("g", settings, Idle(registration), telemetry=Telemetry.disabled())
            await stack.enter_async_context(server)
            channel = connect(server.address, service=NAME)
            stack.push_async_callback(channel.close)
            return GeneratorServiceStub(channel), admission

        yield start


@pytest.mark.parametrize("how", ["cancel", "deadline"])
@pytest.mark.parametrize("num_beams", [1, 4])
async def test_a_caller_that_leaves_stops_the_model_at_the_next_token(
    folders: dict[str, Path], serve: Serve, how: str, num_beams: int
) -> None:
    """The step that runs when the server learns of it is the last one."""
    model, tokenizer = load(folders["t5"], CPU)
    subject = transformers_engine("t5", "v", model, tokenizer, TemplateLibrary.bundled(), EngineOptions())
    stub, admission = await serve(subject)
    decoding = pb.Decoding(max_new_tokens=40, num_beams=num_beams)
    requests = [_request(question=text, decoding=decoding) for text in SENTENCES]
    answers = [(await _stream(stub, request))[1] for request in requests]
    at = max(range(len(answers)), key=lambda at: answers[at].completion_tokens)
    assert answers[at].completion_tokens > 10, "the model would end by itself"
    gate = Gate(model)
    gate.permits.release(3)
    call = stub.Generate(requests[at], timeout=TIMEOUT if how == "cancel" else 3)
    reading = asyncio.ensure_future(call.read())
    await until(lambda: gate.steps == 3)
    if how == "cancel":
        call.cancel()
    await until(lambda: admission.in_flight == 0)
    gate.permits.release(500)
    reading.cancel()
    call.cancel()
    _, answer = await _stream(stub, _request())  # the batch has room again
    gate.open()
    steps_of_it = answer.completion_tokens  # one each, greedily
    assert gate.steps - steps_of_it in (3, 4), "three, and the one that had begun, of more than ten"


async def test_too_much_work_is_refused_at_once(folders: dict[str, Path], serve: Serve) -> None:
    model, tokenizer = load(folders["t5"], CPU)
    subject = transformers_engine("t5", "v", model, tokenizer, TemplateLibrary.bundled(), EngineOptions())
    stub, admission = await serve(subject, 500)
    gate = Gate(model)
    first = asyncio.ensure_future(_stream(stub, _request(decoding=pb.Decoding(max_new_tokens=300))))
    await until(lambda: admission.in_flight > 300)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _stream(stub, _request(decoding=pb.Decoding(max_new_tokens=300)))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert from_rpc_error(caught.value).reason == "OVERLOADED"
    gate.open()
    await first
    assert admission.in_flight == 0


async def test_one_tenants_largest_batch_leaves_room_for_another(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    """A batch of more than the capacity holds the model; another tenant's call is admitted beside it."""
    secrets = []
    for tenant in ("greedy", "polite"):
        key, digest = keys.new_key()
        entry = {"name": tenant, "sha256": digest, "tenant": tenant, "roles": ["admin"]}
        keys.add_entry(tmp_path / "keys.toml", keys.KeyEntry.read(entry))
        secrets.append(key)
    model, tokenizer = load(folders["t5"], CPU)
    subject = transformers_engine("t5", "v", model, tokenizer, TemplateLibrary.bundled(), EngineOptions())
    codec_pool = ComputePool(1, "codec")
    settings = GeneratorSettings(
        port=0, home=tmp_path, grace_s=0, max_work=4000, api_keys=tmp_path / "keys.toml"
    )
    admission = Admission.from_settings(settings, "tokens")
    servicer = GeneratorServicer(admission, codec_pool)
    servicer.open(Generator([InProcessModel(subject, interval_s=0)], TemplateLibrary.bundled()))
    registration = Registration(add_GeneratorServiceServicer_to_server, servicer, NAME)
    gate = Gate(model)
    decoding = pb.Decoding(max_new_tokens=40, temperature=5.0)
    batch = pb.GenerateBatchRequest(
        requests=[_request(question=f"{QUESTION} {at}", decoding=decoding) for at in range(256)]
    )
    try:
        async with AsyncExitStack() as stack:
            server = MeshServer("g", settings, Idle(registration), telemetry=Telemetry.disabled())
            await stack.enter_async_context(server)
            greedy, polite = (
                GeneratorServiceStub(
                    connect(server.address, service=NAME, security=ChannelSecurity(None, Credential(key)))
                )
                for key in secrets
            )
            answers = asyncio.ensure_future(greedy.GenerateBatch(batch, timeout=TIMEOUT))
            await until(lambda: admission.in_flight > 0 and admission.waiting > 0)
            held = admission.in_flight
            assert held <= 0.75 * admission.capacity
            answer = asyncio.ensure_future(_stream(polite, _request()))
            await until(lambda: admission.in_flight > held or answer.done())
            gate.open()
            assert (await answer)[1].completion_tokens >= 1
            results = (await answers).results
            assert [one.WhichOneof("outcome") for one in results] == ["answer"] * 256
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await _stream(greedy, _request(question="long " * 1600))
            assert from_rpc_error(caught.value).reason == "OVER_CAPACITY"
            assert "at most 3000 tokens fit" in caught.value.details()
    finally:
        gate.open()
        subject.close()
        codec_pool.close()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Start]:
    with starting("generator", tmp_path) as start:
        yield start


@pytest.mark.timeout(600)
async def test_as_a_process(process: Start, folders: dict[str, Path], tmp_path: Path) -> None:
    running = process(BUNDLED="false", MODELS=f"t5={folders['t5']}")
    channel = connect_sync(await serving(running, "generator", tmp_path, NAME), service=NAME)
    stub = GeneratorServiceStub(channel)
    parts = list(stub.Generate(_request(), timeout=TIMEOUT))
    assert parts[-1].answer.model == "t5"
    channel.close()
    running.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(running.wait, 60) == 0
    assert not (tmp_path / "generator.address").exists()


@pytest.mark.timeout(900)
async def test_what_cannot_be_served_ends_in_one_line(
    process: Start, folders: dict[str, Path], tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    starts = {
        "EVENMESH_GENERATOR_MODELS: model 'a': there is no folder": {"MODELS": f"a={tmp_path / 'none'}"},
        "EVENMESH_GENERATOR_ALLOW_DOWNLOAD=true fetches it": {"MODELS": "a=nobody/nothing"},
        "EVENMESH_GENERATOR_MODELS: model 'a': ": {"MODELS": f"a={empty}"},
        "EVENMESH_GENERATOR_DEVICE='cuda:99': no device": {
            "MODELS": f"a={folders['t5']}",
            "DEVICE": "cuda:99",
        },
    }
    await end_in_one_line(partial(process, BUNDLED="false"), starts)
