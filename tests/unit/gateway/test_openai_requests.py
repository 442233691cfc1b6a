"""What clients of OpenAI's API send, read as an ask."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.message import Message

from evenmesh.generator.v1.generator_service_pb2 import Turn
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.reranker.v1.reranker_service_pb2 import RerankRequest as RerankMessage
from evenmesh.reranker.v1.reranker_service_pb2 import RerankResponse as RerankReply
from evenmesh.wire.errors import InvalidField, NotFound
from evenmesh_gateway.json_messages import from_value
from evenmesh_gateway.openai import pipelines, requests
from evenmesh_gateway.openai.embeddings import EmbeddingRequest
from evenmesh_gateway.openai.requests import ChatMessage, ChatRequest, ResponseRequest, ask_of, read
from evenmesh_gateway.openai.rerank import RerankRequest, message_of, ranking, renaming


def chat(*messages: tuple[str, Any], **fields: Any) -> tuple[pb.AskRequest, list[str]]:
    said = [{"role": role, "content": content} for role, content in messages or [("user", "q")]]
    return ask_of(read(ChatRequest, {"messages": said, **fields}))


def respond(**fields: Any) -> tuple[pb.AskRequest, list[str]]:
    return ask_of(read(ResponseRequest, {"input": "q", **fields}))


def test_one_message_is_the_question_and_nothing_else() -> None:
    assert chat(("user", "How often?")) == (pb.AskRequest(question="How often?"), [])
    assert ask_of(read(ResponseRequest, {"input": "q"})) == (pb.AskRequest(question="q"), [])


def test_messages_before_the_last_are_turns() -> None:
    request, ignored = chat(
        ("system", "Be brief."),
        ("assistant", "Hello! How can I help?"),
        ("user", "How do I oil a chain?"),
        ("assistant", "By hand."),
        ("assistant", "Slowly."),
        ("user", "And"),
        ("user", [{"type": "text", "text": "a zip"}, {"type": "text", "text": "per?"}]),
        ("assistant", None),
        ("user", "How often?"),
    )
    assert request.question == "How often?"
    assert list(request.turns) == [
        Turn(question="How do I oil a chain?", answer="By hand.\nSlowly."),
        Turn(question="And\na zipper?", answer=""),
    ]
    assert ignored == ["messages[0]", "messages[1]"]


def test_many_messages_of_the_model_are_put_together_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was added to those before it: 199 messages, 19 MB in all, took five seconds."""
    written = 0

    class CountedTurn:
        def __init__(self, question: str = "", answer: str = "") -> None:
            self.question = question
            self.answer = answer

        def __setattr__(self, name: str, value: str) -> None:
            nonlocal written
            written += len(value)
            super().__setattr__(name, value)

    monkeypatch.setattr(requests, "Turn", CountedTurn)
    said = ["x" * 1000] * 199
    messages = [ChatMessage(role="user", content="q")]
    messages += [ChatMessage(role="assistant", content=one) for one in said]
    _, turns = requests._talk([*messages, messages[0]], "messages")
    assert turns[0].answer == "\n".join(said)
    assert written == len("q") + len(turns[0].answer)


def test_the_model_names_a_pipeline() -> None:
    request, _ = chat(model="evenmesh/demo/-/rankrag/meta/llama")
    assert request == pb.AskRequest(question="q", collection="demo", reranker="rankrag", model="meta/llama")
    assert chat(model="evenmesh")[0] == pb.AskRequest(question="q")
    for name in ("gpt-4o", "evenmesh/", "evenmesh//dense", "Evenmesh"):
        with pytest.raises(NotFound):
            chat(model=name)
    with pytest.raises(InvalidField, match=r"evenmesh\.collection"):
        chat(model="evenmesh/demo", evenmesh={"collection": "other"})
    with pytest.raises(InvalidField, match=r"evenmesh\.candidates"):
        chat(model="evenmesh/demo", evenmesh={"candidates": {"passages": []}})


def test_pipelines_are_the_product_of_their_parts_up_to_a_bound() -> None:
    few = pipelines.names(["a"], ["bm25", "dense"], ["m"])
    assert few[:2] == ["evenmesh", "evenmesh/a"]
    assert len(few) == 2 + 2 * 3
    assert "evenmesh/a/dense/none/m" in few
    many = pipelines.names(map(str, range(10_000)), ["bm25"], ["m"])
    assert len(many) == pipelines.MAX_LISTED
    for name in few:
        pipelines.choose(pb.AskRequest(), name)
        assert pipelines.made_of(name, ["a"], ["bm25", "dense"], ["m"])
    assert pipelines.made_of("evenmesh/a/-/none", ["a"], [], [])
    for name in ("evenmesh/b", "evenmesh/a/splade", "evenmesh/a/-/best", "evenmesh/-/-/-/n", "gpt-4o"):
        assert not pipelines.made_of(name, ["a"], ["bm25", "dense"], ["m"])


def test_every_field_of_an_ask_can_be_given_in_either_case() -> None:
    request, _ = chat(
        seed=7,
        temperature=0.5,
        max_tokens=100_000,
        evenmesh={
            "sampling": {"alpha": 2, "numRankings": 8},
            "k": 3,
            "skip_observation": True,
            "labels": {"hasUseful": True, "usefulPassageIds": ["p1"]},
            "filter": {"conditions": [{"attribute": "provider", "anyOf": {"values": ["Co-op"]}}]},
        },
    )
    want = pb.AskRequest(question="q", k=3, skip_observation=True)
    want.sampling.alpha, want.sampling.num_rankings, want.sampling.seed = 2, 8, 7
    want.decoding.temperature, want.decoding.seed, want.decoding.max_new_tokens = 0.5, 7, 4096
    want.labels.has_useful = True
    want.labels.useful_passage_ids.append("p1")
    want.filter.conditions.add(attribute="provider").any_of.values.append("Co-op")
    assert request == want


def test_a_seed_is_that_of_whatever_is_drawn_and_has_none() -> None:
    request, _ = chat(seed=7, temperature=0.5, evenmesh={"sampling": {"seed": "3"}})
    assert (request.sampling.seed, request.decoding.seed) == (3, 7)
    with pytest.raises(InvalidField, match=r"seed: is given by evenmesh\.sampling\.seed too"):
        chat(seed=7, evenmesh={"sampling": {"seed": "3"}})
    assert not chat(seed=7)[0].HasField("sampling")  # what is not drawn needs none


def test_what_has_no_effect_is_listed_and_what_would_be_missed_is_refused() -> None:
    _, ignored = chat(user="me", store=False, n=1, presence_penalty=0, tools=[], logprobs=False, stop=None)
    assert ignored == ["user"]
    assert chat(seed=7)[1] == ["seed"]
    assert chat(seed=7, temperature=0.5)[1] == []
    request, ignored = chat(max_tokens=9, max_completion_tokens=8)
    assert (request.decoding.max_new_tokens, ignored) == (8, ["max_tokens"])
    for name, value in {
        "tools": [{"type": "function"}],
        "n": 2,
        "top_logprobs": 2,
        "logprobs": True,
        "response_format": {"type": "json_object"},
        "presence_penalty": 0.5,
        "nonsense": 1,
    }.items():
        with pytest.raises(InvalidField) as refused:
            chat(**{name: value})
        assert refused.value.field == name


@pytest.mark.parametrize(
    ("stop", "found"),
    [(None, []), ([], []), ("\n", ["\n"]), (["Observation:", "\n\n"], ["Observation:", "\n\n"])],
)
def test_texts_that_stop_an_answer_are_of_its_decoding(stop: Any, found: list[str]) -> None:
    request, ignored = chat(stop=stop)
    assert (list(request.decoding.stop), ignored) == (found, [])


@pytest.mark.parametrize("stop", [["a"] * 9, 3, [3], {"a": 1}])
def test_more_or_other_texts_to_stop_at_are_refused(stop: Any) -> None:
    with pytest.raises(InvalidField, match="stop"):
        chat(stop=stop)


def test_texts_to_stop_at_are_given_once() -> None:
    with pytest.raises(InvalidField, match=r"stop: is given by evenmesh\.decoding\.stop too"):
        chat(stop="a", evenmesh={"decoding": {"stop": ["b"]}})


def test_what_clients_send_by_default_asks_for_nothing() -> None:
    _, ignored = chat(stream_options={"include_usage": True, "include_obfuscation": False})
    assert ignored == []
    _, ignored = chat(stream_options={"include_usage": None, "continuous_usage_stats": True})
    assert ignored == ["stream_options.continuous_usage_stats"]
    _, ignored = respond(text={"format": {"type": "text"}}, truncation="disabled", include=[], top_logprobs=0)
    assert ignored == []
    _, ignored = respond(
        text={"verbosity": "low"},  # LangChain, Vercel's AI SDK
        include=["reasoning.encrypted_content"],  # Vercel's AI SDK: store: false
        stream_options={"include_obfuscation": False},
        truncation="auto",
        prompt_cache_retention="24h",
    )
    assert ignored == ["text.verbosity", "include", "truncation", "prompt_cache_retention"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tools": [{"type": "function"}]}, "tools: .* call the mesh as a tool"),
        ({"tool_choice": "required"}, "tool_choice: .* call the mesh as a tool"),
        ({"stop": ["Observation:"]}, "stop: .* leave it out"),  # responses have none
        ({"n": 2}, r"n: must be 1 here: evenmesh\.sampling\.num_rankings"),
        ({"previous_response_id": "resp_1"}, "previous_response_id: .* send the earlier messages, too"),
        ({"text": {"format": {"type": "json_object"}, "verbosity": "low"}}, "text: .* plain text"),
        ({"include": ["message.output_text.logprobs"]}, "include: .* leave it out"),
        ({"include": [{}]}, "include: .* leave it out"),
        ({"web_search_options": {}}, "web_search_options: .* leave it out"),
    ],
)
def test_what_is_refused_says_what_to_do(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidField, match=said):
        respond(**fields)


def test_members_of_messages_without_an_effect_are_listed() -> None:
    answered = {
        "role": "assistant",
        "content": "a",
        "annotations": [{"type": "url_citation"}],
        "refusal": None,
    }
    asked = {"role": "user", "name": "ann", "content": "q"}
    _, ignored = chat(messages=[asked, {**answered, "tool_calls": [{"id": "1"}], "audio": None}, asked])
    assert ignored == ["messages[0].name", "messages[1].tool_calls", "messages[2].name"]


@pytest.mark.parametrize(
    ("item", "said"),
    [
        # What @ai-sdk/openai 3.0.141 sends of an earlier turn.
        (
            {"type": "item_reference", "id": "msg_1"},
            r"input\[1\]: .* nothing is stored here: .* store: false",
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": "o"},
            r"input\[1\]: must be a message, .* 'function_call_output'",
        ),
        ({"type": "message", "id": "m"}, r"input\[1\]\.role"),
    ],
)
def test_items_of_an_input_that_are_no_messages_say_what_to_do(item: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidField, match=said):
        respond(input=[{"role": "user", "content": "q"}, item, {"role": "user", "content": "q"}])


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"n": 0}, "n"),
        ({"messages": [{"role": "user", "content": "q"}] * 202}, "messages"),
        ({"temperature": 11}, "temperature"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"model": ""}, "model"),
        ({"evenmesh": []}, "evenmesh"),
        ({"evenmesh": {"sampling": {"alpha": "x"}}}, "evenmesh.sampling.alpha"),
        ({"evenmesh": {"question": "other"}}, "evenmesh.question"),
        ({"evenmesh": {"turns": [{"question": "other"}]}}, "evenmesh.turns"),
        ({"temperature": 0.5, "evenmesh": {"decoding": {"temperature": 1}}}, "temperature"),
        ({"stream": "no"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream": True, "stream_options": {"include_usage": "no"}}, "stream_options.include_usage"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], field: str | None) -> None:
    with pytest.raises(InvalidField) as refused:
        ask_of(read(ChatRequest, {"messages": [{"role": "user", "content": "q"}], **fields}))
    assert field is None or refused.value.field == field


@pytest.mark.parametrize(
    ("sent", "known"),
    [
        ("reranker", "model"),
        ("passages[1].text", "documents[1].text"),
        ("passages[0].text", "documents[0]"),
        ("passages", "documents"),
        ("top_k", "top_n"),
        ("query", "query"),
        ("first_stage.scores", "evenmesh.first_stage.scores"),
    ],
)
def test_errors_of_the_reranker_name_what_the_caller_sent(sent: str, known: str) -> None:
    asked = read(RerankRequest, {"model": "nope", "query": "q", "documents": ["", {"text": ""}]})
    with pytest.raises(InvalidField) as refused, renaming(asked):
        raise InvalidField(sent, f"{sent}: must be another")
    assert (refused.value.field, refused.value.message) == (known, "must be another")


def test_parameters_of_rerank_without_an_effect_are_listed_and_others_refused() -> None:
    given = {"query": "q", "documents": ["a", {"text": "b", "url": "u"}]}
    # What clients of Cohere and Jina send.
    asked = read(RerankRequest, {**given, "max_tokens_per_doc": 512, "priority": 1, "rank_fields": ["text"]})
    message_of(asked)
    reply = RerankReply(order=[1, 0], scores=[0.1, 0.2])
    assert ranking(asked, reply, "id")["evenmesh"]["ignored"] == ["max_tokens_per_doc", "priority"]
    returned = ranking(read(RerankRequest, {**given, "return_documents": True}), reply, "id")["results"]
    assert [one["document"] for one in returned] == [{"text": "b", "url": "u"}, {"text": "a"}]
    for name, value in {"rank_fields": ["title"], "instruction": "i", "truncation": False}.items():
        with pytest.raises(InvalidField, match=f"{name}: is not supported here: leave it out"):
            message_of(read(RerankRequest, {**given, name: value}))
    with pytest.raises(InvalidField, match="truncate: is not supported here: leave it out"):
        read(EmbeddingRequest, {"input": "a", "truncate": "END"})


def test_documents_are_passages() -> None:
    given = {"query": "q", "documents": ["a", {"text": "b", "title": "t", "url": "u"}], "top_n": 5}
    request = message_of(read(RerankRequest, {**given, "model": "rankrag"}))
    assert [(one.id, one.title, one.text) for one in request.passages] == [("0", "", "a"), ("1", "t", "b")]
    assert (request.top_k, request.reranker) == (2, "rankrag")
    with pytest.raises(InvalidField, match=r"evenmesh\.query"):
        message_of(read(RerankRequest, {**given, "evenmesh": {"query": "other"}}))
    with pytest.raises(InvalidField):
        read(RerankRequest, {"query": "q", "documents": ["a"] * 1001})
    with pytest.raises(InvalidField, match="return_documents"):
        read(RerankRequest, {**given, "return_documents": "no"})


@pytest.mark.parametrize(
    ("kind", "value", "field"),
    [
        (EmbeddingRequest, {"input": []}, "input"),
        (EmbeddingRequest, {"input": ""}, "input"),
        (EmbeddingRequest, {"input": ["a", ""]}, "input"),
        (
            ChatRequest,
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages[0].content",
        ),
    ],
)
def test_an_error_names_a_field_and_no_type(kind: Any, value: Any, field: str) -> None:
    with pytest.raises(InvalidField) as refused:
        read(kind, value)
    assert str(refused.value.field).startswith(field)
    assert "str" not in str(refused.value.field)


@pytest.mark.parametrize(
    ("kind", "value", "field"),
    [
        (pb.AskRequest, {"candidates": {"passages": [{}] * 1_001}}, "evenmesh.candidates.passages"),
        (pb.AskRequest, {"turns": [{}] * 101}, "evenmesh.turns"),
        (RerankMessage, {"firstStage": {"scores": [1] * 1_001}}, "evenmesh.firstStage.scores"),
        (
            pb.AskRequest,
            {"candidates": {"passages": [{"attributes": {str(at): "" for at in range(10_000)}}]}},
            "evenmesh.candidates.passages[0].attributes",
        ),
    ],
)
def test_lists_beyond_their_bounds_are_refused_before_they_are_converted(
    kind: type[Message], value: object, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_format, "ParseDict", None)
    with pytest.raises(InvalidField, match=r"must be at most [\d,]+ (items|entries), has more") as refused:
        from_value(kind, value, "evenmesh")
    assert refused.value.field == field
