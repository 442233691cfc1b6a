"""A real vLLM before the generator: the same weights say the same there as in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from evenmesh_generator.backends.in_process import InProcessModel
from evenmesh_generator.backends.verdicts import p_true
from evenmesh_generator.domain import (
    Answer,
    Decoding,
    GenerationRequest,
    Normalization,
    Passage,
    RelevanceRequest,
)
from evenmesh_generator.ports import Cancellation, LanguageModel
from evenmesh_kit.compute.executors import ComputePool
from tests.support import real_vllm, scripted_openai, tiny_engines
from tests.support.real_vllm import VllmServer
from tests.support.scripted_http import serving
from tests.support.tiny_models import SENTENCES

pytestmark = pytest.mark.asyncio(loop_scope="module")

PASSAGES = tuple(Passage(str(at), "t", text) for at, text in enumerate(SENTENCES[1:6]))
SOURCE = {
    "api": "chat",
    "context_tokens": real_vllm.CONTEXT_TOKENS,
    "instruction": False,
    "top_logprobs": real_vllm.TOP_LOGPROBS,
}
REQUEST = GenerationRequest(SENTENCES[0], PASSAGES[:2], decoding=Decoding(max_new_tokens=12))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def there(vllm: VllmServer) -> AsyncIterator[LanguageModel]:
    """The model at vLLM."""
    async with scripted_openai.opened(vllm.url, real_vllm.NAME, source=SOURCE) as (model,):
        yield model


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(vllm: VllmServer) -> AsyncIterator[LanguageModel]:
    """The same weights in this process."""
    engine = tiny_engines.transformers(vllm.folder)
    pool = ComputePool(1, "engine")
    yield InProcessModel(engine, interval_s=0)
    pool.close()
    engine.close()


async def _answer(model: LanguageModel, request: GenerationRequest) -> Answer:
    async with aclosing(model.generate_stream(request, Cancellation())) as parts:
        answer = [part async for part in parts][-1]
    assert isinstance(answer, Answer)
    return answer


@pytest.mark.parametrize("normalization", list(Normalization))
async def test_relevance_is_that_of_the_same_weights(
    there: LanguageModel, vllm: VllmServer, normalization: Normalization
) -> None:
    """What is asked is taken from a scripted server; what the weights say to it, from transformers."""
    request = RelevanceRequest(SENTENCES[0], PASSAGES, normalization)
    async with (
        serving(scripted_openai.made_up()) as scripted,
        scripted_openai.opened(scripted.url, source=SOURCE | {"top_logprobs": 20}) as (model,),
    ):
        scripted.requests.clear()
        await model.score_relevance(request, Cancellation())
        messages = [one.json["messages"] for one in scripted.requests]
    prompts = {one[0]["content"]: _tops(vllm.folder, one) for one in messages}
    expected = [
        p_true(next(top for prompt, top in prompts.items() if passage.text in prompt), normalization)
        for passage in PASSAGES
    ]
    found = await there.score_relevance(request, Cancellation())
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-6)


def _tops(folder: Path, messages: list[dict[str, str]]) -> dict[str, float]:
    """The most probable first tokens of an answer, with their log-probabilities."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    weights: Any = AutoModelForCausalLM.from_pretrained(folder)
    asked = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        found = weights(**asked).logits[0, -1].double().log_softmax(-1).topk(real_vllm.TOP_LOGPROBS)
    return {
        tokenizer.decode([token]): value
        for value, token in zip(found.values.tolist(), found.indices.tolist(), strict=True)
    }


async def test_a_greedy_answer_is_that_of_the_same_weights(there: LanguageModel, here: LanguageModel) -> None:
    found, expected = [await _answer(one, REQUEST) for one in (there, here)]
    # vLLM leaves out a character of which the last tokens are only a part.
    assert found.text == expected.text.rstrip("\N{REPLACEMENT CHARACTER}")
    assert found.log_probability == pytest.approx(expected.log_probability, rel=1e-3)
    assert (found.completion_tokens, found.finish_reason) == (
        expected.completion_tokens,
        expected.finish_reason,
    )


async def test_a_stream_that_is_left_ends_at_the_server(there: LanguageModel, vllm: VllmServer) -> None:
    before = await asyncio.to_thread(vllm.counted, "generation_tokens_total")
    long = replace(REQUEST, decoding=Decoding(max_new_tokens=800, temperature=2.0))
    async with aclosing(there.generate_stream(long, Cancellation())) as parts:
        await anext(parts)
    async with asyncio.timeout(60):
        while await asyncio.to_thread(vllm.counted, "num_requests_running"):
            await asyncio.sleep(0.05)
    assert await asyncio.to_thread(vllm.counted, "generation_tokens_total") < before + 800
