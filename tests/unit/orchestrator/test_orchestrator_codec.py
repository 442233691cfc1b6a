"""Bounds and defaults of orchestrator.proto of asks, and what is written to whom."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import grpc
import numpy as np
import pytest

from evenmesh.common.v1 import common_pb2
from evenmesh.common.v1.common_pb2 import Agent
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.generator.v1 import generator_service_pb2 as generator_pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from evenmesh.wire.errors import InvalidField, MeshError
from evenmesh_core.plackett_luce import Disparity, RelevanceLoss
from evenmesh_orchestrator import codec
from evenmesh_orchestrator.asks.request import Defaults, read_ask
from evenmesh_orchestrator.conversations.options import Options
from evenmesh_orchestrator.domain import (
    Action,
    Answered,
    Contexts,
    Degraded,
    Event,
    Failed,
    Finished,
    Observation,
    Pool,
    Ranked,
    Retrieved,
    Sampling,
    Stage,
)
from tests.unit.orchestrator.fakes import answer, ask, passage


def _read(request: pb.AskRequest) -> object:
    return read_ask(request, Defaults("demo", "rankrag"))


def _candidates(n: int) -> retriever_pb.InlineCandidates:
    return retriever_pb.InlineCandidates(passages=[passage(f"p{i}") for i in range(n)])


def test_defaults_are_filled_in() -> None:
    read = read_ask(pb.AskRequest(question="Which river?"), Defaults("demo", "rankrag"))
    assert (read.collection, read.candidates) == ("demo", None)
    assert (read.reranker, read.names_reranker) == ("rankrag", False)
    assert (read.depth, read.k, read.rerank_depth, read.num_answers) == (100, 5, 20, 1)
    assert read.sampling is None
    assert read.run_id == f"asks-{datetime.now(UTC):%Y-%m-%d}"
    assert read.query_id == hashlib.sha256(b"Which river?").hexdigest()[:16]
    assert (read.observe, read.want_report) == (True, False)
    assert not read.labels.has_useful
    assert read.id != ask().id


def test_what_is_searched_for_and_the_prompt_can_be_others_than_the_questions() -> None:
    read = ask(search="oil", template="lamp-4")
    assert (read.search, read.search_text, read.template) == ("oil", "oil", "lamp-4")
    assert codec.retrieve_request(read, k=5, sampling=None).query == "oil"
    assert ask().search_text == ask().question
    with pytest.raises(InvalidField, match="search"):
        ask(search=" ")
    with pytest.raises(InvalidField, match="search"):
        ask(search="x" * 8193)


def test_words_of_earlier_questions_are_searched_for_and_the_model_reads_the_turns() -> None:
    turns = [
        generator_pb.Turn(question="How do I oil a chain?", answer="By hand."),
        generator_pb.Turn(question="And a zipper?", answer=""),
    ]
    read = ask(question="How often?", turns=turns)
    # Newest first, without function words and what the question has already.
    assert read.search_text == "How often? zipper oil chain"
    assert list(read.turns) == turns
    assert ask(question="How often?", turns=turns, search="oil").search_text == "oil"
    assert ask(question="zipper", turns=turns[1:]).search == ""


def test_an_ask_searches_for_words_of_as_many_turns_as_a_conversation() -> None:
    turns = [generator_pb.Turn(question=f"And w{place}?") for place in range(12)]
    words = " ".join(f"w{place}" for place in range(11, 1, -1))
    read = ask(question="How often?", turns=turns)
    assert read.search_text == f"How often? {words}"
    assert list(read.turns) == turns[2:]
    assert list(ask(question="How often?", turns=turns, template="t").turns) == turns
    assert Options().history_turns == 10


def test_the_retriever_has_the_question_again_where_more_words_were_added() -> None:
    """The reranker reads the text, and a web search takes it as it is: both have the question once."""
    turns = [generator_pb.Turn(question="And zipper oil chain?")]
    one = ask(question="How often?", turns=turns)
    text = "How often? zipper oil chain"
    assert codec.retrieve_request(one, k=5, sampling=None).query == f"How often? {text}"
    assert codec.rerank_request(one, []).query == text
    web = replace(one, web="news")
    assert codec.retrieve_request(web, k=5, sampling=None).query == text
    own = ask(question="How often?", turns=turns, search=text)
    assert codec.retrieve_request(own, k=5, sampling=None).query == text
    assert codec.retrieve_request(ask(question="How often?"), k=5, sampling=None).query == "How often?"


def test_a_retriever_receives_what_asks_before_what_is_said() -> None:
    """A web search, and a caller that names a text, take it as it is; the reranker reads the question."""
    question = "It rained. How often should I oil a chain?"
    one = ask(question=question)
    assert codec.retrieve_request(one, k=5, sampling=None).query == "How often should I oil a chain? rained"
    assert codec.rerank_request(one, []).query == question
    assert codec.retrieve_request(replace(one, web="searx"), k=5, sampling=None).query == question
    own = ask(question=question, search=question)
    assert codec.retrieve_request(own, k=5, sampling=None).query == question


def test_the_model_has_the_question_with_words_of_earlier_turns() -> None:
    turns = [generator_pb.Turn(question="And zipper oil chain?")]
    prompt = ask(question="How often?", turns=turns).prompt([])
    assert (prompt.question, prompt.contextual_question) == ("How often?", "How often? zipper oil chain")
    assert ask(question="How often?").prompt([]).contextual_question == ""
    # What the caller searches for need not be a question.
    assert ask(question="How often?", turns=turns, search="oil").prompt([]).contextual_question == ""


@pytest.mark.parametrize(
    ("turns", "field"),
    [
        ([{"question": " "}], "turns[0].question"),
        ([{"question": "q"}, {"question": "x" * 8193}], "turns[1].question"),
        ([{"question": "q", "answer": "ü" * 32769}], "turns[0].answer"),
        ([{"question": "q"}] * 101, "turns"),
    ],
)
def test_earlier_turns_are_bounded(turns: list[dict[str, str]], field: str) -> None:
    with pytest.raises(InvalidField) as refused:
        _read(pb.AskRequest(question="q", turns=[generator_pb.Turn(**one) for one in turns]))
    assert refused.value.field == field


def test_sampling_has_defaults_of_its_own() -> None:
    read = ask(sampling={"num_rankings": 7, "seed": 0})
    assert read.sampling == Sampling(alpha=1.0, num_rankings=7, seed=0)
    assert (read.num_answers, read.drawn_seed) == (7, None)


def test_what_an_ask_draws_without_a_seed_is_drawn_anew_and_said() -> None:
    reads = [ask(sampling={}, decoding={"temperature": 1}) for _ in range(8)]
    assert len({one.drawn_seed for one in reads}) > 1
    for one in reads:
        assert one.sampling is not None
        assert one.sampling.seed == one.decoding.seed == one.drawn_seed
    words = ask(decoding={"temperature": 1})
    assert words.decoding.seed == words.drawn_seed
    of_the_rankings = ask(sampling={"seed": 5}, decoding={"temperature": 1})
    assert (of_the_rankings.decoding.seed, of_the_rankings.drawn_seed) == (5, None)
    of_its_own = ask(sampling={}, decoding={"temperature": 1, "seed": 7})
    assert of_its_own.sampling is not None
    assert of_its_own.sampling.seed == of_its_own.drawn_seed
    assert of_its_own.decoding.seed == 7
    assert ask().drawn_seed is None
    assert not ask().decoding.HasField("seed")


def test_a_target_leaves_the_dial_open() -> None:
    assert ask(sampling={"disparity": 0.3, "seed": 0}).sampling == Sampling(None, 1, 0, Disparity(0.3))
    assert ask(sampling={"relevance_loss": 0, "seed": 0}).sampling == Sampling(None, 1, 0, RelevanceLoss(0.0))


@pytest.mark.parametrize(
    ("n", "changes", "sizes"),
    [
        (3, {}, (3, 3, 3)),
        (200, {}, (200, 5, 20)),
        (3, {"depth": 50}, (3, 3, 3)),
        (10, {"k": 8}, (10, 8, 10)),
        (30, {"k": 25}, (30, 25, 25)),
    ],
)
def test_inline_candidates_bound_the_pool(
    n: int, changes: dict[str, int], sizes: tuple[int, int, int]
) -> None:
    read = ask(candidates=_candidates(n), **changes)
    assert (read.depth, read.k, read.rerank_depth) == sizes
    assert read.collection == ""


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({"depth": 10}, (10, 5, 10)),
        ({"depth": 3}, (3, 3, 3)),
        ({"k": 40}, (100, 40, 40)),
        ({"rerank_depth": 7}, (100, 5, 7)),
    ],
)
def test_sizes_fit_each_other(changes: dict[str, int], sizes: tuple[int, int, int]) -> None:
    read = ask(**changes)
    assert (read.depth, read.k, read.rerank_depth) == sizes


BAD: list[tuple[str, Callable[[], pb.AskRequest]]] = [
    ("question", lambda: pb.AskRequest()),
    ("question", lambda: pb.AskRequest(question=" \n")),
    ("question", lambda: pb.AskRequest(question="x" * 8193)),
    ("collection", lambda: pb.AskRequest(question="q", collection="No Such")),
    ("collection", lambda: pb.AskRequest(question="q", collection="")),
    ("candidates.passages", lambda: pb.AskRequest(question="q", candidates=_candidates(0))),
    ("candidates.passages", lambda: pb.AskRequest(question="q", candidates=_candidates(1001))),
    (
        "candidates.passages[1].id",
        lambda: pb.AskRequest(question="q", candidates={"passages": [passage("a"), passage("a")]}),
    ),
    (
        "candidates.passages[0].text",
        lambda: pb.AskRequest(question="q", candidates={"passages": [passage("a", "x" * 65_537)]}),
    ),
    ("retriever", lambda: pb.AskRequest(question="q", retriever="x" * 129)),
    ("reranker", lambda: pb.AskRequest(question="q", reranker="x\n")),
    ("model", lambda: pb.AskRequest(question="q", model="é" * 65)),
    ("depth", lambda: pb.AskRequest(question="q", depth=0)),
    ("depth", lambda: pb.AskRequest(question="q", depth=1001)),
    ("k", lambda: pb.AskRequest(question="q", k=0)),
    ("k", lambda: pb.AskRequest(question="q", k=101)),
    ("k", lambda: pb.AskRequest(question="q", k=11, depth=10)),
    ("k", lambda: pb.AskRequest(question="q", k=4, depth=10, candidates=_candidates(3))),
    ("rerank_depth", lambda: pb.AskRequest(question="q", rerank_depth=4)),
    ("rerank_depth", lambda: pb.AskRequest(question="q", rerank_depth=101)),
    ("fusion", lambda: pb.AskRequest(question="q", reranker="rankrag", fusion=-1)),
    ("fusion", lambda: pb.AskRequest(question="q", reranker="rankrag", fusion=10.5)),
    ("fusion", lambda: pb.AskRequest(question="q", reranker="rankrag", fusion=float("nan"))),
    ("fusion", lambda: pb.AskRequest(question="q", reranker="none", fusion=1)),
    ("sampling.alpha", lambda: pb.AskRequest(question="q", sampling={"alpha": -1})),
    ("sampling.alpha", lambda: pb.AskRequest(question="q", sampling={"alpha": float("nan")})),
    ("sampling.alpha", lambda: pb.AskRequest(question="q", sampling={"alpha": 101})),
    ("sampling.disparity", lambda: pb.AskRequest(question="q", sampling={"disparity": 1.01})),
    ("sampling.disparity", lambda: pb.AskRequest(question="q", sampling={"disparity": float("nan")})),
    ("sampling.disparity", lambda: pb.AskRequest(question="q", sampling={"disparity": 0.5, "alpha": 1})),
    ("sampling.relevance_loss", lambda: pb.AskRequest(question="q", sampling={"relevance_loss": -0.1})),
    (
        "sampling.relevance_loss",
        lambda: pb.AskRequest(question="q", sampling={"relevance_loss": 0, "disparity": 0}),
    ),
    (
        "sampling_stage",
        lambda: pb.AskRequest(
            question="q",
            reranker="rankrag",
            sampling={"disparity": 0.5},
            sampling_stage=pb.SAMPLING_STAGE_RETRIEVER,
        ),
    ),
    ("sampling.num_rankings", lambda: pb.AskRequest(question="q", sampling={"num_rankings": 0})),
    ("sampling.num_rankings", lambda: pb.AskRequest(question="q", sampling={"num_rankings": 1001})),
    ("sampling.seed", lambda: pb.AskRequest(question="q", sampling={"seed": 2**63})),
    ("sampling_stage", lambda: pb.AskRequest.FromString(b"\x0a\x01q\x50\x11")),
    (
        "sampling_stage",
        lambda: pb.AskRequest(
            question="q", reranker="none", sampling={}, sampling_stage=pb.SAMPLING_STAGE_RERANKER
        ),
    ),
    ("augmentation", lambda: pb.AskRequest.FromString(b"\x0a\x01q\x60\x11")),
    ("decoding.num_beams", lambda: pb.AskRequest(question="q", decoding={"num_beams": 17})),
    ("decoding.max_new_tokens", lambda: pb.AskRequest(question="q", decoding={"max_new_tokens": 0})),
    ("decoding.temperature", lambda: pb.AskRequest(question="q", decoding={"temperature": float("nan")})),
    ("decoding.top_p", lambda: pb.AskRequest(question="q", decoding={"top_p": 0})),
    ("decoding.stop[1]", lambda: pb.AskRequest(question="q", decoding={"stop": ["\n", "x" * 129]})),
    ("decoding.stop", lambda: pb.AskRequest(question="q", decoding={"stop": ["x"] * 9})),
    ("decoding.seed", lambda: pb.AskRequest(question="q", decoding={"seed": 2**63})),
    ("num_answers", lambda: pb.AskRequest(question="q", num_answers=2)),
    ("num_answers", lambda: pb.AskRequest(question="q", num_answers=4, sampling={"num_rankings": 3})),
    ("agent.task_id", lambda: pb.AskRequest(question="q", agent={"task_id": "x" * 129})),
    ("agent.model_id", lambda: pb.AskRequest(question="q", agent={"model_id": "x" * 129})),
    ("run_id", lambda: pb.AskRequest(question="q", run_id="x" * 129)),
    ("query_id", lambda: pb.AskRequest(question="q", query_id="x" * 129)),
    (
        "labels.useful_passage_ids[0]",
        lambda: pb.AskRequest(question="q", labels={"has_useful": True, "useful_passage_ids": [""]}),
    ),
    ("labels.has_useful", lambda: pb.AskRequest(question="q", labels={"useful_passage_ids": ["a"]})),
    ("labels.metric", lambda: pb.AskRequest.FromString(b"\x0a\x01q\x92\x01\x02\x20\x11")),
]  # fmt: skip


@pytest.mark.parametrize(("field", "request_"), BAD, ids=[f"{i}-{field}" for i, (field, _) in enumerate(BAD)])
def test_a_broken_bound_names_its_field(field: str, request_: Callable[[], pb.AskRequest]) -> None:
    with pytest.raises(InvalidField) as caught:
        _read(request_())
    assert caught.value.field == field


def test_references_that_take_too_long_to_score_are_refused() -> None:
    long = evaluator_pb.Labels(references=["x" * 16_384] * 17)
    with pytest.raises(InvalidField, match=r"labels\.references.*262,144 characters together"):
        ask(labels=long)
    # Each of 1,000 answers alone, against 4 references of 2,000 characters. 256 tokens are 1,024 characters, 513 words
    # at most: 100 ns * 9,024 + 600 ns * 4 + 16 ns * 513 * (4,004 // 64 + 4) = 1.4 ms. 4,096 tokens: 8,193 words, 11 ms.
    labels = evaluator_pb.Labels(references=["x" * 2000] * 4, metric=evaluator_pb.UTILITY_METRIC_ROUGE_L)
    sampling = {"num_rankings": 1000}
    ask(labels=labels, sampling=sampling)
    with pytest.raises(InvalidField, match=r"labels\.references.*1,000 answers.*11 CPU seconds"):
        ask(labels=labels, sampling=sampling, decoding={"max_new_tokens": 4096})
    ask(labels=labels, sampling=sampling, decoding={"max_new_tokens": 4096}, num_answers=100)


def test_the_retriever_is_asked_for_a_collection_or_for_candidates() -> None:
    request = codec.retrieve_request(ask(retriever="bm25", depth=50), k=50, sampling=None)
    assert (request.query, request.collection, request.retriever) == ("Which river?", "demo", "bm25")
    assert (request.depth, request.k, request.HasField("sampling")) == (50, 50, False)

    sampling = Sampling(alpha=0.0, num_rankings=3, seed=9)
    inline = codec.retrieve_request(ask(candidates=_candidates(2)), k=20, sampling=sampling)
    assert [one.id for one in inline.candidates.passages] == ["p0", "p1"]
    assert (inline.depth, inline.k) == (2, 2)
    assert (inline.sampling.alpha, inline.sampling.num_rankings, inline.sampling.seed) == (0.0, 3, 9)
    assert inline.sampling.HasField("alpha")


def test_the_retriever_gets_a_target_instead_of_a_dial() -> None:
    request = codec.retrieve_request(ask(), k=5, sampling=Sampling(None, 3, 9, RelevanceLoss(0.02)))
    assert (request.sampling.relevance_loss, request.sampling.num_rankings) == (0.02, 3)
    assert not request.sampling.HasField("alpha")


def test_an_observation_has_the_dial_that_was_found_and_the_target() -> None:
    policy = common_pb2.Policy(target_disparity=0.3, alpha=4.5, disparity=0.3, reached=True)
    asked = ask(sampling={"disparity": 0.3, "num_rankings": 2}, sampling_stage=SAMPLED)
    observation = Observation(asked, POOL, Ranked(CONTEXTS, policy=policy), [], {})
    message = evaluator_pb.Observation.FromString(codec.observation(observation, with_text=False))
    assert (message.alpha, message.policy) == (4.5, policy)
    event = codec.event(Ranked(CONTEXTS, policy=policy))
    assert event.ranked.policy == policy
    assert not codec.event(Ranked(CONTEXTS)).ranked.HasField("policy")


def test_the_retriever_is_asked_for_a_web_source_and_with_the_filter() -> None:
    wanted = retriever_pb.Filter(
        conditions=[retriever_pb.Condition(attribute="language", any_of=retriever_pb.AnyOf(values=["en"]))]
    )
    request = codec.retrieve_request(replace(ask(filter=wanted), web="searx"), k=5, sampling=None)
    assert (request.WhichOneof("source"), request.web) == ("web", "searx")
    assert request.filter == wanted
    assert not codec.retrieve_request(ask(), k=5, sampling=None).HasField("filter")


def test_ids_are_prefixed_and_stay_ids() -> None:
    response = retriever_pb.RetrieveResponse(
        passages=[passage("a"), passage("b" * 256)], scores=[2.0, 1.0], rankings={"depth": 0}
    )
    short, long = codec.pool(response, id_prefix="wiki/").passages
    assert short.id == "wiki/a"
    assert long.id == "wiki/sha256:" + hashlib.sha256(b"b" * 256).hexdigest()


@pytest.mark.parametrize(
    ("words", "sizes"),
    [(0, []), (1, [1]), (100, [100]), (101, [50, 51]), (250, [83, 83, 84]), (2000, [200] * 10)],
)
def test_what_a_model_knows_is_cut_into_even_passages(words: int, sizes: list[int]) -> None:
    text = " ".join(f"w{i}" for i in range(words))
    pool = codec.knowledge(answer(text), max_passages=10)
    assert [len(one.text.split()) for one in pool.passages] == sizes
    assert " ".join(one.text for one in pool.passages) == text
    assert [one.id for one in pool.passages] == [f"PK/{i + 1}" for i in range(len(sizes))]
    assert pool.rankings.tolist() == [list(range(len(sizes)))]
    assert (pool.retriever, pool.index_version) == ("PK", "1")


def test_the_pool_is_read() -> None:
    response = retriever_pb.RetrieveResponse(
        passages=[passage("a"), passage("b")],
        scores=[2.0, 1.0],
        rankings=common_pb2.Rankings(depth=1, indices=[1, 0, 1], log_probabilities=[-1, -2, -1]),
        index_version="v7",
        retriever="dense",
    )
    pool = codec.pool(response)
    assert [one.id for one in pool.passages] == ["a", "b"]
    assert pool.rankings.tolist() == [[1], [0], [1]]
    assert pool.log_probabilities is not None
    assert pool.log_probabilities.tolist() == [-1, -2, -1]
    assert (pool.retriever, pool.index_version) == ("dense", "v7")


def test_an_empty_pool_is_one_ranking_of_nothing() -> None:
    pool = codec.pool(retriever_pb.RetrieveResponse(retriever="bm25"))
    assert pool.rankings.shape == (1, 0)


def test_the_reranker_and_the_generator_are_asked() -> None:
    agent = Agent(task_id="qa", model_id="t5")
    request = codec.rerank_request(ask(search="q", agent=agent, reranker="rankrag"), [passage("a")])
    assert (request.query, request.reranker, request.agent.task_id) == ("q", "rankrag", "qa")
    assert not codec.rerank_request(ask(), []).HasField("agent")

    asked = ask(augmentation=generator_pb.AUGMENTATION_FUSION_IN_DECODER, decoding={"num_beams": 4})
    written = asked.prompt([passage("a")])
    assert [one.id for one in written.passages] == ["a"]
    assert written.augmentation == generator_pb.AUGMENTATION_FUSION_IN_DECODER
    assert (written.decoding.num_beams, written.decoding.HasField("max_new_tokens")) == (4, False)


POOL = Pool([passage("a", provider="P")], np.array([3.5]), np.array([[0]]), None, "bm25", "v1")
CONTEXTS = Contexts(np.array([[0], [0]]), np.array([-0.5, -0.5]))


@pytest.mark.parametrize(
    ("event", "kind", "text"),
    [
        (
            Retrieved(POOL, "demo"),
            "retrieved",
            'scores: 3.5 retriever: "bm25" index_version: "v1" collection: "demo"',
        ),
        (
            Ranked(CONTEXTS, "rankrag", "r1"),
            "ranked",
            "contexts { depth: 1 indices: 0 indices: 0 log_probabilities: -0.5 log_probabilities: -0.5 }"
            ' reranker: "rankrag" model_version: "r1"',
        ),
        (pb.Delta(text="Rh"), "delta", 'text: "Rh"'),
        (
            Answered(
                answer("Rhine"),
                (0, 1),
                [
                    pb.Citation(passage_id="a", provider="P", rank=1, start=4, end=9),
                    pb.Citation(passage_id="b", rank=2),
                ],
            ),
            "answer",
            'samples: 0 samples: 1 citations { passage_id: "a" provider: "P" rank: 1 start: 4 end: 9 }'
            ' citations { passage_id: "b" rank: 2 }',
        ),
        (
            Failed((1,), MeshError(grpc.StatusCode.UNAVAILABLE, "X", "gone")),
            "failed",
            'samples: 1 error { code: "UNAVAILABLE" reason: "X" message: "gone" }',
        ),
        (
            pb.ExposureReport(
                exposure=[1.0],
                ee_d=1.0,
                ee_d_norm=1.0,
                expected_utility=0.5,
                providers=[evaluator_pb.ExposureShare(name="P", exposure=1.0, share=1.0)],
            ),
            "report",
            'exposure: 1 ee_d_norm: 1 expected_utility: 0.5 providers { name: "P" exposure: 1 share: 1 } ee_d: 1',
        ),
        (
            Degraded(Stage.RERANK, Action.RETRIEVER_ORDER, "BUDGET_EXCEEDED", "slow"),
            "degraded",
            'stage: STAGE_RERANK action: ACTION_RETRIEVER_ORDER reason: "BUDGET_EXCEEDED" message: "slow"',
        ),
        (
            Finished("id", "run", {Stage.RETRIEVE: 1.5}, 2.5),
            "done",
            'ask_id: "id" run_id: "run" stage_times { stage: STAGE_RETRIEVE duration_ms: 1.5 } total_ms: 2.5',
        ),
    ],
)
def test_events_are_written(event: Event, kind: str, text: str) -> None:
    response = codec.event(event)
    assert response.WhichOneof("event") == kind
    body = getattr(response, kind)
    if kind == "retrieved":
        assert [one.id for one in body.passages] == ["a"]
        body.ClearField("passages")
    if kind == "answer":
        assert body.answer == answer("Rhine")
        body.ClearField("answer")
    assert " ".join(str(body).split()) == text


def test_an_observation_is_written_whole() -> None:
    asked = ask(
        sampling={"alpha": 2, "num_rankings": 2, "seed": 5},
        run_id="run",
        query_id="q1",
        labels={"has_useful": True, "useful_passage_ids": ["a"], "references": ["Rhine"]},
        sampling_stage=SAMPLED,
    )
    degraded = Degraded(Stage.RERANK, Action.RETRIEVER_ORDER, "BUDGET_EXCEEDED", "slow")
    observation = Observation(
        asked,
        POOL,
        Ranked(CONTEXTS, "rankrag", "r1"),
        [Answered(answer("Rhine"), (0, 1), [])],
        {Stage.RETRIEVE: 1.5},
        [degraded],
        observed_at_us=1_000_001,
    )
    message = evaluator_pb.Observation.FromString(codec.observation(observation, with_text=True))
    assert (message.id, message.run_id, message.query_id, message.question) == (
        asked.id,
        "run",
        "q1",
        "Which river?",
    )
    assert (message.alpha, message.seed, message.collection, message.index_version) == (2, 5, "demo", "v1")
    assert (message.reranker, message.reranker_version) == ("rankrag", "r1")
    assert (message.generator, message.generator_version) == ("pointer", "1")
    assert [(one.passage_id, one.provider) for one in message.candidates] == [("a", "P")]
    assert (message.shown.depth, list(message.shown.indices)) == (1, [0, 0])
    assert (message.answers[0].text, list(message.answers[0].samples)) == ("Rhine", [0, 1])
    assert (message.labels.has_useful, list(message.labels.useful_passage_ids)) == (True, ["a"])
    assert message.labels.metric == evaluator_pb.UTILITY_METRIC_TOKEN_F1
    assert message.degradations[0].reason == "BUDGET_EXCEEDED"
    assert message.observed_at.ToMicroseconds() == 1_000_001
    assert [one.text for one in message.candidates] == [
        f"{POOL.passages[0].title} {POOL.passages[0].text}".strip()
    ]
    textless = evaluator_pb.Observation.FromString(codec.observation(observation, with_text=False))
    assert not textless.question
    assert [one.text for one in textless.candidates] == [""]


def test_passages_travel_only_where_their_text_tells_errors_apart() -> None:
    passages = [common_pb2.Passage(id=one, title="T", text=f"text of {one}") for one in "abc"]
    pool = replace(POOL, passages=passages, scores=np.ones(3))
    ranked = Ranked(Contexts(np.array([[2, 0], [0, 2]]), None), "none", "")

    def texts(references: list[str]) -> list[str]:
        asked = ask(run_id="run", query_id="q1", labels={"references": references})
        observation = Observation(asked, pool, ranked, [], {}, [])
        message = evaluator_pb.Observation.FromString(codec.observation(observation, with_text=True))
        return [one.text for one in message.candidates]

    assert texts(["Rhine"]) == ["T text of a", "", "T text of c"]
    assert texts([]) == ["", "", ""]


SAMPLED = pb.SAMPLING_STAGE_RETRIEVER


def test_the_sampling_stage_is_read() -> None:
    # Unset means whoever orders last.
    assert ask(reranker="none").sampling_stage == pb.SAMPLING_STAGE_RETRIEVER
    assert ask(reranker="rankrag").sampling_stage == pb.SAMPLING_STAGE_RERANKER
    read = ask(reranker="rankrag", sampling_stage=pb.SAMPLING_STAGE_RETRIEVER)
    assert read.sampling_stage == pb.SAMPLING_STAGE_RETRIEVER
