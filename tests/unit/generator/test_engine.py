"""What the generator does with models: choice, checks, deduplication, background documents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidField,
    MeshError,
    NotFound,
    Unavailable,
)
from evenmesh_generator import call_cost, relevance
from evenmesh_generator.domain import (
    Answer,
    Augmentation,
    Best,
    Cost,
    Decoding,
    FinishReason,
    GenerationRequest,
    ModelDescription,
    Passage,
    RelevanceRequest,
    Turn,
)
from evenmesh_generator.engine import BatchCost, CallLimit, GeneratedAnswer, Generator, batch_cost
from evenmesh_generator.ports import Cancellation
from evenmesh_generator.prompts import TemplateLibrary

ALL = (
    Augmentation.IN_PROMPT,
    Augmentation.FUSION_IN_DECODER,
    Augmentation.RETRIEVAL_FREE,
    Augmentation.PARAMETRIC_KNOWLEDGE,
    Augmentation.COMPRESSION,
)
COST = Cost(queue_s=0.5, first_token_s=1.0, total_s=4.0, computed_tokens=7, reused_tokens=3, batch_rows=2)
TEMPLATES = TemplateLibrary.bundled()
A, B = Passage("a", "Title", "text of a"), Passage("b", "", "text of b")


class Scribe:
    """A model that writes down what it was asked, and answers with it."""

    def __init__(
        self, name: str, augmentations: tuple[Augmentation, ...] = ALL, *, judges: bool = True
    ) -> None:
        self.name = name
        self.augmentations = augmentations
        self.judges = judges
        self.runtime = ""
        self.reads_context = False
        self.unavailable: MeshError | None = None
        self.relevance: dict[str, float] = {}
        self.judged = 0
        self.asked: list[GenerationRequest] = []

    def describe(self) -> ModelDescription:
        return ModelDescription(
            self.name,
            f"{self.name}-1",
            "e",
            "a",
            "cpu",
            "float32",
            self.judges,
            500,
            100,
            self.augmentations,
            runtime=self.runtime,
            reads_context=self.reads_context,
        )

    @property
    def up(self) -> bool:
        return self.unavailable is None

    def answer(self, request: GenerationRequest) -> Answer:
        shown = "|".join(passage.text for passage in request.passages)
        assert request.augmentation is not None
        text = f"{request.augmentation.value}:{request.template}:{request.question}:{shown}"
        return Answer(text, FinishReason.STOP, 10, 5, -1.0, cut_passages=1, cost=COST)

    async def generate_stream(
        self, request: GenerationRequest, cancel: Cancellation
    ) -> AsyncGenerator[str | Answer, None]:
        answer = self.answer(request)
        yield answer.text
        yield answer

    async def generate(self, request: GenerationRequest, cancel: Cancellation) -> Answer:
        self.asked.append(request)
        if self.unavailable is not None:
            raise self.unavailable
        if request.question == "fail":
            raise Unavailable("GONE", "away")
        return self.answer(request)

    async def score_relevance(self, request: RelevanceRequest, cancel: Cancellation) -> list[float]:
        self.judged += len(request.passages)
        if self.relevance:
            return [self.relevance[passage.id] for passage in request.passages]
        return [1.0 / (1 + at) for at in range(len(request.passages))]


@pytest.fixture
def first() -> Scribe:
    return Scribe("first")


@pytest.fixture
def second() -> Scribe:
    return Scribe("second", (Augmentation.FUSION_IN_DECODER, Augmentation.RETRIEVAL_FREE), judges=False)


@pytest.fixture
def generator(first: Scribe, second: Scribe) -> Generator:
    return Generator([first, second], TEMPLATES)


async def _stream(generator: Generator, request: GenerationRequest) -> GeneratedAnswer:
    text = ""
    async for part in generator.stream(request, Cancellation()):
        if isinstance(part, GeneratedAnswer):
            assert part.answer.text == text
            return part
        text += part
    raise AssertionError("no answer")


async def test_the_default_model_answers_unless_one_is_named(generator: Generator) -> None:
    assert (await _stream(generator, GenerationRequest("q", (A,)))).model.name == "first"
    assert (await _stream(generator, GenerationRequest("q", (A,), model="second"))).model.name == "second"
    assert [model.name for model in generator.models()] == ["first", "second"]


async def test_unspecified_augmentation_is_the_models_default(generator: Generator) -> None:
    assert (await _stream(generator, GenerationRequest("q", (A, B)))).answer.text == (
        "in-prompt::q:text of a|text of b"
    )
    answer = (await _stream(generator, GenerationRequest("q", (A,), model="second"))).answer
    assert answer.text == "fusion-in-decoder::q:text of a"
    answer = (await _stream(generator, GenerationRequest("q", model="second"))).answer
    assert answer.text == "retrieval-free::q:"


@pytest.mark.parametrize(
    ("request_", "kind", "field", "words"),
    [
        (
            GenerationRequest("q", model="third"),
            NotFound,
            "model",
            "no model 'third'; there are first, second",
        ),
        (GenerationRequest("q", (A,), template="nope"), NotFound, "template", "no template 'nope'"),
        (GenerationRequest("q", (A,), template="question"), InvalidField, "template", "needs all passages"),
        (
            GenerationRequest("q", (A,), model="second", augmentation=Augmentation.IN_PROMPT),
            InvalidField,
            "augmentation",
            "second cannot do in-prompt; it can do fusion-in-decoder, retrieval-free",
        ),
        (
            GenerationRequest("q", (A,), augmentation=Augmentation.RETRIEVAL_FREE),
            InvalidField,
            "passages",
            "retrieval-free takes no passages",
        ),
        (
            GenerationRequest("q", (A,), augmentation=Augmentation.PARAMETRIC_KNOWLEDGE),
            InvalidField,
            "passages",
            "parametric-knowledge takes no passages",
        ),
        (
            GenerationRequest("q", augmentation=Augmentation.FUSION_IN_DECODER),
            InvalidField,
            "passages",
            "fusion-in-decoder needs at least one passage",
        ),
        (
            GenerationRequest("q", (A,), decoding=Decoding(max_new_tokens=101)),
            InvalidField,
            "decoding.max_new_tokens",
            "must be at most 100 for first",
        ),
        (
            GenerationRequest("q", (A,), template="ra-x", turns=(Turn("q", "a"),)),
            InvalidField,
            "turns",
            "'ra-x' has no place for earlier turns",
        ),
    ],
)
async def test_what_a_model_cannot_do(
    generator: Generator, request_: GenerationRequest, kind: type[MeshError], field: str, words: str
) -> None:
    with pytest.raises(kind, match=words) as caught:
        await _stream(generator, request_)
    assert caught.value.field == field
    (outcome,) = await generator.batch([request_], Cancellation())
    assert isinstance(outcome, kind)
    assert outcome.field == field


async def test_turns_go_to_the_answer_and_not_to_the_draft(generator: Generator, first: Scribe) -> None:
    turns = (Turn("before", "yes"),)
    request = GenerationRequest("q", (A,), template="rankrag-answer-conversation", turns=turns)
    await _stream(generator, replace(request, augmentation=Augmentation.COMPRESSION))
    await generator.batch([request], Cancellation())
    draft, plain = first.asked
    assert (draft.template, draft.turns) == ("eor-compression", ())
    assert plain.turns == turns


async def test_turns_go_to_models_that_read_templates(generator: Generator, first: Scribe) -> None:
    request = GenerationRequest("q", (A,), turns=(Turn("before", "yes"),))
    await generator.batch([request], Cancellation())
    first.runtime = "pointer"
    await generator.batch([request, replace(request, turns=())], Cancellation())
    assert [one.turns for one in first.asked] == [request.turns, ()], "requests without turns are equal"
    assert generator.as_read(request).turns == ()
    unknown = replace(request, model="unknown")
    assert generator.as_read(unknown) == unknown


async def test_a_model_writes_its_own_background_and_answers_from_it(
    generator: Generator, first: Scribe
) -> None:
    request = GenerationRequest(
        "q",
        augmentation=Augmentation.PARAMETRIC_KNOWLEDGE,
        template="ra-x",
        decoding=Decoding(max_new_tokens=7),
    )
    background = "retrieval-free:eor-parametric-knowledge:q:"
    finished = await _stream(generator, request)
    assert finished.answer.text == f"in-prompt:ra-x:q:{background}"
    assert finished.answer.prompt_tokens == 10 + 10, "of both steps"
    assert finished.answer.completion_tokens == 5, "of the answer"
    assert finished.written_tokens == 5 + 5, "of both steps"
    assert finished.answer.cost == Cost(
        queue_s=0.5 + 0.5,
        first_token_s=4.0 + 1.0,
        total_s=4.0 + 4.0,
        computed_tokens=7 + 7,
        reused_tokens=3 + 3,
        batch_rows=2,
    )
    assert first.asked[0].decoding.max_new_tokens == 100, "as many as the model can"
    (outcome,) = await generator.batch([request], Cancellation())
    assert outcome == finished


async def test_a_model_summarises_the_passages_and_answers_from_the_summary(
    generator: Generator, first: Scribe
) -> None:
    request = GenerationRequest(
        "q", (A, B), augmentation=Augmentation.COMPRESSION, decoding=Decoding(max_new_tokens=7)
    )
    finished = await _stream(generator, request)
    assert finished.answer.text == "in-prompt::q:in-prompt:eor-compression:q:text of a|text of b"
    assert finished.answer.prompt_tokens == 20, "of both steps"
    assert first.asked[0].decoding.max_new_tokens == 100, "as many as the model can"
    (outcome,) = await generator.batch([request], Cancellation())
    assert outcome == finished
    with pytest.raises(InvalidField, match="compression needs at least one passage"):
        await _stream(generator, replace(request, passages=()))


async def test_what_is_asked_twice_is_computed_once(generator: Generator, first: Scribe) -> None:
    renamed = (replace(A, id="other"), B)
    requests = [
        GenerationRequest("q", (A, B)),
        GenerationRequest("q", (B, A)),
        GenerationRequest("q", renamed),
        GenerationRequest("q", (A, B), model="first", augmentation=Augmentation.IN_PROMPT),
        GenerationRequest("q", (A, B), decoding=Decoding(temperature=1.0, seed=1)),
        GenerationRequest("q", (A, B), decoding=Decoding(temperature=1.0, seed=2)),
    ]
    outcomes = await generator.batch(requests, Cancellation())
    assert len(first.asked) == 4
    assert outcomes[0] == outcomes[2] == outcomes[3]
    texts = [outcome.answer.text for outcome in outcomes if isinstance(outcome, GeneratedAnswer)]
    assert texts[0] == "in-prompt::q:text of a|text of b"
    assert texts[1] == "in-prompt::q:text of b|text of a"


@given(
    st.lists(
        st.builds(
            GenerationRequest,
            st.sampled_from(["q", "a longer question", "fail"]),
            st.permutations([A, B]).map(tuple),
            template=st.sampled_from(["", "ra-x"]),
            augmentation=st.sampled_from([None, Augmentation.COMPRESSION]),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_a_batch_answers_as_its_requests_alone_would_and_accounts_for_every_token(
    requests: list[GenerationRequest],
) -> None:
    generator = Generator([Scribe("first")], TEMPLATES)

    async def ask() -> tuple[list[GeneratedAnswer | MeshError], list[GeneratedAnswer | MeshError]]:
        together = await generator.batch(requests, Cancellation())
        alone = [(await generator.batch([one], Cancellation()))[0] for one in requests]
        return together, alone

    together, alone = asyncio.run(ask())
    for one, other in zip(together, alone, strict=True):
        assert type(one) is type(other)
        assert one == other or isinstance(one, MeshError)
    finished = [one for one in together if isinstance(one, GeneratedAnswer)]
    cost = batch_cost(together)
    assert cost.computed_answers == len({one.answer.text for one in finished})
    assert cost.computed_answers + cost.reused_answers == len(finished)
    assert cost.computed_tokens + cost.reused_tokens == sum(one.answer.prompt_tokens for one in finished)
    separate = batch_cost(alone)
    assert cost.computed_tokens <= separate.computed_tokens
    assert cost.written_tokens <= separate.written_tokens


async def test_one_outcome_per_item_in_order(generator: Generator, second: Scribe) -> None:
    own = Augmentation.PARAMETRIC_KNOWLEDGE
    outcomes = await generator.batch(
        [
            GenerationRequest("fail", (A,)),
            GenerationRequest("q", (A,), model="second"),
            GenerationRequest("fail", augmentation=own),
            GenerationRequest("q", augmentation=own),
            GenerationRequest("q", model="third"),
        ],
        Cancellation(),
    )
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [Unavailable, GeneratedAnswer, Unavailable, GeneratedAnswer, NotFound]
    assert isinstance(outcomes[1], GeneratedAnswer)
    assert outcomes[1].model.name == "second"
    assert len(second.asked) == 1


async def test_what_a_batch_cost_and_was_spared(generator: Generator) -> None:
    request = GenerationRequest("q", (A,))
    sampled = replace(request, decoding=Decoding(temperature=1.0))
    outcomes = await generator.batch(
        [request, request, sampled, request, GenerationRequest("fail", (A,))], Cancellation()
    )
    assert [isinstance(one, GeneratedAnswer) and one.reused for one in outcomes] == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert isinstance(outcomes[1], GeneratedAnswer)
    assert outcomes[1].answer.cost == replace(COST, computed_tokens=0, reused_tokens=10)
    assert batch_cost(outcomes) == BatchCost(
        computed_answers=2,
        reused_answers=2,
        computed_tokens=2 * 7,
        reused_tokens=2 * 3 + 2 * 10,
        written_tokens=2 * 5,
    )


async def test_one_summary_serves_every_answer_from_the_same_passages(
    generator: Generator, first: Scribe
) -> None:
    request = GenerationRequest("q", (A, B), augmentation=Augmentation.COMPRESSION)
    outcomes = await generator.batch([request, replace(request, template="ra-x"), request], Cancellation())
    assert len(first.asked) == 1 + 2, "one draft and two answers"
    assert batch_cost(outcomes) == BatchCost(
        computed_answers=2,
        reused_answers=1,
        computed_tokens=(1 + 2) * 7,
        reused_tokens=(1 + 2) * 3 + (2 + 1) * 10,
        written_tokens=(1 + 2) * 5,
    )


async def test_long_prompts_go_first_and_outcomes_stay_in_order(generator: Generator, first: Scribe) -> None:
    requests = [GenerationRequest("q" * size) for size in (3, 1, 4, 1, 5, 9, 2, 6)]
    outcomes = await generator.batch(requests, Cancellation())
    ran = first.asked
    assert [len(one.question) for one in ran] == [9, 6, 5, 4, 3, 2, 1]
    texts = [one.answer.text for one in outcomes if isinstance(one, GeneratedAnswer)]
    assert texts == [f"retrieval-free::{one.question}:" for one in requests]


async def test_passages_read_alone_are_as_long_as_with_their_questions(
    generator: Generator, first: Scribe
) -> None:
    alone = GenerationRequest("q" * 40, (A, B), augmentation=Augmentation.FUSION_IN_DECODER)
    together = replace(alone, question="q" * 41, augmentation=Augmentation.IN_PROMPT)
    await generator.batch([together, alone], Cancellation())
    ran = first.asked
    assert [one.augmentation for one in ran] == [Augmentation.FUSION_IN_DECODER, Augmentation.IN_PROMPT]


async def test_a_model_that_is_away_fails_its_own_requests(
    generator: Generator, first: Scribe, second: Scribe
) -> None:
    second.unavailable = Unavailable("GONE", "away")
    requests = [GenerationRequest("q", (A,), model=name) for name in ("second", "first", "second")]
    outcomes = await generator.batch(requests, Cancellation())
    assert [type(outcome) for outcome in outcomes] == [Unavailable, GeneratedAnswer, Unavailable]
    first.unavailable = DeadlineExceeded("no time")
    outcomes = await generator.batch(requests, Cancellation())
    assert [type(outcome) for outcome in outcomes] == [Unavailable, DeadlineExceeded, Unavailable]
    with pytest.raises(DeadlineExceeded):
        await generator.batch(requests, Cancellation(Deadline.after(0)))


async def test_relevance(generator: Generator) -> None:
    judged = await generator.relevance(RelevanceRequest("q", (A, B)), "", Cancellation())
    assert (judged.probabilities, judged.model.name) == ([1.0, 0.5], "first")
    with pytest.raises(FailedPrecondition, match="second cannot judge relevance"):
        await generator.relevance(RelevanceRequest("q", (A,)), "second", Cancellation())
    with pytest.raises(NotFound):
        await generator.relevance(RelevanceRequest("q", (A,)), "third", Cancellation())


@pytest.mark.parametrize(
    ("template", "turns", "kind", "words"),
    [
        ("nope", (), NotFound, "no template 'nope'"),
        ("ra-x", (), InvalidField, "'ra-x' holds all passages; a judgement needs one passage"),
        ("", (Turn("q", "a"),), InvalidField, "turns: need a template that shows them"),
        (
            "rankrag-context-ranking",
            (Turn("q", "a"),),
            InvalidField,
            "'rankrag-context-ranking' has no place for earlier turns",
        ),
    ],
)
async def test_prompts_that_judge_nothing(
    generator: Generator, template: str, turns: tuple[Turn, ...], kind: type[MeshError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        await generator.relevance(
            RelevanceRequest("q", (A,), template=template, turns=turns), "", Cancellation()
        )
    suiting = RelevanceRequest("q", (A,), template="rankrag-context-ranking-conversation", turns=turns)
    assert (await generator.relevance(suiting, "", Cancellation())).probabilities == [1.0]


GRID = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])


@given(st.lists(GRID, min_size=1, max_size=90), st.data())
async def test_stopping_early_is_exact(scores: list[float], data: st.DataObject) -> None:
    """The best are those of judging every passage, or as near to them as is tolerated."""
    count = len(scores)
    ids = [f"{at:02}" for at in data.draw(st.permutations(range(count)))]
    best = Best(data.draw(st.integers(1, count)), data.draw(GRID))
    scribe = Scribe("m")
    scribe.relevance = dict(zip(ids, scores, strict=True))
    passages = tuple(Passage(one, "", "text") for one in ids)
    judged = await Generator([scribe], TEMPLATES).relevance(
        RelevanceRequest("q", passages), "", Cancellation(), best
    )
    known = len(judged.probabilities)
    assert (judged.probabilities, judged.unjudged) == (scores[:known], count - known)
    assert scribe.judged == known
    full = sorted(range(count), key=lambda at: (-scores[at], ids[at]))[: best.count]
    found = sorted(range(known), key=lambda at: (-scores[at], ids[at]))[: best.count]
    assert len(found) == best.count
    if best.tolerance == 0:
        assert found == full
    assert max(scores[known:], default=0.0) - scores[found[-1]] <= best.tolerance


async def test_it_stops_when_the_best_are_certain(first: Scribe, generator: Generator) -> None:
    ids = [f"{at:02}" for at in range(100)]
    first.relevance = dict.fromkeys(ids, 0.0) | {"03": 1.0, "05": 0.9}
    request = RelevanceRequest("q", tuple(Passage(one, "", "text") for one in ids))

    async def judged(count: int, tolerance: float) -> int:
        found = await generator.relevance(request, "", Cancellation(), Best(count, tolerance))
        return len(found.probabilities)

    # No probability is over 1, and of equal ones the id decides, which no later one of these passages wins.
    assert await judged(1, 0.0) == 16
    # 0.9 may be beaten; each round is as long as all before it.
    assert await judged(2, 0.0) == 100
    assert await judged(2, 0.1) == 16
    assert await judged(40, 1.0) == 40
    first.relevance = {one: first.relevance[ids[-1 - at]] for at, one in enumerate(ids)}
    # Now "96" has the 1: it comes at last.
    assert await judged(1, 0.0) == 100
    first.relevance["15"] = 1.0
    assert await judged(1, 0.0) == 16
    ids.reverse()
    request = replace(request, passages=tuple(Passage(one, "", "text") for one in ids))
    # "96" is at the fourth place, but one of those after it may tie, and comes before it by its id: "15" does.
    assert await judged(1, 0.0) == 100


def test_rounds_are_as_long_as_all_before_them() -> None:
    assert [(one.start, one.stop) for one in relevance.rounds(100, 5)] == [
        (0, 16), (16, 32), (32, 64), (64, 100)
    ]  # fmt: skip
    assert [one.stop for one in relevance.rounds(100, 30)] == [30, 60, 100]
    assert list(relevance.rounds(100, None)) == [slice(0, 100)]


def test_names_of_models(generator: Generator) -> None:
    assert [generator.name_of(name) for name in ("", "second", "third")] == ["first", "second", ""]


def test_models_that_are_away_are_named(generator: Generator, second: Scribe) -> None:
    assert generator.unavailable() == frozenset()
    second.unavailable = Unavailable("GONE", "its process has died")
    assert generator.unavailable() == {"second"}
    assert [one.name for one in generator.models()] == ["first", "second"]


def test_models_of_one_name_are_refused(first: Scribe) -> None:
    with pytest.raises(ValueError, match="different names"):
        Generator([first, Scribe("first")], TEMPLATES)
    with pytest.raises(ValueError, match="at least one model"):
        Generator([], TEMPLATES)


async def test_judgements_that_cost_more_than_a_call_may_are_refused_before_any(first: Scribe) -> None:
    generator = Generator([first], TEMPLATES, CallLimit(1000, "MOST"))
    # 400 characters: 1 token, 200 that are read and 6 for the tokeniser.
    passages = [Passage(f"p{at}", "", "x" * 399) for at in range(5)]
    judged = await generator.relevance(RelevanceRequest("q", tuple(passages[:4])), "", Cancellation())
    assert len(judged.probabilities) == first.judged == 4
    with pytest.raises(MeshError) as refused:
        await generator.relevance(
            RelevanceRequest("q", tuple(passages)), "", Cancellation(), best=Best(1, tolerance=1.0)
        )
    assert (refused.value.reason, refused.value.field) == ("REQUEST_TOO_LARGE", "passages")
    assert refused.value.retry_after_s is None
    assert "5 passages together cost about 1035 tokens, and may cost 1000" in refused.value.message
    assert "raise MOST" in refused.value.message
    assert first.judged == 4
    one = Passage("long", "", "x" * 60_000)
    assert len((await generator.relevance(RelevanceRequest("q", (one,)), "", Cancellation())).probabilities)


async def test_one_answer_may_cost_sixteen_times_as_much_as_a_call(first: Scribe) -> None:
    generator = Generator([first], TEMPLATES, CallLimit(100, "MOST"))
    # 10 steps of 60, each of 16 rows of 4, and 8 to read.
    fits = GenerationRequest("q", (A,), decoding=Decoding(num_beams=16, max_new_tokens=10))
    over = replace(fits, decoding=Decoding(num_beams=16, max_new_tokens=13))
    assert (await _stream(generator, fits)).answer.text
    assert len(await generator.batch([fits], Cancellation())) == 1
    with pytest.raises(MeshError, match="the request alone cost about 1620 tokens, and may cost 1600"):
        await _stream(generator, over)
    with pytest.raises(MeshError, match="the request alone"):
        await generator.batch([over], Cancellation())


async def test_batches_that_cost_more_than_a_call_may_are_refused_before_any(first: Scribe) -> None:
    generator = Generator([first], TEMPLATES, CallLimit(17_100, "MOST"))
    decoding = Decoding(max_new_tokens=100)
    requests = [GenerationRequest(f"q{at}", (A,), decoding=decoding) for at in range(30)]
    # Steps of all together, 100 x 60, then 100 x 4 to write each, and 9 to read it.
    assert len(await generator.batch(requests[:27], Cancellation())) == 27
    first.asked.clear()
    with pytest.raises(MeshError) as refused:
        await generator.batch(requests, Cancellation())
    assert (refused.value.reason, refused.value.field) == ("REQUEST_TOO_LARGE", "requests")
    assert not first.asked
    same = [requests[0]] * 200  # one answer
    assert len(await generator.batch(same, Cancellation())) == 200
    # 2 x 16 rows, 100 x 4 each, 100 x 60 for the steps, and 8 to read each.
    long = GenerationRequest("q", (A,), decoding=Decoding(num_beams=16, max_new_tokens=100))
    assert len(await generator.batch([long], Cancellation())) == 1
    with pytest.raises(MeshError, match="cost about 18816 tokens"):
        await generator.batch([long, replace(long, question="p")], Cancellation())


async def test_only_a_model_that_reads_it_is_given_the_question_in_its_context(
    generator: Generator, first: Scribe
) -> None:
    """So that questions that differ in nothing that a model reads are computed once."""
    asked = [GenerationRequest("q", (A,), contextual_question=text) for text in ("q one", "q two")]
    await generator.batch(asked, Cancellation())
    assert [one.contextual_question for one in first.asked] == [""]
    first.reads_context = True
    await generator.batch(asked, Cancellation())
    assert sorted(one.contextual_question for one in first.asked[1:]) == ["q one", "q two"]


def test_a_question_in_its_context_counts_as_far_as_it_is_read() -> None:
    model = replace(Scribe("m").describe(), max_passage_tokens=256)

    def cost(contextual: str) -> int:
        request = GenerationRequest(
            "q",
            (Passage("a", "", "x" * 100),),
            augmentation=Augmentation.FUSION_IN_DECODER,
            decoding=Decoding(max_new_tokens=1),
            contextual_question=contextual,
        )
        return call_cost.of_answers([request], model)

    # A pair of 101, 150 and 396 characters: 1 + size // 2 + size // 64. A row: 4, and 1 of over 100 tokens.
    assert cost("") == 1 + 50 + 1 + 4 + 60
    assert cost("x" * 50) == 1 + 75 + 2 + 4 + 60
    # 64 tokens of two characters, and 640 // 64 for the tokens of all of it.
    assert cost("x" * 640) == 1 + 124 + 3 + 5 + 60


def test_turns_count_where_a_template_shows_them() -> None:
    model = replace(Scribe("m").describe(), max_passage_tokens=256)
    passages = tuple(Passage(str(at), "", str(at) * 99) for at in range(2))

    def cost(augmentation: Augmentation, template: str, *turns: Turn) -> int:
        request = GenerationRequest("q", passages, augmentation=augmentation, template=template, turns=turns)
        return call_cost.of_answers([replace(request, decoding=Decoding(max_new_tokens=1))], model)

    said = Turn("x" * 100, "y" * 100)
    # A prompt of 199 and 399 characters: 1 + size // 2 + size // 64. A row: 4, and 1 or 2 for its tokens. A step: 60.
    assert cost(Augmentation.IN_PROMPT, "") == 1 + 99 + 3 + 5 + 60
    assert cost(Augmentation.IN_PROMPT, "", said) == 1 + 199 + 6 + 6 + 60
    # Two pairs of 100 or 300 characters each.
    fused = Augmentation.FUSION_IN_DECODER
    assert cost(fused, "", said) == cost(fused, "") == 2 * (1 + 50 + 1) + 5 + 60
    assert cost(fused, "chat-one", said) == 2 * (1 + 150 + 4) + 7 + 60


def test_a_passage_read_with_one_question_counts_once() -> None:
    model = replace(Scribe("m").describe(), max_passage_tokens=50)
    passages = tuple(Passage(str(at), "", f"{at}" * 200) for at in range(10))
    alone = [
        GenerationRequest("q", passages[at:] + passages[:at], augmentation=Augmentation.FUSION_IN_DECODER)
        for at in range(10)
    ]
    together = [replace(one, augmentation=Augmentation.IN_PROMPT) for one in alone]
    one = Decoding(max_new_tokens=1)

    def cost(requests: list[GenerationRequest]) -> int:
        return call_cost.of_answers([replace(request, decoding=one) for request in requests], model)

    # A pair: 1 + 50 + 201 // 64. A row: 4 + 540 // 100. A step: 60.
    assert cost(alone) == 10 * 54 + 10 * 9 + 60
    # A prompt: 1 + 500 + 2001 // 64. A row: 4 + 532 // 100.
    assert cost(together) == 10 * 532 + 10 * 9 + 60


def test_the_pieces_of_a_long_passage_count() -> None:
    model = replace(Scribe("m").describe(), max_passage_tokens=256, max_passage_pairs=4)

    def cost(*lengths: int) -> int:
        passages = tuple(Passage(str(at), "", str(at) * length) for at, length in enumerate(lengths))
        request = GenerationRequest("q", passages, augmentation=Augmentation.FUSION_IN_DECODER)
        return call_cost.of_answers([replace(request, decoding=Decoding(max_new_tokens=1))], model)

    # A pair: 1 + 256 + 1001 // 64, and 500 - 256 tokens more in 3 pieces of at least 100. A row: 4 + 1040 // 100.
    assert cost(1000) == 272 + 3 * 256 + 14 + 60
    # No more than four pairs together: the second passage is read once. A row: 4 + 1312 // 100.
    assert cost(1000, 1000) == 2 * 272 + 2 * 256 + 4 + 10 + 60
    # As many passages as pairs, or more, are read once each, and so is a short one.
    assert cost(400) == 1 + 200 + 6 + 6 + 60
    assert cost(*[1000] * 4) == 4 * 272 + 4 + 10 + 60
