"""The generator in front of a real Triton server whose model speaks the tensors of Triton's vLLM backend."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio
import torch

from evenmesh.wire.errors import MeshError, Unavailable
from evenmesh_generator.domain import (
    Answer,
    Augmentation,
    Decoding,
    FinishReason,
    GenerationRequest,
    Normalization,
    Passage,
    RelevanceRequest,
)
from evenmesh_generator.ports import Cancellation
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.runtime.prompts.choice import TEXT_TEMPLATE
from evenmesh_generator.runtime.prompts.fitting import RANKING_TEMPLATE
from evenmesh_generator.settings import ModelSource
from evenmesh_kit.settings import SettingsError
from tests.support import tiny_models, triton_models, vllm_server
from tests.support.tiny_models import SENTENCES
from tests.support.together import outcomes
from tests.support.vllm_server import NAME, VllmServer
from tests.support.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

PASSAGES = tuple(Passage(str(at), f"Title {at}", text) for at, text in enumerate(SENTENCES[1:5]))


def _source(**fields: Any) -> dict[str, Any]:
    values = {"context_tokens": vllm_server.CONTEXT_TOKENS, "bytes_per_token": 1.0, "top_logprobs": 100}
    return {"models": (ModelSource(name=NAME, **{**values, **fields}),)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    with vllm_server.serving(tmp_path_factory.mktemp("vllm")) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model(server: VllmServer) -> AsyncIterator[Any]:
    async with triton_models.opened(server.target, NAME, **_source()) as (model,):
        yield model


def _request(**fields: Any) -> GenerationRequest:
    decoding = Decoding(**{"max_new_tokens": 16, **fields.pop("decoding", {})})
    values = {"augmentation": Augmentation.IN_PROMPT, "decoding": decoding, **fields}
    return GenerationRequest(SENTENCES[0], PASSAGES, **values)


async def _answer(model: Any, request: GenerationRequest) -> Answer:
    answer: Answer = await model.generate(request, Cancellation())
    return answer


async def test_answers_are_those_of_the_model_to_our_prompt(model: Any, server: VllmServer) -> None:
    """By transformers itself, greedily and token by token, from the prompt that the template makes."""
    plain, tokenizer = tiny_models.plain(server.folder.parent / "llama")
    prompt = TemplateLibrary.bundled().get(TEXT_TEMPLATE).render(SENTENCES[0], PASSAGES, ())
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    with torch.inference_mode():
        written = plain.generate(ids, max_new_tokens=16, do_sample=False, num_beams=1)[0, ids.shape[1] :]
        whole = plain(torch.cat([ids, written[None]], 1)).logits[0].log_softmax(-1)
    answer = await _answer(model, _request())
    assert answer.text == tokenizer.decode(written, skip_special_tokens=True)
    assert (answer.prompt_tokens, answer.completion_tokens) == (ids.shape[1], len(written))
    ended = int(written[-1]) == tokenizer.eos_token_id
    assert answer.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)
    own = [float(whole[ids.shape[1] - 1 + at, token]) for at, token in enumerate(written.tolist())]
    assert answer.log_probability == pytest.approx(sum(own), abs=1e-2)


async def test_what_the_model_is(model: Any) -> None:
    described = model.describe()
    assert (described.name, described.version, described.engine) == (NAME, f"{NAME}/1", "triton")
    assert (described.runtime, described.max_beams, described.scores_relevance) == ("python", 1, True)
    answer = await _answer(model, _request())
    assert answer.model_version == described.version


async def test_p_true_is_that_of_the_first_token(model: Any, server: VllmServer) -> None:
    """Over the vocabulary: what the model gives to tokens that begin the word, where these are among the top."""
    plain, tokenizer = tiny_models.plain(server.folder.parent / "llama")
    template = TemplateLibrary.bundled().get(RANKING_TEMPLATE)
    passages = PASSAGES[:2]
    request = RelevanceRequest(SENTENCES[0], passages, Normalization.VOCABULARY)
    scores = await model.score_relevance(request, Cancellation())
    for score, passage in zip(scores, passages, strict=True):
        ids = tokenizer(template.render(SENTENCES[0], [passage], ()), return_tensors="pt").input_ids
        with torch.inference_mode():
            probabilities = plain(ids).logits[0, -1].softmax(-1)
        likely = {int(one) for one in probabilities.topk(100).indices}
        words = {one: tokenizer.decode([one]).strip() for one in likely}
        begins = [one for one, word in words.items() if word and "True".startswith(word)]
        assert begins, "otherwise a bound stands for it, and this test shows nothing"
        assert score == pytest.approx(sum(float(probabilities[one]) for one in begins), rel=1e-3)


async def test_a_caller_that_leaves_ends_the_request_at_the_server(model: Any, server: VllmServer) -> None:
    before = server.ended("cancelled")
    request = _request(decoding={"max_new_tokens": 400, "temperature": 5.0, "seed": 3})
    async with aclosing(model.generate_stream(request, Cancellation())) as parts:
        await anext(parts)

    async def cancelled() -> bool:
        return server.ended("cancelled") > before

    await until(cancelled)
    assert model.in_flight == 0
    assert (await _answer(model, _request())).completion_tokens >= 1


async def test_a_prompt_that_the_model_finds_too_long_is_made_shorter(server: VllmServer) -> None:
    """The setting says that 10,000 tokens fit; the model reads 1,024."""
    passages = tuple(Passage(str(at), "", " ".join(SENTENCES)) for at in range(20))
    async with triton_models.opened(server.target, NAME, **_source(context_tokens=10_000)) as (model,):
        before = server.ended("failed")
        answer = await _answer(model, GenerationRequest("q", passages, augmentation=Augmentation.IN_PROMPT))
        assert 0 < answer.dropped_passages < 20
        assert answer.prompt_tokens < vllm_server.CONTEXT_TOKENS
        assert server.ended("failed") > before


async def test_a_dead_process_is_said_so_and_loaded_again(model: Any, server: VllmServer) -> None:
    os.kill(server.stub_pid(NAME), signal.SIGKILL)
    outcome = None
    while not isinstance(outcome, MeshError):
        (outcome,) = await outcomes(model, [_request()], Cancellation())
    assert isinstance(outcome, Unavailable)

    async def back() -> bool:
        return bool(model.up)

    await until(back)
    assert (await _answer(model, _request())).completion_tokens >= 1


async def test_a_backend_that_is_too_old_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("old")
    with (
        vllm_server.serving(folder, without=("return_finish_reason",)) as server,
        pytest.raises(SettingsError, match=r"return_finish_reason.*24\.12"),
    ):
        async with triton_models.opened(server.target, NAME, **_source()):
            pass
