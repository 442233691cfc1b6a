"""What every language model of the generator must do, whatever runs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import DeadlineExceeded, FailedPrecondition, InvalidField
from evenmesh_generator.backends.in_process import InProcessModel
from evenmesh_generator.domain import (
    Answer,
    Augmentation,
    Decoding,
    FinishReason,
    GenerationRequest,
    Normalization,
    Passage,
    RelevanceRequest,
    Turn,
)
from evenmesh_generator.engine import GeneratedAnswer, Generator
from evenmesh_generator.pointer.abstention import ABSTENTION
from evenmesh_generator.pointer.modeling import PointerForConditionalGeneration
from evenmesh_generator.ports import Cancellation, LanguageModel
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.runtime.engine import LanguageEngine
from evenmesh_generator.settings import ModelSource
from evenmesh_kit.compute.executors import ComputePool
from tests.support import (
    real_vllm,
    scripted_http,
    scripted_openai,
    tiny_engines,
    tiny_models,
    triton_models,
    vllm_server,
)
from tests.support.real_vllm import VllmServer
from tests.support.tiny_models import SENTENCES
from tests.support.together import outcomes
from tests.support.transformers_server import TransformersServer
from tests.support.triton_server import TritonServer

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("triton")]

PASSAGES = tuple(Passage(str(at), f"Title {at}", text) for at, text in enumerate(SENTENCES[1:5]))


@asynccontextmanager
async def _in_process(engine: LanguageEngine) -> AsyncIterator[LanguageModel]:
    pool = ComputePool(2, "engine")
    yield InProcessModel(engine, interval_s=0)
    pool.close()
    engine.close()


@asynccontextmanager
async def _in_process_transformers(folder: Path) -> AsyncIterator[LanguageModel]:
    async with _in_process(tiny_engines.transformers(folder)) as model:
        yield model


@asynccontextmanager
async def _at_triton(request: pytest.FixtureRequest, name: str) -> AsyncIterator[LanguageModel]:
    server: TritonServer = request.getfixturevalue("triton")
    async with triton_models.opened(server.target, name) as (model,):
        yield model


@asynccontextmanager
async def _at_vllm(folder: Path) -> AsyncIterator[LanguageModel]:
    """At a real Triton server, a model with the tensors of its vLLM backend."""
    source = {"context_tokens": vllm_server.CONTEXT_TOKENS, "bytes_per_token": 1.0, "top_logprobs": 100}
    models = (ModelSource(name=vllm_server.NAME, **source),)
    with vllm_server.serving(folder) as server:
        async with triton_models.opened(server.target, vllm_server.NAME, models=models) as (model,):
            yield model


@asynccontextmanager
async def _at_transformers(
    request: pytest.FixtureRequest, name: str, api: str
) -> AsyncIterator[LanguageModel]:
    """At a real OpenAI-compatible server, which gives no log-probabilities.

    It draws from one generator for all requests, so they go there one at a time.
    """
    server: TransformersServer = request.getfixturevalue("transformers_server")
    source = {"api": api, "context_tokens": 1024, "instruction": False}
    async with scripted_openai.opened(server.url, name, source=source, remote_in_flight=1) as (model,):
        yield model


@asynccontextmanager
async def _at_real_vllm(request: pytest.FixtureRequest, api: str) -> AsyncIterator[LanguageModel]:
    """At a real vLLM, which gives log-probabilities."""
    server: VllmServer = request.getfixturevalue("vllm")
    source = {
        "api": api,
        "context_tokens": real_vllm.CONTEXT_TOKENS,
        "instruction": False,
        "top_logprobs": real_vllm.TOP_LOGPROBS,
    }
    async with scripted_openai.opened(server.url, real_vllm.NAME, source=source) as (model,):
        yield model


@asynccontextmanager
async def _at_script(api: str) -> AsyncIterator[LanguageModel]:
    """At a scripted server, which gives log-probabilities."""
    source = {"api": api, "context_tokens": 1024}
    async with (
        scripted_http.serving(scripted_openai.made_up()) as server,
        scripted_openai.opened(server.url, source=source) as (model,),
    ):
        yield model


Make = Callable[[pytest.FixtureRequest, Path], AbstractAsyncContextManager[LanguageModel]]

ENGINES: dict[str, Make] = {
    "pointer": lambda *_: _in_process(tiny_engines.pointer()),
    "transformers-t5": lambda _, folder: _in_process_transformers(tiny_models.t5(folder)),
    "transformers-bart": lambda _, folder: _in_process_transformers(tiny_models.bart(folder)),
    "transformers-llama": lambda _, folder: _in_process_transformers(tiny_models.llama(folder)),
    "transformers-llama-chat": lambda _, folder: _in_process_transformers(
        tiny_models.llama(folder, chat=True)
    ),
    "triton-pointer": lambda request, _: _at_triton(request, "evenmesh-pointer"),
    "triton-t5": lambda request, _: _at_triton(request, "t5"),
    "triton-bart": lambda request, _: _at_triton(request, "bart"),
    "triton-llama": lambda request, _: _at_triton(request, "llama"),
    "triton-llama-chat": lambda request, _: _at_triton(request, "llama-chat"),
    "triton-vllm": lambda _, folder: _at_vllm(folder),
    "openai-completions": lambda request, _: _at_transformers(request, "tests/llama", "completions"),
    "openai-chat": lambda request, _: _at_transformers(request, "tests/llama-chat", "chat"),
    "openai-vllm-completions": lambda request, _: _at_real_vllm(request, "completions"),
    "openai-vllm-chat": lambda request, _: _at_real_vllm(request, "chat"),
    "openai-scripted-completions": lambda *_: _at_script("completions"),
    "openai-scripted-chat": lambda *_: _at_script("chat"),
}
"""Every backend with every kind of model: what builds one in an empty folder."""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ENGINES)
async def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[LanguageModel]:
    async with ENGINES[request.param](request, tmp_path_factory.mktemp(request.param)) as served:
        yield served


def _request(model: LanguageModel, **fields: Any) -> GenerationRequest:
    base = GenerationRequest(
        SENTENCES[0],
        PASSAGES,
        augmentation=model.describe().augmentations[0],
        decoding=Decoding(max_new_tokens=10),
    )
    return replace(base, **fields)


async def _stream(model: LanguageModel, request: GenerationRequest) -> tuple[list[str], Answer]:
    deltas: list[str] = []
    answer = None
    async with aclosing(model.generate_stream(request, Cancellation())) as parts:
        async for part in parts:
            assert answer is None, "the answer is the last part"
            if isinstance(part, Answer):
                answer = part
            else:
                deltas.append(part)
    assert answer is not None
    return deltas, answer


def _check_alike(one: Answer, other: Answer) -> None:
    """Equal; sums over other batches may round otherwise."""
    bare = {"log_probability": 0.0, "confidence": None}
    assert replace(one, **bare) == replace(other, **bare)  # type: ignore[arg-type]
    assert one.log_probability == pytest.approx(other.log_probability, abs=1e-3)
    assert one.confidence == pytest.approx(other.confidence, abs=1e-3)


DECODINGS = {
    "greedy": Decoding(max_new_tokens=10),
    "beams": Decoding(num_beams=4, max_new_tokens=10),
    "sampled": Decoding(max_new_tokens=10, temperature=1.2, top_p=0.95, seed=3),
}


async def _refused(model: LanguageModel, decoding: Decoding) -> bool:
    """Whether the model searches fewer beams, so that the engine refuses the decoding, which is checked."""
    if decoding.num_beams <= model.describe().max_beams:
        return False
    engine = Generator([model], TemplateLibrary.bundled())
    with pytest.raises(InvalidField) as caught:
        await anext(engine.stream(_request(model, decoding=decoding), Cancellation()))
    assert caught.value.field == "decoding.num_beams"
    unnamed = _request(model, decoding=replace(decoding, beams_named=False))
    (answer,) = await engine.batch([unnamed], Cancellation())
    assert isinstance(answer, GeneratedAnswer), "beams that nobody named are as many as the model searches"
    return True


@pytest.mark.parametrize("decoding", DECODINGS.values(), ids=DECODINGS)
async def test_deltas_join_to_the_answer(model: LanguageModel, decoding: Decoding) -> None:
    if await _refused(model, decoding):
        return
    deltas, answer = await _stream(model, _request(model, decoding=decoding))
    assert "".join(deltas) == answer.text
    assert all(deltas)
    assert len(deltas) <= 1 or decoding.num_beams == 1
    assert answer.prompt_tokens > 0
    assert 1 <= answer.completion_tokens <= 10
    assert answer.log_probability <= 0
    assert answer.finish_reason in FinishReason
    assert answer.dropped_passages == 0


@pytest.mark.parametrize("decoding", DECODINGS.values(), ids=DECODINGS)
async def test_the_same_request_has_the_same_answer(model: LanguageModel, decoding: Decoding) -> None:
    if await _refused(model, decoding):
        return
    request = _request(model, decoding=decoding)
    _, first = await _stream(model, request)
    _, second = await _stream(model, request)
    _check_alike(first, second)


@pytest.mark.parametrize("decoding", DECODINGS.values(), ids=DECODINGS)
async def test_a_text_of_stop_ends_the_answer(model: LanguageModel, decoding: Decoding) -> None:
    if decoding.num_beams > model.describe().max_beams:
        return
    _, whole = await _stream(model, _request(model, decoding=decoding))
    assert len(whole.text) > 1
    stop = whole.text[1:3]
    stopping = replace(decoding, stop=("never written", stop))
    deltas, answer = await _stream(model, _request(model, decoding=stopping))
    assert answer.text == "".join(deltas) == whole.text[: whole.text.index(stop)]
    assert all(deltas)
    assert answer.finish_reason is FinishReason.STOP
    assert 1 <= answer.completion_tokens <= whole.completion_tokens
    unmoved = replace(decoding, stop=(whole.text[-2:] + "never written",))
    _, answer = await _stream(model, _request(model, decoding=unmoved))
    assert (answer.text, answer.finish_reason) == (whole.text, whole.finish_reason)


async def test_answers_depend_on_question_and_passages(model: LanguageModel) -> None:
    requests = [_request(model, question=question) for question in SENTENCES]
    requests += [_request(model, passages=PASSAGES[at : at + 1]) for at in range(4)]
    answers = await outcomes(model, requests, Cancellation())
    texts = [answer.text for answer in answers if isinstance(answer, Answer)]
    assert len(texts) == len(requests)
    # The bundled model abstains, rightly, where no passage answers; that is one answer to several questions.
    answered = [text for text in texts if text != ABSTENTION]
    assert len(set(answered)) >= len(answered) // 2
    assert len(set(answered)) > len(requests) // 4


async def test_answers_at_the_same_time_are_those_of_streams(model: LanguageModel) -> None:
    most = model.describe().max_beams
    decodings = [decoding for decoding in DECODINGS.values() if decoding.num_beams <= most]
    requests = [
        _request(model, question=SENTENCES[at], passages=PASSAGES[: 1 + at % 4], decoding=decoding)
        for at, decoding in enumerate([*decodings, *decodings])
    ]
    found = await outcomes(model, requests, Cancellation())
    for request, outcome in zip(requests, found, strict=True):
        _, alone = await _stream(model, request)
        assert isinstance(outcome, Answer)
        _check_alike(outcome, alone)


async def test_streams_at_the_same_time_answer_as_alone(model: LanguageModel) -> None:
    requests = [_request(model, question=question) for question in SENTENCES[:6]]
    together = await asyncio.gather(*(_stream(model, request) for request in requests))
    for request, (_, answer) in zip(requests, together, strict=True):
        _check_alike(answer, (await _stream(model, request))[1])


async def test_every_augmentation_it_names_works(model: LanguageModel) -> None:
    for augmentation in model.describe().augmentations:
        if augmentation in (Augmentation.PARAMETRIC_KNOWLEDGE, Augmentation.COMPRESSION):
            continue  # the engine's two steps, never asked of a model
        shown = () if augmentation is Augmentation.RETRIEVAL_FREE else PASSAGES
        _, answer = await _stream(model, _request(model, augmentation=augmentation, passages=shown))
        assert answer.completion_tokens >= 1


async def test_length_limits_are_kept(model: LanguageModel) -> None:
    _, answer = await _stream(model, _request(model, decoding=Decoding(max_new_tokens=1)))
    assert answer.completion_tokens == 1
    most = model.describe()
    assert most.max_input_tokens >= 1
    assert most.max_new_tokens >= 1


async def test_a_bad_request_does_not_spoil_others(model: LanguageModel) -> None:
    good = _request(model)
    bad = replace(good, question="word " * 1500)
    first, second, third = await outcomes(model, [good, bad, good], Cancellation())
    assert isinstance(second, InvalidField)
    assert second.field == "question"
    assert isinstance(first, Answer)
    assert isinstance(third, Answer)
    assert first.text == third.text
    with pytest.raises(InvalidField):
        await _stream(model, bad)


async def _cannot_judge(model: LanguageModel) -> bool:
    """Whether the model says that it cannot judge, as one whose server gives no log-probabilities, and does not."""
    description = model.describe()
    if description.scores_relevance:
        return False
    assert (description.engine, description.runtime) == ("openai", "tests")
    with pytest.raises(FailedPrecondition) as caught:
        await model.score_relevance(RelevanceRequest(SENTENCES[0], PASSAGES), Cancellation())
    assert caught.value.reason == "NO_RELEVANCE"
    return True


@pytest.mark.parametrize("normalization", list(Normalization))
async def test_relevance_is_a_probability_of_the_passage_alone(
    model: LanguageModel, normalization: Normalization
) -> None:
    if await _cannot_judge(model):
        return
    passages = (*PASSAGES, Passage("long", "", " ".join(SENTENCES)))

    async def judged(shown: tuple[Passage, ...]) -> list[float]:
        return await model.score_relevance(
            RelevanceRequest(SENTENCES[0], shown, normalization), Cancellation()
        )

    scores = await judged(passages)
    assert len(scores) == len(passages)
    assert all(0.0 <= score <= 1.0 for score in scores)
    assert len(set(scores)) == len(scores)
    assert (await judged(passages[::-1]))[::-1] == pytest.approx(scores, rel=1e-3, abs=1e-9)
    (alone,) = await judged(passages[2:3])
    assert alone == pytest.approx(scores[2], rel=1e-3, abs=1e-9)


async def test_passages_are_judged_within_a_conversation(model: LanguageModel) -> None:
    """Where templates show earlier turns; the pointer model takes no template."""
    if await _cannot_judge(model):
        return
    passages, turns = PASSAGES[:2], (Turn(SENTENCES[2], SENTENCES[3]),)
    template = "rankrag-context-ranking-conversation"

    async def judged(**fields: Any) -> list[float]:
        return await model.score_relevance(
            RelevanceRequest(SENTENCES[0], passages, template=template, **fields), Cancellation()
        )

    if PointerForConditionalGeneration.__name__ == model.describe().architecture:
        with pytest.raises(InvalidField) as caught:
            await judged(turns=turns)
        assert caught.value.field == "template"
        return
    alone, within = await judged(), await judged(turns=turns)
    assert len(within) == len(passages)
    assert within != pytest.approx(alone, rel=1e-6), "what was said before is read"
    with pytest.raises(InvalidField) as caught:
        await model.score_relevance(RelevanceRequest(SENTENCES[0], passages, turns=turns), Cancellation())
    assert caught.value.field == "turns"


async def test_an_answer_is_within_a_conversation(model: LanguageModel) -> None:
    """Templates show earlier turns; the pointer model takes none."""
    kinds = model.describe().augmentations
    kind = Augmentation.IN_PROMPT if Augmentation.IN_PROMPT in kinds else kinds[0]
    request = _request(model, augmentation=kind)
    turns = (Turn(SENTENCES[2], SENTENCES[3]),)
    alone = await model.generate(request, Cancellation())
    within = await model.generate(replace(request, turns=turns), Cancellation())
    if model.describe().takes_template:
        assert within.dropped_turns == 0
        assert within.prompt_tokens > alone.prompt_tokens
    else:
        assert within.dropped_turns == len(turns)
        assert within.prompt_tokens == alone.prompt_tokens


async def test_a_deadline_that_passed_is_said_so(model: LanguageModel) -> None:
    over = Deadline.after(0)
    with pytest.raises(DeadlineExceeded):
        await model.generate(_request(model), Cancellation(over))
    with pytest.raises(DeadlineExceeded):
        await anext(model.generate_stream(_request(model), Cancellation(over)))
    with pytest.raises(DeadlineExceeded):
        await model.score_relevance(RelevanceRequest(SENTENCES[0], PASSAGES), Cancellation(over))


async def test_a_stream_that_is_left_frees_its_thread(model: LanguageModel) -> None:
    long = _request(model, decoding=Decoding(max_new_tokens=400, temperature=2.0))
    for _ in range(6):  # more than there are threads
        async with aclosing(model.generate_stream(long, Cancellation())) as parts:
            await anext(parts)
    await asyncio.wait_for(model.generate(_request(model), Cancellation()), 60)
