"""A model at OpenAI-compatible servers: what is sent, what is read, and how servers come and go."""

from __future__ import annotations

import math
from contextlib import aclosing
from typing import Any

import pytest

from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import DeadlineExceeded, FailedPrecondition, MeshError
from evenmesh_generator.backends.openai.wire import Interface, listed_models
from evenmesh_generator.backends.remote_prompter import PromptOptions, RemotePrompter
from evenmesh_generator.backends.verdicts import p_true
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
from evenmesh_kit.remote.errors import MalformedReply
from evenmesh_kit.rpc.readiness import Readiness
from evenmesh_kit.settings import SettingsError
from tests.support import scripted_openai
from tests.support.ports import reserve
from tests.support.scripted_http import HttpReply, HttpRequest, replying, serving
from tests.support.waiting import until

PASSAGES = tuple(Passage(str(at), f"title {at}", f"text {at}") for at in range(3))


def _request(**decoding: Any) -> GenerationRequest:
    return GenerationRequest(
        "a question", PASSAGES, augmentation=Augmentation.IN_PROMPT, decoding=Decoding(**decoding)
    )


async def _answer(model: Any, request: GenerationRequest) -> Answer:
    answer: Answer = await model.generate(request, Cancellation())
    return answer


@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_what_is_sent(api: str) -> None:
    further = {"chat_template_kwargs": {"enable_thinking": False}, "stop": ["\nUser:"]}
    source = {"api": api, "request": further}
    async with (
        serving(scripted_openai.made_up()) as server,
        scripted_openai.opened(server.url, source=source) as (model,),
    ):
        server.requests.clear()
        await _answer(model, _request(max_new_tokens=9))
        await _answer(model, _request(max_new_tokens=9, temperature=0.7, top_p=0.9, seed=2**62))
        await _answer(model, _request(max_new_tokens=9, temperature=0.7, stop=("\n\n",)))
        await model.score_relevance(RelevanceRequest("a question", PASSAGES[:1]), Cancellation())
    greedy, sampled, whole, judgement = (request.json for request in server.requests)
    prompt = (
        "Assuming the following paragraphs are true:\n\ntitle 0 text 0\ntitle 1 text 1\ntitle 2 text 2\n\n"
        "Please directly answer the following question with one or few words:\na question"
    )
    if api == "chat":
        assert greedy.pop("messages") == [{"role": "user", "content": prompt}]
        assert greedy.pop("logprobs") is True
        assert (judgement["logprobs"], judgement["top_logprobs"]) == (True, 20)
    else:
        assert greedy.pop("prompt").endswith("Assistant:")
        assert greedy.pop("logprobs") == 1
        assert judgement["logprobs"] == 20
    assert {request.path for request in server.requests} == {
        "/v1/chat/completions" if api == "chat" else "/v1/completions"
    }
    assert greedy == {
        "model": "made-up",
        "max_tokens": 9,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **further,
    }
    assert (sampled["temperature"], sampled["top_p"], sampled["seed"]) == (0.7, 0.9, 2**62)
    assert (whole["seed"], "top_p" in whole) == (0, False)
    assert (whole["stop"], judgement["stop"]) == (["\nUser:", "\n\n"], ["\nUser:"])
    assert (judgement["max_tokens"], judgement["temperature"]) == (1, 0.0)
    assert "stream" not in judgement


async def test_what_is_read() -> None:
    async with serving(scripted_openai.made_up()) as server, scripted_openai.opened(server.url) as (model,):
        deltas: list[Any] = []
        async with aclosing(model.generate_stream(_request(max_new_tokens=2), Cancellation())) as parts:
            deltas = [part async for part in parts]
        *texts, answer = deltas
        description = model.describe()
        counts = model.statistics()
    assert "".join(texts) == answer.text
    assert answer.finish_reason is FinishReason.LENGTH
    assert answer.completion_tokens == 2
    assert answer.log_probability == pytest.approx(-0.5)
    assert answer.model_version == "made-up+fp1"
    assert answer.cost.reused_tokens == answer.prompt_tokens // 2
    assert answer.cost.computed_tokens + answer.cost.reused_tokens == answer.prompt_tokens
    assert 0 < answer.cost.first_token_s <= answer.cost.total_s
    assert (description.engine, description.runtime) == ("openai", "script")
    assert description.version == "made-up+fp1"
    assert description.device == f"127.0.0.1:{server.port}"
    assert (description.scores_relevance, description.max_beams) == (True, 1)
    assert (counts.finished, counts.written_tokens) == (1, 2)


@pytest.mark.parametrize("most_top", [20, 5])
async def test_as_many_tokens_are_judged_by_as_the_server_allows(most_top: int) -> None:
    async with (
        serving(scripted_openai.made_up(most_top=most_top)) as server,
        scripted_openai.opened(server.url) as (model,),
    ):
        await model.score_relevance(RelevanceRequest("q", PASSAGES), Cancellation())
        assert server.requests[-1].json["top_logprobs"] == most_top


async def test_a_server_without_extras_is_asked_for_none() -> None:
    script = scripted_openai.made_up(log_probabilities=False, usage=False)
    async with serving(script) as server, scripted_openai.opened(server.url) as (model,):
        answer = await _answer(model, _request(max_new_tokens=8))
        assert "stream_options" not in server.requests[-1].json
        assert "logprobs" not in server.requests[-1].json
        assert answer.log_probability == 0.0
        assert answer.completion_tokens == len(answer.text.split())
        assert not model.describe().scores_relevance
        with pytest.raises(FailedPrecondition) as caught:
            await model.score_relevance(RelevanceRequest("q", PASSAGES), Cancellation())
        assert caught.value.reason == "NO_RELEVANCE"


TOPS = [
    # True alone: False is at most exp(-3), the smallest, which is less than what the tokens leave.
    ({" True": math.log(0.8), " x": -3.0}, 0.8, 0.8 / (0.8 + math.exp(-3))),
    # Both, in two spellings of one: 0.5 + 0.1 against 0.2.
    ({"True": math.log(0.5), " True": math.log(0.1), "\u2581False": math.log(0.2)}, 0.6, 0.75),
    # What the tokens leave, 0.01, is less than the smallest, 0.09.
    ({"False": math.log(0.9), "x": math.log(0.09)}, 0.01, 0.01 / 0.91),
    # A beginning of a word counts; other words, other cases and longer words do not.
    ({"F": math.log(0.4), "Tr": math.log(0.4), "true": -3, "Truely": -3}, 0.4, 0.5),
    # None of the two.
    ({"yes": math.log(0.9), "no": math.log(0.05)}, 0.05, 0.5),
    ({"yes": 0.0}, 0.0, 0.5),
    ({"True": 0.0, "False": -9999.0}, 1.0, 1.0),
]


@pytest.mark.parametrize(("top", "vocabulary", "pair"), TOPS)
def test_p_true_by_hand(top: dict[str, float], vocabulary: float, pair: float) -> None:
    assert p_true(top, Normalization.VOCABULARY) == pytest.approx(vocabulary, abs=1e-9)
    assert p_true(top, Normalization.TRUE_FALSE) == pytest.approx(pair, abs=1e-9)


def _prompter(context_tokens: int, *, chat: bool = True) -> RemotePrompter:
    return RemotePrompter(
        TemplateLibrary.bundled(),
        PromptOptions("m", chat, "question" if not chat else "", context_tokens, 3.0),
    )


def test_prompts_keep_to_the_estimated_size_and_whole_passages() -> None:
    passages = tuple(Passage(str(at), "", "word " * 30) for at in range(20))
    request = GenerationRequest("q", passages, decoding=Decoding(max_new_tokens=100))
    fitted = _prompter(600).prompt(request)
    assert len(fitted.row.encode()) <= (600 - 100) * 3
    assert 0 < fitted.dropped_passages < 20
    assert fitted.row.count("word ") % 30 == 0
    assert len(_prompter(600).prompt(request, 500).row) <= 500


def test_control_tokens_of_users_are_broken_up() -> None:
    text = "x</s>[INST]<|im_start|>system<start_of_turn> <<SYS>> <\uff5cUser\uff5c> a<b [1] <i> </think>"
    request = GenerationRequest(text, (Passage("p", text, text),), decoding=Decoding(max_new_tokens=1))
    row = _prompter(4096).prompt(request).row + _prompter(4096).judgement(
        RelevanceRequest(text, request.passages), request.passages[0]
    )
    for token in (
        "</s>",
        "[INST]",
        "<|im_start|>",
        "<start_of_turn>",
        "<<SYS>>",
        "<\uff5cUser\uff5c>",
        "</think>",
    ):
        assert token not in row
    assert "a<b [1] <i>" in row


BAD_PIECES = [
    "x",
    "[]",
    '{"choices": {}}',
    '{"choices": [3]}',
    '{"choices": [{"index": 0, "delta": {"content": 3}}]}',
    '{"choices": [{"index": 0, "delta": 3}]}',
    '{"choices": [{"index": 0, "delta": {}, "finish_reason": 3}]}',
    '{"choices": [{"index": 0, "delta": {}, "logprobs": {"content": [{"logprob": "x"}]}}]}',
    '{"choices": [], "usage": {"prompt_tokens": -1}}',
    '{"choices": [], "usage": {"prompt_tokens": true}}',
    '{"choices": [], "usage": 3}',
]


@pytest.mark.parametrize("event", BAD_PIECES)
def test_pieces_of_another_shape_are_malformed(event: str) -> None:
    with pytest.raises(MalformedReply):
        Interface(True, "m", {}).chunk(event)


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize(
    "given", [3, {"content": 3, "top_logprobs": 3}, {"content": [3], "top_logprobs": [3]}]
)
def test_log_probabilities_of_another_shape_are_malformed(chat: bool, given: Any) -> None:
    with pytest.raises(MalformedReply):
        Interface(chat, "m", {}).top({"choices": [{"index": 0, "logprobs": given}]})


@pytest.mark.parametrize("reply", [3, {"data": 3}, {"data": [3]}, {"data": [{"id": 3}]}])
def test_lists_of_another_shape_are_malformed(reply: Any) -> None:
    with pytest.raises(MalformedReply):
        listed_models(reply)


async def test_the_context_is_what_the_server_lists() -> None:
    sound = scripted_openai.made_up()

    async def script(request: HttpRequest, reply: HttpReply) -> None:
        if request.path == "/v1/models":
            await reply.send(200, scripted_openai.models("other", "made-up", max_model_len=777))
        else:
            await sound(request, reply)

    async with serving(script) as server:
        async with scripted_openai.opened(server.url) as (model,):
            assert (model.describe().max_input_tokens, model.describe().max_new_tokens) == (777, 776)
        async with scripted_openai.opened(server.url, source={"context_tokens": 500}) as (model,):
            assert model.describe().max_input_tokens == 500


async def test_a_model_that_is_not_listed_any_more_is_away_until_it_is() -> None:
    sound, names, readiness = scripted_openai.made_up(), ["made-up"], Readiness()

    async def script(request: HttpRequest, reply: HttpReply) -> None:
        if request.path == "/v1/models":
            await reply.send(200, scripted_openai.models(*names))
        else:
            await sound(request, reply)

    async with (
        serving(script) as server,
        scripted_openai.opened(server.url, readiness=readiness, remote_probe_interval_s=0.05) as (model,),
    ):
        await _answer(model, _request())
        names[:] = ["other"]
        await until(lambda: not model.up)
        assert not readiness.ready
        asked = len([one for one in server.requests if one.method == "POST"])
        with pytest.raises(MeshError) as refused:
            await model.generate(_request(), Cancellation())
        assert refused.value.reason == "REMOTE_NOT_FOUND"
        assert "other" not in refused.value.message, "callers are not shown what else a server has"
        assert len([one for one in server.requests if one.method == "POST"]) == asked
        names[:] = ["made-up"]
        await until(lambda: model.up)
        assert readiness.ready
        await _answer(model, _request())


async def test_a_server_that_lists_too_often_keeps_its_model() -> None:
    sound, refusals = scripted_openai.made_up(), 0

    async def script(request: HttpRequest, reply: HttpReply) -> None:
        nonlocal refusals
        if request.path == "/v1/models" and started:
            refusals += 1
            await reply.send(429, {})
        else:
            await sound(request, reply)

    started = False
    async with (
        serving(script) as server,
        scripted_openai.opened(server.url, remote_probe_interval_s=0.02) as (model,),
    ):
        started = True
        await until(lambda: refusals > 2)
        assert model.up
        await _answer(model, _request())


async def test_a_server_that_lacks_the_model_gets_no_requests() -> None:
    sound = scripted_openai.made_up()

    async def other(request: HttpRequest, reply: HttpReply) -> None:
        assert request.path == "/v1/models"
        await reply.send(200, scripted_openai.models("other"))

    async with (
        serving(other) as one,
        serving(sound) as two,
        scripted_openai.opened([one.url, two.url]) as (model,),
    ):
        for _ in range(4):
            await _answer(model, _request())
        assert {request.method for request in one.requests} == {"GET"}


async def test_a_server_that_still_loads_is_waited_for() -> None:
    sound, refusals = scripted_openai.made_up(), 3

    async def loading(request: HttpRequest, reply: HttpReply) -> None:
        nonlocal refusals
        if refusals:
            refusals -= 1
            await reply.send(503, "")
        else:
            await sound(request, reply)

    async with serving(loading) as server, scripted_openai.opened(server.url) as (model,):
        assert model.up


STARTS: dict[str, tuple[Any, str, str]] = {
    "another model": (
        replying(200, scripted_openai.models("a", "b")),
        "EVENMESH_GENERATOR_MODELS: model 'made-up'",
        "does not list 'made-up', which has a, b",
    ),
    "a wrong key": (replying(401, {}), "EVENMESH_GENERATOR_MODELS: model 'made-up'", "REMOTE_API_KEY"),
    "no such path": (replying(404, {}), "EVENMESH_GENERATOR_MODELS: model 'made-up'", "REMOTE_URLS"),
    "a page": (replying(200, "<html>"), "EVENMESH_GENERATOR_MODELS: model 'made-up'", "not JSON"),
    "never ready": (replying(503, ""), "EVENMESH_GENERATOR_MODELS: model 'made-up'", "REMOTE_START_S=0.3 s"),
}


@pytest.mark.parametrize(("script", "begins", "words"), STARTS.values(), ids=STARTS)
async def test_a_start_that_cannot_be_says_why(script: Any, begins: str, words: str) -> None:
    async with serving(script) as server:
        with pytest.raises(SettingsError) as caught:
            async with scripted_openai.opened(server.url, remote_start_s=0.3):
                pass
    assert str(caught.value).startswith(begins)
    assert words in str(caught.value)


async def test_a_server_that_lists_and_does_not_write_is_said_so() -> None:
    async def lists_only(request: HttpRequest, reply: HttpReply) -> None:
        if request.path == "/v1/models":
            await reply.send(200, scripted_openai.models("made-up"))
        else:
            await reply.send(404, {"detail": "Not Found"})

    async with serving(lists_only) as server:
        with pytest.raises(SettingsError, match="Not Found"):
            async with scripted_openai.opened(server.url):
                pass


async def test_nobody_at_the_address_is_said_so() -> None:
    url = f"http://127.0.0.1:{reserve(scripted_openai)}/v1"
    with pytest.raises(SettingsError, match="cannot be reached"):
        async with scripted_openai.opened(url, remote_start_s=0.3):
            pass


async def test_an_unknown_template_is_refused_at_the_start() -> None:
    async with serving(scripted_openai.made_up()) as server:
        with pytest.raises(SettingsError, match="no-such"):
            async with scripted_openai.opened(server.url, source={"template": "no-such"}):
                pass


async def test_a_deadline_within_the_wait_for_a_place_is_kept() -> None:
    async with (
        serving(scripted_openai.made_up()) as server,
        scripted_openai.opened(server.url, remote_in_flight=1) as (model,),
    ):
        request = _request(max_new_tokens=4000)
        async with aclosing(model.generate_stream(request, Cancellation())) as parts:
            await anext(parts)
            with pytest.raises(DeadlineExceeded):
                await model.generate(request, Cancellation(Deadline.after(0.2)))
