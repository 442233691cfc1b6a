"""The evaluator as a process: durable acknowledgements, idempotency, reports, and bad input over the wire."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message

from evenmesh import Addresses, AsyncClient
from evenmesh.addresses import VARIABLES
from evenmesh.commands import main
from evenmesh.common.v1 import common_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.evaluator.v1 import evaluator_service_pb2_grpc as pb_grpc
from evenmesh.types.reports import DeletedRun
from evenmesh.wire.errors import from_rpc_error
from tests.support.killable import Killable, serving
from tests.support.started import refusal

SERVICE = "/evenmesh.evaluator.v1.EvaluatorService/"


@contextmanager
def _running(home: Path, **settings: str) -> Iterator[Killable]:
    process = Killable("evenmesh_evaluator", "evaluator", home, **settings)
    with serving(process):
        yield process


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An evaluator that the tests of this file share; each uses runs of its own."""
    with _running(tmp_path_factory.mktemp("home")) as process:
        yield process.address


@pytest.fixture
async def stub(address: str) -> AsyncIterator[pb_grpc.EvaluatorServiceAsyncStub]:
    """A stub of the shared evaluator."""
    async with grpc.aio.insecure_channel(address) as channel:
        yield pb_grpc.EvaluatorServiceStub(channel)


def _observation(id_: str, run_id: str, **changes: object) -> pb.Observation:
    message = pb.Observation(
        id=id_,
        run_id=run_id,
        query_id="q",
        candidates=[
            pb.Candidate(passage_id=name, provider=name.upper(), text=f"the {name} river") for name in "abc"
        ],
        shown=common_pb2.Rankings(depth=2, indices=[0, 1, 0, 2]),
        answers=[pb.SampledAnswer(text="Rhine", samples=[0]), pb.SampledAnswer(text="Elbe", samples=[1])],
        labels=pb.Labels(
            has_useful=True,
            useful_passage_ids=["a"],
            references=["the Rhine"],
            metric=pb.UTILITY_METRIC_EXACT_MATCH,
        ),
        stage_times=[common_pb2.StageTime(stage=common_pb2.STAGE_GENERATE, duration_ms=12)],
        degradations=[
            common_pb2.Degradation(
                stage=common_pb2.STAGE_RERANK,
                action=common_pb2.Degradation.ACTION_RETRIEVER_ORDER,
                reason="BUDGET_EXCEEDED",
            )
        ],
    )
    message.observed_at.FromJsonString("2025-01-02T03:04:05.000006Z")
    for name, value in changes.items():
        setattr(message, name, value)
    return message


def _requests(
    observations: Iterable[pb.Observation], *, want_report: bool = False
) -> list[pb.ObserveRequest]:
    return [pb.ObserveRequest(observation=one, want_report=want_report) for one in observations]


async def _observe(
    stub: pb_grpc.EvaluatorServiceAsyncStub, requests: Iterable[pb.ObserveRequest]
) -> list[pb.ObserveResponse]:
    return [response async for response in stub.Observe(iter(requests), timeout=60)]


def _events(responses: Iterable[pb.ObserveResponse]) -> list[tuple[str | None, str]]:
    return [
        (kind := response.WhichOneof("event"), getattr(getattr(response, kind or ""), "observation_id", ""))
        for response in responses
    ]


async def _failure(call: object) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]  # calls of every kind
    return caught.value


async def test_observations_are_acknowledged_in_order_and_reported(
    stub: pb_grpc.EvaluatorServiceAsyncStub,
) -> None:
    responses = await _observe(
        stub,
        [
            *_requests([_observation("golden-1", "golden")]),
            *_requests([_observation("golden-2", "golden")], want_report=True),
            *_requests([_observation("golden-1", "golden")]),
        ],
    )
    assert _events(responses) == [
        ("ack", "golden-1"),
        ("ack", "golden-2"),
        ("report", ""),
        ("ack", "golden-1"),
    ]
    assert [r.ack.duplicate for r in responses if r.HasField("ack")] == [False, False, True]

    report = responses[2].report
    assert (await stub.GetReport(pb.GetReportRequest(run_id="golden"))).report == report
    assert (report.num_observations, report.num_rankings, report.num_unanswered) == (2, 4, 0)
    # Contexts {a, b}, {a, c}: ε = (1, 1/2, 1/2), EE-D = 3/2 of 2. a is useful: ε* = (1, 1/2, 1/2), so EE-R is
    # its own bound. Rhine is right, Elbe is not: 1/2.
    assert (report.ee_d.mean, report.ee_d_norm.mean) == (1.5, 0.75)
    assert (report.ee_r.mean, report.ee_r_norm.mean) == (1.5, 1.0)
    assert report.expected_utility.mean == 0.5
    assert (report.expected_utility.count, report.expected_utility.undefined) == (2, 0)
    # 1/2, 1/2 and 0, 1: s² = 1/6, t(0.975; 3) = 3.1825, so the half is 0.65.
    assert (report.expected_utility.low, report.expected_utility.high) == (0.0, 1.0)
    assert [(p.name, p.exposure, p.share, p.target) for p in report.providers] == [
        ("A", 2.0, 0.5, 2.0),
        ("B", 1.0, 0.25, 1.0),
        ("C", 1.0, 0.25, 1.0),
    ]
    assert [(s.stage, s.duration_ms.mean) for s in report.stages] == [(common_pb2.STAGE_GENERATE, 12.0)]
    assert [(d.stage, d.reason, d.count) for d in report.degradations] == [
        (common_pb2.STAGE_RERANK, "BUDGET_EXCEEDED", 2)
    ]
    assert [(p.name, p.exposure, p.per_observation.count) for p in report.passages] == [
        ("a", 2.0, 2),
        ("b", 1.0, 2),
        ("c", 1.0, 2),
    ]
    # Neither context holds the Rhine or the Elbe: both are retriever errors, and the right answer was luck.
    errors = (report.retriever_error, report.hallucination_error, report.extraction_error, report.lucky_guess)
    assert [one.mean for one in errors] == [1.0, 1.0, 0.0, 0.5]
    # The best answer known has utility 1.
    assert report.normalized_expected_utility.mean == 0.5
    assert (report.vote_agreement.count, report.vote_agreement.undefined) == (0, 2)
    assert report.window == pb.WINDOW_ALL
    assert report.started_at.ToJsonString() == "2025-01-02T03:04:05.000006Z"


async def test_a_refused_observation_does_not_end_the_stream(
    stub: pb_grpc.EvaluatorServiceAsyncStub,
) -> None:
    bad = _observation("refused", "refusals")
    bad.shown.indices[3] = 3
    responses = await _observe(
        stub,
        _requests([_observation("before", "refusals"), bad, pb.Observation(), _observation("x", "refusals")]),
    )
    assert _events(responses) == [("ack", "before"), ("refusal", "refused"), ("refusal", ""), ("ack", "x")]
    error = responses[1].refusal.error
    assert (error.code, error.reason, error.field) == (
        "INVALID_ARGUMENT",
        "INVALID_FIELD",
        "shown.indices[3]",
    )
    assert responses[2].refusal.error.field == "id"
    report = (await stub.GetReport(pb.GetReportRequest(run_id="refusals"))).report
    assert report.num_observations == 2


async def test_the_same_ids_over_many_streams_count_once(stub: pb_grpc.EvaluatorServiceAsyncStub) -> None:
    observations = [_observation(f"same-{i}", "same") for i in range(50)]
    streams = [observations[i:] + observations[:i] for i in range(0, 50, 10)]
    results = await asyncio.gather(*(_observe(stub, _requests(stream)) for stream in streams))
    acks = [response.ack for responses in results for response in responses]
    assert len(acks) == 250
    assert sorted(ack.observation_id for ack in acks if not ack.duplicate) == sorted(
        one.id for one in observations
    )
    report = (await stub.GetReport(pb.GetReportRequest(run_id="same"))).report
    assert (report.num_observations, report.ee_d.count) == (50, 50)


async def test_large_observations_go_through(stub: pb_grpc.EvaluatorServiceAsyncStub) -> None:
    # 1,000 candidates and 1,000 rankings of 100: measured off the event loop, at exactly the bounds.
    large = _observation("large", "large")
    large.ClearField("candidates")
    large.ClearField("answers")
    large.candidates.extend(pb.Candidate(passage_id=f"p{i}", provider=f"P{i % 200}") for i in range(1000))
    large.shown.depth = 100
    large.shown.ClearField("indices")
    large.shown.indices.extend((start + i) % 1000 for start in range(1000) for i in range(100))
    responses = await _observe(stub, _requests([large], want_report=True))
    assert _events(responses) == [("ack", "large"), ("report", "")]
    report = responses[1].report
    # Every passage is shown by 100 of 1,000 rankings: ε = 1/10 each, EE-D = 1000/100 = 10 of 100.
    assert report.ee_d_norm.mean == pytest.approx(0.1)
    assert len(report.providers) == 100
    assert report.providers[0].exposure == pytest.approx(5 / 10)


async def test_runs_come_in_pages(stub: pb_grpc.EvaluatorServiceAsyncStub) -> None:
    for i in range(3):
        await _observe(stub, _requests([_observation(f"page-{i}", f"page-{i}")]))
    first = await stub.ListRuns(pb.ListRunsRequest(page_size=2))
    assert [run.run_id for run in first.runs] == ["page-2", "page-1"]
    # What is observed meanwhile moves no run to another page.
    await _observe(stub, _requests([_observation("page-again", "page-0"), _observation("new", "page-new")]))
    second = await stub.ListRuns(pb.ListRunsRequest(page_size=1, page_token=first.next_page_token))
    assert [(run.run_id, run.num_observations) for run in second.runs] == [("page-0", 2)]
    everything = await stub.ListRuns(pb.ListRunsRequest())
    assert everything.runs[0].run_id == "page-new"
    assert everything.next_page_token == ""


def _turn(id_: str, run_id: str, gain: float, seconds: int) -> pb.Observation:
    """An ask of a conversation whose relevance so far is the gain: L = 1, R = 2/(1+1)·gain."""
    share = pb.Distribution(shares=[0.5, 0.5])
    nugget = pb.Nugget(word_count=1, gain=gain, membership={"g": share})
    judged = pb.EvaluateConversationRequest(
        turns=[pb.ConversationTurn(nuggets=[nugget])],
        attributes={"g": pb.AttributeTarget(gold=share)},
        patience=1,
    )
    message = _observation(id_, run_id)
    message.conversation.CopyFrom(pb.ObservedConversation(conversation_id="c", judged=judged))
    message.observed_at.FromSeconds(seconds)
    return message


async def test_votes_and_conversations_are_reported(stub: pb_grpc.EvaluatorServiceAsyncStub) -> None:
    voted = _turn("talk-1", "talk", 0.25, 1_000)
    voted.ranking_retrievers[:] = ["bm25", "dense"]
    voted.vote_winner = 0
    await _observe(stub, _requests([voted, _turn("talk-2", "talk", 0.5, 2_000)]))
    report = (await stub.GetReport(pb.GetReportRequest(run_id="talk"))).report
    # Rhine won against Elbe, which neither holds nor is held by it.
    assert (report.vote_agreement.mean, report.vote_agreement.count) == (0.0, 1)
    # The second turn replaces the first; its shares are on target: GF = 1.
    assert (report.conversation_relevance.mean, report.conversation_relevance.count) == (0.5, 1)
    assert report.conversation_group_fairness.mean == 1.0
    assert report.conversation_combined.mean == 0.5 * 0.5 + 0.5 * 1.0


async def test_a_bad_turn_is_refused_with_its_path(stub: pb_grpc.EvaluatorServiceAsyncStub) -> None:
    loose = _turn("bad-1", "bad", 0.5, 1)
    loose.conversation.judged.turns[0].nuggets[0].gain = 2.0
    unfit = _turn("bad-2", "bad", 0.5, 1)
    unfit.conversation.judged.attributes["g"].gold.shares[:] = [0.5, 0.25, 0.25]
    voted = _turn("bad-3", "bad", 0.5, 1)
    voted.vote_winner = 2
    few = _turn("bad-4", "bad", 0.5, 1)
    few.ranking_retrievers.append("bm25")
    responses = await _observe(stub, _requests([loose, unfit, voted, few]))
    nugget = "conversation.judged.turns[0].nuggets[0]"
    fields = [response.refusal.error.field for response in responses]
    assert fields[0] == f"{nugget}.gain"
    assert fields[1].startswith(f"{nugget}.membership")
    assert fields[2:] == ["vote_winner", "ranking_retrievers"]


async def test_configurations_are_reported_over_runs_and_in_pages(
    stub: pb_grpc.EvaluatorServiceAsyncStub,
) -> None:
    for alpha in (1.0, 2.0):
        for run in ("first", "second"):
            message = _observation(f"{run}-{alpha}", run, collection="pages", retriever="bm25")
            message.alpha = alpha
            message.generator = "t5"
            await _observe(stub, _requests([message]))
    request = pb.GetReportRequest(
        configuration=pb.Configuration(collection="pages", retriever="bm25", generator="t5", alpha=2.0)
    )
    report = (await stub.GetReport(request)).report
    assert (report.run_id, report.num_observations) == ("", 2)
    assert report.configuration == request.configuration
    page = await stub.ListConfigurations(pb.ListConfigurationsRequest(page_size=1))
    assert page.configurations[0].configuration == request.configuration
    assert page.configurations[0].num_observations == 2
    rest = await stub.ListConfigurations(
        pb.ListConfigurationsRequest(page_size=1, page_token=page.next_page_token)
    )
    assert [one.configuration.alpha for one in rest.configurations] == [1.0]


async def test_windows_are_by_when_it_was_observed(stub: pb_grpc.EvaluatorServiceAsyncStub) -> None:
    now = time.time_ns() // 1000
    for minutes in (1, 3 * 60, 48 * 60):
        message = _observation(f"age-{minutes}", "windows")
        message.observed_at.FromMicroseconds(now - minutes * 60 * 10**6)
        await _observe(stub, _requests([message]))
    counts = {}
    for window in (pb.WINDOW_HOUR, pb.WINDOW_DAY, pb.WINDOW_UNSPECIFIED):
        report = (await stub.GetReport(pb.GetReportRequest(run_id="windows", window=window))).report
        counts[report.window] = (report.num_observations, report.passages[0].exposure)
    assert counts == {pb.WINDOW_HOUR: (1, 1.0), pb.WINDOW_DAY: (2, 2.0), pb.WINDOW_ALL: (3, 3.0)}


async def test_measurements_are_listed_in_the_order_of_storing(
    stub: pb_grpc.EvaluatorServiceAsyncStub,
) -> None:
    # More than a page of the store.
    messages = [_observation(f"listed-{i}", "listed", query_id=f"listed-{i % 7}") for i in range(1_100)]
    await _observe(stub, _requests(messages))
    listed = [one async for one in stub.ListMeasurements(pb.ListMeasurementsRequest(run_id="listed"))]
    assert [one.observation_id for one in listed] == [one.id for one in messages]
    assert listed[8].query_id == "listed-1"
    assert listed[8].observed_at == messages[8].observed_at
    assert {name: listed[8].quantities[name] for name in ("ee_d", "normalized_expected_utility")} == {
        "ee_d": 1.5,
        "normalized_expected_utility": 0.5,
    }
    assert "vote_agreement" not in listed[8].quantities


async def test_measurements_of_an_unknown_run_are_not_found(stub: pb_grpc.EvaluatorServiceAsyncStub) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        [one async for one in stub.ListMeasurements(pb.ListMeasurementsRequest(run_id="never"))]
    assert caught.value.code() is UNKNOWN
    assert from_rpc_error(caught.value).field == "run_id"


async def test_the_unary_measures_answer(stub: pb_grpc.EvaluatorServiceAsyncStub) -> None:
    exposure = await stub.EvaluateExposure(
        pb.EvaluateExposureRequest(
            rankings=common_pb2.Rankings(depth=1, indices=[0, 1]), usefulness=[1, 0], k=1
        )
    )
    # ε = (1/2, 1/2): EE-D = 1/2.
    assert exposure.ee_d == 0.5
    utility = await stub.EvaluateUtility(pb.EvaluateUtilityRequest(answers=["a b"], references=["b c"]))
    # "b" against "b c" (the article falls away): precision 1, recall 1/2.
    assert utility.expected_utility == pytest.approx(2 / 3)
    vote = await stub.Vote(pb.VoteRequest(answers=["x", "y", "y"]))
    assert vote.winner == 1
    share = pb.Distribution(shares=[0.5, 0.5])
    conversation = await stub.EvaluateConversation(
        pb.EvaluateConversationRequest(
            turns=[pb.ConversationTurn(nuggets=[pb.Nugget(word_count=1, gain=1, membership={"g": share})])],
            attributes={"g": pb.AttributeTarget(gold=share)},
        )
    )
    assert conversation.group_fairness == 1.0


ITEM = common_pb2.Rankings(depth=1, indices=[0])
INVALID, UNKNOWN = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
BAD: dict[str, tuple[str, Message, grpc.StatusCode, str]] = {
    "k = 0": ("EvaluateExposure", pb.EvaluateExposureRequest(rankings=ITEM, usefulness=[1]), INVALID, "k"),
    "nothing": ("EvaluateExposure", pb.EvaluateExposureRequest(), INVALID, "usefulness"),
    "no such item": (
        "EvaluateExposure",
        pb.EvaluateExposureRequest(rankings=common_pb2.Rankings(depth=1, indices=[7]), usefulness=[1], k=1),
        INVALID,
        "rankings.indices[0]",
    ),
    "no answers": ("EvaluateUtility", pb.EvaluateUtilityRequest(), INVALID, "answers"),
    "one voter": ("Vote", pb.VoteRequest(answers=["x"]), INVALID, "answers"),
    "unknown similarity": (
        "Vote",
        pb.VoteRequest(answers=["x", "y"], similarities=["telepathy"]),
        INVALID,
        "similarities[0]",
    ),
    "no voter left": (
        "Vote",
        pb.VoteRequest(answers=["x", "y"], retriever_weights=[0.1, 0.1]),
        INVALID,
        "retriever_weights",
    ),
    "no turns": ("EvaluateConversation", pb.EvaluateConversationRequest(), INVALID, "turns"),
    "no run": ("GetReport", pb.GetReportRequest(), INVALID, "run_id"),
    "unknown run": ("GetReport", pb.GetReportRequest(run_id="?"), UNKNOWN, "run_id"),
    "both scopes": (
        "GetReport",
        pb.GetReportRequest(run_id="x", configuration=pb.Configuration()),
        INVALID,
        "run_id",
    ),
    "alpha too large": (
        "GetReport",
        pb.GetReportRequest(configuration=pb.Configuration(alpha=101)),
        INVALID,
        "configuration.alpha",
    ),
    "unknown configuration": (
        "GetReport",
        pb.GetReportRequest(configuration=pb.Configuration(collection="never")),
        UNKNOWN,
        "configuration",
    ),
    "no such window": ("GetReport", pb.GetReportRequest.FromString(b"\x0a\x01x\x18\x09"), INVALID, "window"),
    "configurations, page too large": (
        "ListConfigurations",
        pb.ListConfigurationsRequest(page_size=0),
        INVALID,
        "page_size",
    ),
    "page too large": ("ListRuns", pb.ListRunsRequest(page_size=1001), INVALID, "page_size"),
    "made-up token": ("ListRuns", pb.ListRunsRequest(page_token="?"), INVALID, "page_token"),  # noqa: S106
}


@pytest.mark.parametrize(("method", "request_", "code", "field"), BAD.values(), ids=BAD.keys())
async def test_bad_input_names_the_field(
    address: str, method: str, request_: Message, code: grpc.StatusCode, field: str
) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        error = await _failure(
            channel.unary_unary(SERVICE + method)(request_.SerializeToString(), timeout=30)
        )
    assert error.code() is code
    assert from_rpc_error(error).field == field


@pytest.mark.parametrize("data", [b"\x0a\x02\xff\xfe", b"\xff\xff\xff"], ids=["wrong UTF-8", "no message"])
async def test_bytes_that_are_no_message_are_refused(address: str, data: bytes) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        error = await _failure(channel.unary_unary(SERVICE + "GetReport")(data, timeout=30))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_malformed_observation_ends_the_stream_with_its_reason(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream(SERVICE + "Observe")(iter([b"\x0a\x02\xff"]), timeout=30)
        error = await _failure(call.read())
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    with _running(tmp_path) as process:

        async def stream(number: int) -> None:
            async with grpc.aio.insecure_channel(process.address) as channel:
                call = pb_grpc.EvaluatorServiceStub(channel).Observe(timeout=60)

                async def write() -> None:
                    for i in range(100_000):
                        await call.write(
                            pb.ObserveRequest(observation=_observation(f"{number}-{i}", f"run-{number}"))
                        )

                writer = asyncio.create_task(write())
                try:
                    async for response in call:
                        acknowledged.append(response.ack.observation_id)
                        if len(acknowledged) == 200:
                            process.kill()  # between commits, or in the middle of one
                except grpc.aio.AioRpcError:
                    pass
                finally:
                    writer.cancel()
                    await asyncio.gather(writer, return_exceptions=True)

        await asyncio.gather(*map(stream, range(3)))
    assert len(acknowledged) >= 200

    with _running(tmp_path) as process:
        async with grpc.aio.insecure_channel(process.address) as channel:
            stub = pb_grpc.EvaluatorServiceStub(channel)
            again = await _observe(
                stub,
                _requests(_observation(id_, f"run-{id_[0]}") for id_ in acknowledged),
            )
            assert [r.ack.observation_id for r in again] == acknowledged
            assert all(response.ack.duplicate for response in again)
            # What was committed but not acknowledged may be there too; aggregates agree with rows.
            with sqlite3.connect(tmp_path / "evaluator" / "observations.db") as database:
                for number in range(3):
                    report = (await stub.GetReport(pb.GetReportRequest(run_id=f"run-{number}"))).report
                    (rows,) = database.execute(
                        "SELECT COUNT(*) FROM observations WHERE run_id = ?", (f"run-{number}",)
                    ).fetchone()
                    assert report.num_observations == report.ee_d.count == rows
                    assert rows >= sum(id_.startswith(f"{number}-") for id_ in acknowledged)
            database.close()


async def test_sigterm_acknowledges_what_it_took(tmp_path: Path) -> None:
    with _running(tmp_path) as process:
        async with grpc.aio.insecure_channel(process.address) as channel:
            call = pb_grpc.EvaluatorServiceStub(channel).Observe(timeout=60)
            for i in range(20):
                await call.write(pb.ObserveRequest(observation=_observation(str(i), "run")))
            acknowledged = [(await call.read()).ack.observation_id]
            process.terminate()
            await call.done_writing()
            while (response := await call.read()) is not grpc.aio.EOF:
                acknowledged.append(response.ack.observation_id)
        assert acknowledged == [str(i) for i in range(20)]
        await process.stop()


async def test_a_locked_database_is_unavailable_and_nothing_is_acknowledged(tmp_path: Path) -> None:
    with _running(tmp_path, LOCK_TIMEOUT_S="0.5") as process:
        lock = sqlite3.connect(tmp_path / "evaluator" / "observations.db", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        async with grpc.aio.insecure_channel(process.address) as channel:
            stub = pb_grpc.EvaluatorServiceStub(channel)
            call = stub.Observe(iter(_requests([_observation("1", "run")])), timeout=30)
            error = await _failure(call.read())
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert from_rpc_error(error).reason == "STORE_LOCKED"
            lock.execute("ROLLBACK")
            lock.close()
            responses = await _observe(stub, _requests([_observation("1", "run")]))
            assert not responses[0].ack.duplicate


def test_a_home_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("in the way")
    lines = refusal("evaluator", home, PORT_FILE=str(tmp_path / "address")).strip().splitlines()
    assert len(lines) == 1
    assert "EVENMESH_HOME" in lines[0]


def test_a_wrong_setting_is_one_line(tmp_path: Path) -> None:
    errors = refusal("evaluator", tmp_path, DATABASE_URL="mysql://x/y")
    assert errors.startswith("EVENMESH_EVALUATOR_DATABASE_URL=…: ")  # it may hold a password
    assert len(errors.strip().splitlines()) == 1


async def test_a_run_is_deleted_with_its_texts(
    address: str,
    stub: pb_grpc.EvaluatorServiceAsyncStub,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for service in ("orchestrator", "evaluator"):
        monkeypatch.setenv(VARIABLES[service], address)
    sent = [_observation(f"gone-{number}", "to-go") for number in range(2)]
    await _observe(
        stub, [pb.ObserveRequest(observation=one) for one in (*sent, _observation("stays", "to-stay"))]
    )

    def command(*words: str) -> int:
        return main(["runs", *words])

    assert await asyncio.to_thread(command, "--delete", "to-go") == 0
    assert capsys.readouterr().out == "to-go is deleted: 2 observations\n"
    assert await asyncio.to_thread(command, "--delete", "to-go") == 1
    assert "there is no run to-go" in capsys.readouterr().err
    assert await asyncio.to_thread(command, "--delete", "to-stay", "--configurations") == 2
    for method, request in (
        (stub.GetReport, pb.GetReportRequest(run_id="to-go")),
        (stub.GetObservation, pb.GetObservationRequest(observation_id="gone-0")),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(request, timeout=60)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.DeleteRun(pb.DeleteRunRequest(), timeout=60)
    assert from_rpc_error(caught.value).field == "run_id"
    async with AsyncClient(Addresses(orchestrator=address, evaluator=address)) as mesh:
        assert await mesh.delete_run("to-stay") == DeletedRun(True, 1)
        assert await mesh.delete_run("to-stay") == DeletedRun(False, 0)
