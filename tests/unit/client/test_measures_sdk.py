"""What the evaluator measures on request, as programs ask for it: both clients against the evaluator's own servicer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from evenmesh import (
    Addresses,
    AnsweredQuestion,
    ArrivedAnswer,
    AsyncClient,
    AttributeTarget,
    Bootstrap,
    Browsing,
    Client,
    GradedDocument,
    GradedRanking,
    Nugget,
    TradeoffPoint,
    VotingQuestion,
    VotingRule,
)
from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.evaluator.v1 import evaluator_service_pb2_grpc as pb_grpc
from evenmesh.wire.errors import InvalidField
from evenmesh_evaluator.measures.servicer import MeasuresServicer
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.rpc.server import MeshServer, Registration
from evenmesh_kit.settings import ServiceSettings
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_lab.similarities import Models, Similarities
from tests.support.lifecycle import Idle


class BothClients:
    """Calls a method of both clients and checks that they return the same."""

    def __init__(self, asynchronous: AsyncClient, synchronous: Client) -> None:
        self.asynchronous, self.synchronous = asynchronous, synchronous

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return what the method returns."""
        found = await getattr(self.asynchronous, method)(*args, **kwargs)
        other = await asyncio.to_thread(getattr(self.synchronous, method), *args, **kwargs)
        assert found == other
        return found


@pytest.fixture
async def clients() -> AsyncIterator[BothClients]:
    """Two clients of a server with the evaluator's measures."""
    pool = ComputePool(1, "measures")
    admission = Admission(1_000_000, "KiB", queue_s=60.0)
    servicer = MeasuresServicer(Similarities(Models()), pool=pool, admission=admission)
    name = pb.DESCRIPTOR.services_by_name["EvaluatorService"].full_name
    registration = Registration(pb_grpc.add_EvaluatorServiceServicer_to_server, servicer, name)
    settings = ServiceSettings(grace_s=0, port=0)
    async with (
        MeshServer("measures", settings, Idle(registration), telemetry=Telemetry.disabled()) as server,
        AsyncClient(Addresses(evaluator=server.address)) as one,
    ):
        with Client(one.addresses) as other:
            yield BothClients(one, other)
    pool.close()


async def test_exposure_of_rankings(clients: BothClients) -> None:
    # Rankings (0, 1) and (2, 1), k = 1: ε = (1/2, 0, 1/2). Item 0 is useful: ε* = (1, 0, 0).
    found = await clients.call(
        "evaluate_exposure", [1, 0, 0], k=1, rankings=[(0, 1), (2, 1)], groups=["a", "b", "a"]
    )
    assert (found.exposure, found.target) == ((0.5, 0.0, 0.5), (1.0, 0.0, 0.0))
    assert (found.ee_d, found.ee_r, found.ee_l) == (0.5, 0.5, 0.5)
    assert [(one.name, one.exposure, one.target) for one in found.groups] == [
        ("a", 1.0, 1.0),
        ("b", 0.0, 0.0),
    ]
    assert (found.groups[0].ratio, found.groups[1].ratio) == (1.0, None)


async def test_exposure_in_place_of_rankings_under_a_browsing_model(clients: BothClients) -> None:
    found = await clients.call("evaluate_exposure", [0, 0], k=1, exposure=[0.75, 0.25])
    assert (found.ee_d, found.ee_r, found.worst_group_ratio) == (0.625, None, None)
    weighted = await clients.call(
        "evaluate_exposure", [1, 0], k=2, rankings=[[0, 1]], browsing=Browsing(position_weights=[1.0, 0.5])
    )
    assert weighted.exposure == (1.0, 0.5)


async def test_utility_of_answers(clients: BothClients) -> None:
    found = await clients.call(
        "evaluate_utility", ["yes", "no"], ["Yes!"], metric="exact_match", u_max=1.0, baseline_answer="no"
    )
    assert (found.utilities, found.expected_utility, found.normalized_expected_utility) == (
        (1.0, 0.0),
        0.5,
        0.5,
    )
    assert found.gains == (1.0, 0.0)


async def test_a_tradeoff(clients: BothClients) -> None:
    points = [TradeoffPoint(str(n), n / 4, 1 - n / 4) for n in range(5)] + [TradeoffPoint("5", None, 1.0)]
    found = await clients.call(
        "evaluate_tradeoff", points, bootstrap=Bootstrap("percentile", 100, 0.9, 3), baseline=0.5
    )
    assert (found.slope.value, found.slope.level) == (pytest.approx(-1.0), 0.9)
    assert (found.num_points, found.num_undefined, len(found.fairness_intervals)) == (5, 1, 5)


async def test_rankings_against_judgements(clients: BothClients) -> None:
    queries = [GradedRanking("q", ["a", "b"], {"b": 1}), GradedRanking("r", ["a"], {})]
    found = await clients.call("evaluate_rankings", queries, k=2)
    assert [(one.query_id, one.reciprocal_rank, one.precision) for one in found.queries] == [
        ("q", 0.5, 0.5),
        ("r", None, 0.0),
    ]
    assert (found.reciprocal_rank.mean, found.reciprocal_rank.undefined) == (0.5, 1)


async def test_a_ranked_list(clients: BothClients) -> None:
    documents = [GradedDocument(1.0, {"p": [1.0, 0.0]}), GradedDocument(0.0)]
    found = await clients.call(
        "evaluate_ranked_list",
        documents,
        {"p": AttributeTarget([0.5, 0.5], "jsd")},
        max_gain=1.0,
        utility="irbu",
    )
    assert list(found.group_fairness) == ["p"]
    assert len(found.abandonment) == 2


async def test_a_conversation(clients: BothClients) -> None:
    turns = [[Nugget(3, 1.0, {"p": [1.0, 0.0]}, "e")], [Nugget(9, 0.0)]]
    target = {"p": AttributeTarget([1.0, 0.0], "jsd")}
    found = await clients.call("evaluate_conversation", turns, target, patience=100, relevance_weight=0.0)
    assert (found.group_fairness, found.combined) == (pytest.approx(1.0), pytest.approx(1.0))
    assert found.attributes["p"].similarity == (pytest.approx(1.0), None)
    assert found.attributes["p"].achieved[1] is None
    assert len(found.position_weights) == 2


async def test_a_vote(clients: BothClients) -> None:
    rule = VotingRule(retriever_weights=[0.5, 0.5, 0.05], similarities=["token_f1"], pooling="max")
    found = await clients.call("vote", ["red", "red", "blue"], rule=rule)
    assert (found.winner, found.agreement) == (0, 0.5)
    assert found.scores[2] is None


async def test_a_vote_as_answers_arrive(clients: BothClients) -> None:
    arriving = [ArrivedAnswer(0, "red"), ArrivedAnswer(2, missing=True), ArrivedAnswer(1, "red")]

    async def arrive() -> AsyncIterator[ArrivedAnswer]:
        for one in arriving:
            yield one

    found = [one async for one in clients.asynchronous.vote_anytime(arrive(), num_answers=3)]
    assert [(one.num_arrived, one.num_waiting) for one in found] == [(1, 2), (1, 1), (2, 0)]
    assert found[-1].decided
    assert found[-1].scores[2] is None

    def sync() -> list[Any]:
        return list(clients.synchronous.vote_anytime(iter(arriving), num_answers=3))

    assert await asyncio.to_thread(sync) == found
    with pytest.raises(InvalidField):
        _ = [one async for one in clients.asynchronous.vote_anytime(arrive(), num_answers=1)]


async def test_the_search_of_vote_weights(clients: BothClients) -> None:
    questions = [VotingQuestion("q", ["red", "blue"], [1.0, 0.0])]
    found = await clients.call("search_vote_weights", questions, max_weight=0.5)
    assert len(found.retriever_weights) == 2
    assert max(found.retriever_weights) <= 0.5
    assert found.correctness == 1.0


async def test_a_comparison_of_retrievers(clients: BothClients) -> None:
    questions = [AnsweredQuestion(["red", "blue"], ["red"], ["is red", "is red"])]
    found = await clients.call("compare_retrievers", ["one", "other"], questions)
    assert found.accuracy == (1.0, 0.0)
    assert found.relative_win_ratio[0][1] == 1.0
    assert [math.isclose(one.correct, right) for one, right in zip(found.errors, (1, 0), strict=True)] == [
        True
    ] * 2
    assert None in (*found.mean_win_ratio, *found.mean_lose_ratio, *found.relative_win_ratio[1])


async def test_a_comparison_of_systems(clients: BothClients) -> None:
    found = await clients.call(
        "compare_systems", [1, 1, 0], [0, 1, 0], bootstrap=Bootstrap(num_resamples=100)
    )
    assert (found.difference.value, found.only_first, found.only_second) == (pytest.approx(1 / 3), 1, 0)
    graded = await clients.call("compare_systems", [0.5, 1.0], [0.25, 1.0])
    assert (graded.mcnemar_p, graded.only_first) == (None, None)


@pytest.mark.parametrize(
    ("method", "args", "kwargs", "field"),
    [
        ("evaluate_exposure", ([1.0],), {"k": 1, "rankings": [(0,), (0, 1)]}, "rankings"),
        ("evaluate_exposure", ([1.0],), {"k": -1}, "k"),
        ("evaluate_exposure", (["a"],), {"k": 1}, "usefulness"),
        ("evaluate_utility", (["a"], ["a"]), {"metric": "bleu"}, "metric"),
        ("evaluate_utility", ("abc", ["a"]), {}, "answers"),
        ("evaluate_tradeoff", ([],), {"bootstrap": Bootstrap("studentized")}, "bootstrap.method"),  # type: ignore[arg-type]
        ("evaluate_rankings", ([GradedRanking("q", ["a"], {"a": -1})],), {"k": 1}, "queries[0].grades['a']"),
        ("vote", (["a", 1],), {}, "answers"),
    ],
)
async def test_a_value_that_does_not_fit_its_field_names_it(
    clients: BothClients, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidField) as caught:
        await clients.call(method, *args, **kwargs)
    assert caught.value.field == field


async def test_every_rpc_of_the_evaluator_for_callers_has_a_method() -> None:
    internal = {"Observe"}
    reading = {"GetReport": "report", "ListRuns": "runs", "ListConfigurations": "configurations"}
    reading |= {"ListMeasurements": "measurements", "GetObservation": "observation"}
    reading |= {"GetExposureStatement": "exposure_statement", "GetExposureBalance": "exposure_balance"}
    for method in pb.DESCRIPTOR.services_by_name["EvaluatorService"].methods_by_name:
        snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in method).lstrip("_")
        if method not in internal:
            assert hasattr(AsyncClient, reading.get(method, snake)), method
            assert hasattr(Client, reading.get(method, snake)), method
