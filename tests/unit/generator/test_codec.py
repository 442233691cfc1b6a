"""Every bound of the generator's proto, at its edge and past it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from evenmesh.common.v1 import common_pb2
from evenmesh.generator.v1 import generator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField, MeshError, Unavailable
from evenmesh_generator import codec
from evenmesh_generator.domain import (
    Answer,
    Augmentation,
    Best,
    Cost,
    Decoding,
    FinishReason,
    GenerationRequest,
    ModelDescription,
    Normalization,
    Passage,
    RelevanceRequest,
    Span,
    Turn,
)
from evenmesh_generator.engine import GeneratedAnswer, RelevanceScores

MODEL = ModelDescription(
    "m",
    "v1",
    "e",
    "Arch",
    "cpu",
    "float32",
    True,
    512,
    100,
    (Augmentation.FUSION_IN_DECODER, Augmentation.IN_PROMPT),
    runtime="r",
)
TURNS_OUT_OF_BOUNDS: list[tuple[dict[str, object], str]] = [
    ({"turns": [pb.Turn(question="q")] * 101}, "turns"),
    ({"turns": [pb.Turn(question="q"), pb.Turn(question=" ")]}, "turns[1].question"),
    ({"turns": [pb.Turn(question="x" * 8193)]}, "turns[0].question"),
    ({"turns": [pb.Turn(question="q", answer="x" * 65_537)]}, "turns[0].answer"),
]


def _passage(id_: str = "a", text: str = "text") -> common_pb2.Passage:
    return common_pb2.Passage(id=id_, text=text)


def _decode(**fields: object) -> GenerationRequest:
    return codec.decode_request(
        pb.GenerateRequest(**{"question": "q", **fields}),  # type: ignore[arg-type]
        default_beams=1,
    )


def test_an_empty_request_takes_the_defaults() -> None:
    assert _decode() == GenerationRequest("q", (), "", None, "", Decoding(1, 64, 0.0, 1.0, 0))
    batch = codec.decode_batch(pb.GenerateBatchRequest(requests=[pb.GenerateRequest(question="q")]))
    assert isinstance(batch[0], GenerationRequest)
    assert batch[0].decoding.num_beams == 4


def test_a_full_request() -> None:
    assert _decode(
        passages=[common_pb2.Passage(id="a", title="t", text="x", attributes={"provider": "p"})],
        model="m",
        augmentation=pb.AUGMENTATION_FUSION_IN_DECODER,
        template="ra-x",
        decoding=pb.Decoding(
            num_beams=16, max_new_tokens=4096, top_p=0.5, seed=2**63 - 1, stop=["\n", "User:"]
        ),
        turns=[pb.Turn(question="q1", answer="a1"), pb.Turn(question="q2")],
        contextual_question="q x",
    ) == GenerationRequest(
        "q",
        (Passage("a", "t", "x"),),
        "m",
        Augmentation.FUSION_IN_DECODER,
        "ra-x",
        Decoding(16, 4096, 0.0, 0.5, 2**63 - 1, ("\n", "User:")),
        (Turn("q1", "a1"), Turn("q2", "")),
        contextual_question="q x",
    )


def test_as_many_and_as_long_turns_as_there_may_be() -> None:
    turns = [pb.Turn(question="x" * 8192, answer="x" * 65_536), *[pb.Turn(question="q")] * 99]
    assert len(_decode(turns=turns).turns) == 100


def test_sampling_has_one_beam_whatever_the_default() -> None:
    message = pb.GenerateRequest(question="q", decoding=pb.Decoding(temperature=0.5, seed=3))
    assert codec.decode_request(message, default_beams=4).decoding == Decoding(1, 64, 0.5, 1.0, 3)


@pytest.mark.parametrize("name", sorted(set(pb.Augmentation.keys()) - {"AUGMENTATION_UNSPECIFIED"}))
def test_every_augmentation_has_a_meaning(name: str) -> None:
    augmentation = _decode(augmentation=pb.Augmentation.Value(name)).augmentation
    assert augmentation is Augmentation[name.removeprefix("AUGMENTATION_")]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"question": ""}, "question"),
        ({"question": " \n\t"}, "question"),
        ({"question": "x" * 8193}, "question"),
        ({"passages": [_passage(str(at)) for at in range(101)]}, "passages"),
        ({"passages": [_passage("a"), _passage("a")]}, "passages[1].id"),
        ({"passages": [_passage("")]}, "passages[0].id"),
        ({"passages": [_passage("a\n")]}, "passages[0].id"),
        ({"passages": [_passage("a", "")]}, "passages[0].text"),
        ({"passages": [_passage("a", "x" * 65_537)]}, "passages[0].text"),
        ({"model": "x" * 257}, "model"),
        ({"template": "x" * 257}, "template"),
        ({"contextual_question": "x" * 8193}, "contextual_question"),
        ({"augmentation": 99}, "augmentation"),
        ({"decoding": pb.Decoding(num_beams=0)}, "decoding.num_beams"),
        ({"decoding": pb.Decoding(num_beams=17)}, "decoding.num_beams"),
        ({"decoding": pb.Decoding(max_new_tokens=0)}, "decoding.max_new_tokens"),
        ({"decoding": pb.Decoding(max_new_tokens=4097)}, "decoding.max_new_tokens"),
        ({"decoding": pb.Decoding(temperature=-0.1)}, "decoding.temperature"),
        ({"decoding": pb.Decoding(temperature=10.1)}, "decoding.temperature"),
        ({"decoding": pb.Decoding(temperature=math.nan)}, "decoding.temperature"),
        ({"decoding": pb.Decoding(temperature=math.inf)}, "decoding.temperature"),
        ({"decoding": pb.Decoding(top_p=0.0)}, "decoding.top_p"),
        ({"decoding": pb.Decoding(stop=["\n", ""])}, "decoding.stop[1]"),
        ({"decoding": pb.Decoding(stop=["x" * 129])}, "decoding.stop[0]"),
        ({"decoding": pb.Decoding(stop=["x"] * 9)}, "decoding.stop"),
        ({"decoding": pb.Decoding(top_p=1.1)}, "decoding.top_p"),
        ({"decoding": pb.Decoding(top_p=math.nan)}, "decoding.top_p"),
        ({"decoding": pb.Decoding(seed=2**63)}, "decoding.seed"),
        ({"decoding": pb.Decoding(num_beams=2, temperature=1.0)}, "decoding.num_beams"),
        *TURNS_OUT_OF_BOUNDS,
    ],
)
def test_out_of_bounds(fields: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        _decode(**fields)
    assert caught.value.field == field
    (item,) = codec.decode_batch(
        pb.GenerateBatchRequest(requests=[pb.GenerateRequest(**{"question": "q", **fields})])  # type: ignore[arg-type]
    )
    assert isinstance(item, InvalidField)
    assert item.field == field


@pytest.mark.parametrize("count", [0, 257])
def test_size_of_a_batch(count: int) -> None:
    with pytest.raises(InvalidField, match="must be 1 to 256 requests") as caught:
        codec.decode_batch(pb.GenerateBatchRequest(requests=[pb.GenerateRequest(question="q")] * count))
    assert caught.value.field == "requests"


def test_judgements() -> None:
    message = pb.ScoreRelevanceRequest(question="q", passages=[_passage()], model="m")
    wanted = RelevanceRequest("q", (Passage("a", "", "text"),), Normalization.TRUE_FALSE)
    assert codec.decode_judgement(message) == (wanted, "m", None)
    message.normalization = pb.ScoreRelevanceRequest.NORMALIZATION_VOCABULARY
    message.template = "rankrag-context-ranking-conversation"
    message.turns.add(question="q1", answer="a1")
    message.top_k = 1
    request, _, best = codec.decode_judgement(message)
    assert best == Best(1, 0.0)
    message.tolerance = 1.0
    assert codec.decode_judgement(message)[2] == Best(1, 1.0)
    assert request.normalization is Normalization.VOCABULARY
    assert (request.template, request.turns) == ("rankrag-context-ranking-conversation", (Turn("q1", "a1"),))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"question": ""}, "question"),
        ({"passages": []}, "passages"),
        ({"passages": [_passage(str(at)) for at in range(1001)]}, "passages"),
        ({"passages": [_passage("a"), _passage("b"), _passage("a")]}, "passages[2].id"),
        ({"normalization": 99}, "normalization"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 2}, "top_k"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"top_k": 1, "tolerance": 1.5}, "tolerance"),
        ({"top_k": 1, "tolerance": math.nan}, "tolerance"),
        ({"model": "x" * 257}, "model"),
        ({"template": "x" * 257}, "template"),
        *TURNS_OUT_OF_BOUNDS,
    ],
)
def test_judgements_out_of_bounds(fields: dict[str, object], field: str) -> None:
    message = pb.ScoreRelevanceRequest(**{"question": "q", "passages": [_passage()], **fields})  # type: ignore[arg-type]
    with pytest.raises(InvalidField) as caught:
        codec.decode_judgement(message)
    assert caught.value.field == field


def test_answers_on_the_wire() -> None:
    cost = Cost(0.001, 0.25, 1.5, 8, 4, 16)
    answer = Answer("text", FinishReason.LENGTH, 12, 3, -4.5, 2, 1, 5, cut_question=True, cost=cost)
    assert codec.encode_answer(GeneratedAnswer(answer, MODEL)) == pb.Answer(
        text="text",
        finish_reason=pb.Answer.FINISH_REASON_LENGTH,
        prompt_tokens=12,
        completion_tokens=3,
        log_probability=-4.5,
        model="m",
        model_version="v1",
        engine="e",
        dropped_passages=2,
        cut_passages=1,
        dropped_turns=5,
        cut_question=True,
        cost=pb.Cost(
            queue_ms=0.001 * 1e3,
            first_token_ms=0.25 * 1e3,
            total_ms=1.5 * 1e3,
            computed_tokens=8,
            reused_tokens=4,
            batch_rows=16,
        ),
    )


def test_a_span_and_a_confidence_on_the_wire() -> None:
    answer = Answer("text", FinishReason.STOP, 12, 3, -4.5, confidence=0.25, span=Span(3, 0, 4))
    message = codec.encode_answer(GeneratedAnswer(answer, MODEL))
    assert (message.confidence, message.span) == (0.25, pb.Span(passage=3, start=0, end=4))
    other = codec.encode_answer(GeneratedAnswer(Answer("t", FinishReason.STOP, 1, 1, -1.0), MODEL))
    assert not other.HasField("confidence")
    assert not other.HasField("span")


def test_a_passage_of_a_hundred_thousand_characters_is_refused_by_name() -> None:
    request = pb.GenerateRequest(question="q")
    request.passages.add(id="short", text="a")
    request.passages.add(id="long", text="a" * 100_000)
    with pytest.raises(InvalidField, match="65536") as refused:
        codec.decode_request(request, default_beams=1)
    assert refused.value.field.startswith("passages[1]")


def test_the_version_that_answered_wins_over_the_one_described() -> None:
    answer = Answer("text", FinishReason.STOP, 12, 3, -4.5, model_version="v2")
    assert codec.encode_answer(GeneratedAnswer(answer, MODEL)).model_version == "v2"


def test_results_on_the_wire() -> None:
    outcomes: list[GeneratedAnswer | MeshError] = [
        Unavailable("GONE", "away"),
        GeneratedAnswer(
            Answer("t", FinishReason.STOP, 9, 1, -1.0, cost=Cost(computed_tokens=7, reused_tokens=2)),
            MODEL,
            written_tokens=1,
        ),
        GeneratedAnswer(
            Answer("t", FinishReason.STOP, 9, 1, -1.0, cost=Cost(reused_tokens=9)), MODEL, reused=True
        ),
    ]
    response = codec.encode_results(outcomes)
    first, second, third = response.results
    assert (first.error.code, first.error.reason, first.error.message) == ("UNAVAILABLE", "GONE", "away")
    assert second.answer.finish_reason == pb.Answer.FINISH_REASON_STOP
    assert third.answer.text == "t"
    assert response.cost == pb.BatchCost(
        computed_answers=1, reused_answers=1, computed_tokens=7, reused_tokens=2 + 9, written_tokens=1
    )


def test_judgements_on_the_wire() -> None:
    response = codec.encode_judgement(RelevanceScores([0.25, 1.0], MODEL))
    assert (list(response.probabilities), response.model, response.model_version) == ([0.25, 1.0], "m", "v1")
    assert not response.unjudged
    assert not response.HasField("unjudged_at_most")


def test_judgements_of_some_on_the_wire() -> None:
    response = codec.encode_judgement(RelevanceScores([0.25, 1.0], MODEL, 2))
    assert list(response.probabilities[:2]) == [0.25, 1.0]
    assert all(map(math.isnan, response.probabilities[2:]))
    assert (list(response.unjudged), response.unjudged_at_most) == ([2, 3], 1.0)


def test_models_on_the_wire() -> None:
    other = replace(MODEL, name="other")
    response = codec.encode_models([MODEL, other], {"other"})
    assert [model.is_default for model in response.models] == [True, False]
    assert [model.unavailable for model in response.models] == [False, True]
    assert list(response.models[0].augmentations) == [
        pb.AUGMENTATION_FUSION_IN_DECODER,
        pb.AUGMENTATION_IN_PROMPT,
    ]
    assert (response.models[0].max_input_tokens, response.models[0].scores_relevance) == (512, True)
    assert (response.models[0].max_new_tokens, response.models[0].runtime) == (100, "r")
