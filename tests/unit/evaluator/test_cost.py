"""What a request costs is known before it is computed; what costs too much is refused, what is left alone ends."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField, MeshError
from evenmesh.wire.methods import facts_of
from evenmesh_evaluator import cost, measures
from evenmesh_evaluator.__main__ import EvaluatorService
from evenmesh_evaluator.domain import UtilityMetric
from evenmesh_evaluator.observations import bounds
from evenmesh_evaluator.servicer import EvaluatorServicer
from evenmesh_evaluator.settings import EvaluatorSettings
from evenmesh_kit.compute.steps import Steps
from evenmesh_lab.similarities import Models, Similarities
from tests.support.largest import largest

ROUGE_L = pb.UTILITY_METRIC_ROUGE_L


def test_two_texts_of_180_kb_are_refused_before_they_are_compared() -> None:
    request = pb.EvaluateUtilityRequest(
        answers=["a b " * 45_000], references=["b a " * 45_000], metric=ROUGE_L
    )
    with pytest.raises(InvalidField, match="at most 65,536 characters") as caught:
        cost.of(request)
    assert caught.value.field == "answers"
    request = pb.EvaluateUtilityRequest(metric=ROUGE_L)
    request.answers.extend(f"{i} a b" * 8_000 for i in range(8))
    request.references.extend(request.answers)
    with pytest.raises(InvalidField, match="CPU seconds"):
        cost.of(request)


@pytest.mark.parametrize("metric", [pb.UTILITY_METRIC_TOKEN_F1, pb.UTILITY_METRIC_ROUGE2])
def test_many_answers_and_references_are_refused_by_their_product(metric: Any) -> None:
    texts = [f"{i} of the rivers" for i in range(4000)]
    with pytest.raises(InvalidField, match="fewer or shorter"):
        cost.of(pb.EvaluateUtilityRequest(answers=texts, references=texts, metric=metric))
    cost.of(pb.EvaluateUtilityRequest(answers=texts, references=texts[:3], metric=metric))


def test_resamples_are_refused_by_their_product_and_the_error_says_what_fits() -> None:
    request = pb.CompareSystemsRequest(first=[0.5] * 50_000, second=[0.4] * 50_000)
    request.bootstrap.num_resamples = 100_000
    with pytest.raises(InvalidField, match="at most 10,000 resamples of 50,000 queries"):
        cost.of(request)
    points = [pb.TradeoffPoint(query_id=str(i), x=0.5, y=0.5) for i in range(20_000)]
    tradeoff = pb.EvaluateTradeoffRequest(points=points, bootstrap=pb.Bootstrap(num_resamples=20_000))
    with pytest.raises(InvalidField, match="20,000 points fit 4,444 resamples"):
        cost.of(tradeoff)


def test_admission_follows_the_cost() -> None:
    small = cost.answers(["a"], ["b"], UtilityMetric.ROUGE_L)
    large = cost.answers(["a b c d " * 5000], ["a b c d " * 5000], UtilityMetric.ROUGE_L)
    assert small.kib == 0
    assert large.kib > 1000


@pytest.fixture
async def servicer(tmp_path: Any) -> AsyncIterator[EvaluatorServicer]:
    service = EvaluatorService(EvaluatorSettings(home=tmp_path, measures_threads=1))
    await service.start()
    yield cast(EvaluatorServicer, service.registrations[0].servicer)
    await service.stop()


# --- every method that measures


def _attributes(groups: int) -> dict[str, pb.AttributeTarget]:
    gold = pb.Distribution(shares=[1 / groups] * groups)
    return {"g": pb.AttributeTarget(gold=gold, divergence=pb.AttributeTarget.DIVERGENCE_JSD)}


def _exposure(size: int) -> pb.EvaluateExposureRequest:
    depth = min(size, 1000)
    request = pb.EvaluateExposureRequest(
        usefulness=[1] * depth, groups=[str(i) for i in range(depth)], k=depth
    )
    request.rankings.depth = depth
    request.rankings.indices.extend(list(range(depth)) * max(1, size // depth))
    return request


def _utility(size: int) -> pb.EvaluateUtilityRequest:
    texts = [f"{i} of the rivers" for i in range(size)]
    return pb.EvaluateUtilityRequest(answers=texts, references=texts)


def _tradeoff(size: int) -> pb.EvaluateTradeoffRequest:
    points = [pb.TradeoffPoint(query_id=str(i), x=i % 97 / 97, y=i % 89 / 89) for i in range(size)]
    return pb.EvaluateTradeoffRequest(points=points, bootstrap=pb.Bootstrap(num_resamples=100))


def _rankings(size: int) -> pb.EvaluateRankingsRequest:
    query = pb.EvaluateRankingsRequest.Query
    grades = {str(i): i % 3 for i in range(10)}
    queries = [query(query_id=str(i), ranking=map(str, range(10)), grades=grades) for i in range(size)]
    return pb.EvaluateRankingsRequest(queries=queries, k=10)


def _ranked_list(size: int) -> pb.EvaluateRankedListRequest:
    document = pb.EvaluateRankedListRequest.Document(
        gain=1, membership={"g": pb.Distribution(shares=[0.01] * 100)}
    )
    return pb.EvaluateRankedListRequest(documents=[document] * size, attributes=_attributes(100), max_gain=1)


def _conversation(size: int) -> pb.EvaluateConversationRequest:
    turns = []
    for at in range(size):
        nugget = pb.Nugget(word_count=at + 1, gain=1)
        nugget.membership["g"].shares.extend([0.01] * 100)
        turns.append(pb.ConversationTurn(nuggets=[nugget]))
    return pb.EvaluateConversationRequest(
        turns=turns, attributes=_attributes(100), method=pb.EvaluateConversationRequest.METHOD_CUMULATIVE
    )


def _vote(size: int) -> pb.VoteRequest:
    return pb.VoteRequest(answers=[f"{i} of the rivers" for i in range(size)])


def _session(size: int) -> list[pb.VoteAnytimeRequest]:
    start = pb.VoteAnytimeRequest.Start(num_answers=size)
    return [
        pb.VoteAnytimeRequest(start=start),
        *(
            pb.VoteAnytimeRequest(answer=pb.VoteAnytimeRequest.Answer(index=i, text=f"{i} of the rivers"))
            for i in range(size)
        ),
    ]


def _search(size: int) -> pb.SearchVoteWeightsRequest:
    question = pb.SearchVoteWeightsRequest.Question(answers=["a", "a b", "c"], correctness=[0, 1, 0.5])
    return pb.SearchVoteWeightsRequest(questions=[question] * size)


def _retrievers(size: int) -> pb.CompareRetrieversRequest:
    question = pb.CompareRetrieversRequest.Question(
        answers=["a", "b"], references=map(str, range(10)), contexts=["a b c", "d e"]
    )
    return pb.CompareRetrieversRequest(retrievers=["x", "y"], questions=[question] * size)


def _systems(size: int) -> pb.CompareSystemsRequest:
    values = [i / size for i in range(size)]
    return pb.CompareSystemsRequest(
        first=values, second=values[::-1], bootstrap=pb.Bootstrap(num_resamples=2000)
    )


VALID: dict[str, tuple[Callable[[int], Any], int]] = {
    "EvaluateExposure": (_exposure, 1000),
    "EvaluateUtility": (_utility, 300),
    "EvaluateTradeoff": (_tradeoff, 1500),
    "EvaluateRankings": (_rankings, 100),
    "EvaluateRankedList": (_ranked_list, 100),
    "EvaluateConversation": (_conversation, 100),
    "Vote": (_vote, 100),
    "VoteAnytime": (_session, 20),
    "SearchVoteWeights": (_search, 20),
    "CompareRetrievers": (_retrievers, 100),
    "CompareSystems": (_systems, 4000),
}
"""A valid request of each method that measures, by its size; and a size that takes some steps."""

SERVICE = "evenmesh.evaluator.v1.EvaluatorService"
STORES = {
    "Observe",
    "GetReport",
    "ListRuns",
    "ListConfigurations",
    "ListMeasurements",
    "DeleteRun",
    "GetObservation",
    "GetExposureStatement",
    "GetExposureBalance",
    "ResetExposureBalance",
}
"""Methods that measure nothing but observations, which have bounds of their own."""

METHODS = {one.name: one for one in pb.DESCRIPTOR.services_by_name["EvaluatorService"].methods}


def test_every_method_is_here() -> None:
    assert VALID.keys() | STORES == METHODS.keys()
    for name in VALID:
        assert METHODS[name].input_type._concrete_class in cost._COSTS


def _is_bounded(request: Any) -> bool:
    """Return whether a request fits; raises where its cost is above the bound."""
    try:
        found = cost.of(request)
    except InvalidField:
        return False
    assert found.cpu_s <= cost.MAX_CPU_S
    assert found.bytes <= cost.MAX_BYTES
    return True


@pytest.mark.parametrize("name", VALID)
def test_the_largest_request_is_refused_or_within_the_bound(name: str) -> None:
    method = METHODS[name]
    kind = cast(Any, method.input_type)._concrete_class
    _is_bounded(largest(kind, facts_of(f"/{SERVICE}/{name}").max_request_bytes))
    if name == "EvaluateConversation":
        full = f"{kind.DESCRIPTOR.full_name}.transcript"
        _is_bounded(largest(kind, facts_of(f"/{SERVICE}/{name}").max_request_bytes, leave_out=[full]))


@pytest.mark.parametrize("name", sorted(VALID.keys() - {"VoteAnytime"}))
def test_valid_requests_are_refused_from_some_size_on(name: str) -> None:
    """Doubling a request raises its cost, until it is refused or as large as its method allows."""
    make, size = VALID[name]
    limit = facts_of(f"/{SERVICE}/{name}").max_request_bytes
    before = cost.of(make(size))
    while (request := make(2 * size)).ByteSize() <= limit and _is_bounded(request):
        found = cost.of(request)
        assert found.cpu_s > before.cpu_s
        before, size = found, 2 * size


@pytest.mark.parametrize("name", sorted(VALID.keys() - {"VoteAnytime"}))
def test_the_cost_covers_the_calls_that_a_measure_makes(name: str) -> None:
    """Each call of a function takes some 50 ns at least, on any machine: the cost must not be below."""
    make, size = VALID[name]
    request = make(size)
    function = FUNCTIONS[name]
    function(request)  # imports
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function(request)
    finally:
        sys.setprofile(None)
    assert cost.of(request).cpu_s >= calls * 50e-9


SIMILARITIES = Similarities(Models())
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "EvaluateExposure": measures.exposure,
    "EvaluateUtility": measures.utility,
    "EvaluateTradeoff": lambda request: measures.tradeoff(request, lambda: None),
    "EvaluateRankings": measures.rankings,
    "EvaluateRankedList": measures.ranked_list,
    "EvaluateConversation": measures.conversation,
    "Vote": lambda request: measures.vote(request, SIMILARITIES),
    "SearchVoteWeights": lambda request: measures.search_weights(request, SIMILARITIES),
    "CompareRetrievers": measures.compare_retrievers,
    "CompareSystems": lambda request: measures.compare_systems(request, lambda: None),
}


async def _call(servicer: EvaluatorServicer, name: str, request: Any) -> None:
    context = cast(Any, None)
    if name != "VoteAnytime":
        await getattr(servicer, name)(request, context)
        return

    async def sent() -> AsyncIterator[pb.VoteAnytimeRequest]:
        for one in request:
            yield one

    async for _ in servicer.VoteAnytime(sent(), context):
        pass


@pytest.mark.parametrize("name", VALID)
async def test_a_measure_runs_off_the_loop_and_ends_at_its_next_step_when_its_caller_is_gone(
    servicer: EvaluatorServicer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []
    check = Steps.check

    def slowly(steps: Steps) -> None:
        threads.append(threading.current_thread())
        begun.set()
        go_on.wait(60)
        check(steps)

    make, size = VALID[name]
    monkeypatch.setattr(Steps, "check", slowly)
    call = asyncio.create_task(_call(servicer, name, make(size)))
    assert await asyncio.to_thread(begun.wait, 60)
    call.cancel()
    await asyncio.wait((call,))
    monkeypatch.setattr(Steps, "check", check)
    go_on.set()
    async with asyncio.timeout(60):  # the only thread is free
        answer = await servicer.Vote(pb.VoteRequest(answers=["a", "b", "b"]), cast(Any, None))
    assert answer.winner == 1
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


@pytest.mark.parametrize("name", VALID)
async def test_a_measure_has_more_than_one_step(
    servicer: EvaluatorServicer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    steps = 0
    check = Steps.check

    def counted(one: Steps) -> None:
        nonlocal steps
        steps += 1
        check(one)

    make, size = VALID[name]
    monkeypatch.setattr(Steps, "check", counted)
    await _call(servicer, name, make(size))
    assert steps > 1


async def test_a_vote_session_holds_a_mebibyte_of_answers_at_most(servicer: EvaluatorServicer) -> None:
    requests = _session(30)
    for one in requests[1:]:
        one.answer.text = f"{one.answer.index}" + "x" * 60_000
    with pytest.raises(InvalidField, match="fewer or shorter") as refused:
        await _call(servicer, "VoteAnytime", requests)
    assert refused.value.field == "answer.text"


def _observation(id_: str) -> pb.Observation:
    observation = pb.Observation(id=id_, run_id="r", query_id="q")
    observation.candidates.add(passage_id="p")
    observation.shown.depth = 1
    observation.shown.indices.append(0)
    return observation


async def test_an_observation_that_never_fits_is_refused_for_good_and_the_stream_goes_on(
    servicer: EvaluatorServicer,
) -> None:
    labels = _observation("labels")
    labels.labels.has_useful = True
    labels.labels.useful_passage_ids.extend(map(str, range(10_001)))
    size = _observation("size")
    size.candidates[0].text = "x" * cost.MAX_OBSERVATION_BYTES
    costly = _observation("costly")
    costly.answers.add(text="a b " * 16_000, samples=[0])
    costly.labels.references.extend(f"b a {i}" * 16_000 for i in range(4))
    costly.labels.metric = ROUGE_L

    async def sent() -> AsyncIterator[pb.ObserveRequest]:
        for one in (labels, size, costly, _observation("fits")):
            yield pb.ObserveRequest(observation=one)

    got = [one async for one in servicer.Observe(sent(), cast(Any, None))]
    assert [one.refusal.observation_id for one in got[:3]] == ["labels", "size", "costly"]
    assert {(one.refusal.error.code, one.refusal.error.reason) for one in got[:3]} == {
        ("RESOURCE_EXHAUSTED", "OBSERVATION_TOO_LARGE")
    }
    assert [one.refusal.error.field for one in got[:3]] == [
        "labels.useful_passage_ids",
        "",
        "labels.references",
    ]
    assert got[3].ack.observation_id == "fits"


async def test_a_conversation_that_costs_too_much_is_refused_alone(servicer: EvaluatorServicer) -> None:
    costly = _observation("costly")
    costly.conversation.conversation_id = "c"
    costly.conversation.judged.CopyFrom(_conversation(1000))
    for at in range(15):
        costly.conversation.judged.attributes[str(at)].CopyFrom(_attributes(1000)["g"])

    async def sent() -> AsyncIterator[pb.ObserveRequest]:
        for one in (costly, _observation("fits")):
            yield pb.ObserveRequest(observation=one)

    got = [one async for one in servicer.Observe(sent(), cast(Any, None))]
    assert got[0].refusal.error.reason == "OBSERVATION_TOO_LARGE"
    assert got[0].refusal.error.field == "conversation.judged"
    assert got[1].ack.observation_id == "fits"


def _voted(longest: int, others: int) -> pb.Observation:
    observation = pb.Observation(id="vote", run_id="r", query_id="q", vote_winner=0)
    observation.answers.add(text="a " * (longest // 2), samples=[0])
    for at in range(others):
        observation.answers.add(text=f"x{at}", samples=[at + 1])
    return observation


def test_the_answers_of_a_vote_cost_as_much_as_they_are_long() -> None:
    costs = [bounds.check(_voted(longest, others)) for longest in (1_000, 100_000) for others in (10, 100)]
    assert all(0 < less < more for less, more in itertools.pairwise(costs))


def test_a_vote_that_takes_too_long_is_refused() -> None:
    with pytest.raises(MeshError, match="fewer or shorter answers") as refused:
        bounds.check(_voted(4 * 2**20, 999))
    assert (refused.value.reason, refused.value.field) == ("OBSERVATION_TOO_LARGE", "answers")


def test_the_cost_of_an_unknown_winner_is_left_to_the_reader() -> None:
    observation = _voted(10, 1)
    observation.vote_winner = 2
    assert bounds.check(observation) == 0.0


def test_turns_count_however_their_signs_are_spaced() -> None:
    """What the reader of transcripts takes for a turn costs as one."""
    spaced = "##### T\n" + "### U1\n### S1 o\n#L2 #p: (0,1/2)\n" * 100
    one, other = (
        cost.conversation(pb.EvaluateConversationRequest(transcript=text))
        for text in (spaced, spaced.replace("### ", "###\t"))
    )
    assert one == other
