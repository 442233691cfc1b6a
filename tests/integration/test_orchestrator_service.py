"""The orchestrator as a process, with a real evaluator and with upstreams that fail on command.

Retriever, reranker and generator are scripted servers that speak the real contract over real connections:
what is tested is what the orchestrator makes of their answers, delays and deaths. The mesh of five real
services is tested in ``test_mesh.py``.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import uuid
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import pytest_asyncio
from google.protobuf.message import Message
from pydantic_settings import SettingsConfigDict

from evenmesh.common.v1 import common_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.evaluator.v1 import evaluator_service_pb2_grpc as evaluator_grpc
from evenmesh.generator.v1 import generator_service_pb2 as generator_pb
from evenmesh.generator.v1 import generator_service_pb2_grpc as generator_grpc
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as pb_grpc
from evenmesh.reranker.v1 import reranker_service_pb2 as reranker_pb
from evenmesh.reranker.v1 import reranker_service_pb2_grpc as reranker_grpc
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from evenmesh.retriever.v1 import retriever_service_pb2_grpc as retriever_grpc
from evenmesh.wire.errors import (
    FailedPrecondition,
    InvalidField,
    MeshError,
    NotFound,
    Overloaded,
    Unavailable,
    from_rpc_error,
)
from evenmesh_core.confidence_sequences import empirical_bernstein_sequence
from evenmesh_core.exposure import exposure_metrics
from evenmesh_core.plackett_luce import log_weights, sample_rankings
from evenmesh_core.text_metrics import token_f1
from evenmesh_kit.rpc.server import MeshServer, Registration
from evenmesh_kit.settings import ServiceSettings
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_reranker.__main__ import RerankerService
from evenmesh_reranker.settings import RerankerSettings
from tests.support.killable import Killable
from tests.support.lifecycle import Idle
from tests.support.model_server import tei
from tests.support.scripted_http import HttpReply, HttpRequest, replying, serving
from tests.support.started import refusal
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[2]
DEADLINE_S = 90.0
Degradation = common_pb2.Degradation
ENSEMBLES = json.dumps({"hub": {"members": ["Wiki@2", "SE@1", "Wiki@RR@2", "PK", "ReFree"]}})
SOURCES = json.dumps(
    {
        "Wiki": {"collection": "wiki", "retriever": "dense"},
        "SE": {"web": "searx", "depth": 4},
        "HB": {"all": ["Wiki@2", "SE", "PK"]},
    }
)


@dataclass
class Script:
    """What an upstream does, and what it was asked."""

    error: Exception | None = None
    delay_s: float = 0.0
    asked: list[Any] = field(default_factory=list)
    cancelled: int = 0
    away: str = ""

    def reset(self) -> None:
        """Works again, and was asked nothing."""
        self.away = ""
        self.error, self.delay_s, self.asked, self.cancelled = None, 0.0, [], 0

    async def act(self, request: Message) -> None:
        """Notes the request, waits, and fails if it is to."""
        self.asked.append(request)
        try:
            await asyncio.sleep(self.delay_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error


class ScriptedRetriever(Script, retriever_grpc.RetrieverServiceServicer):
    """Finds six passages of two providers; sampled rankings start one passage further each time."""

    async def Retrieve(  # noqa: N802
        self, request: retriever_pb.RetrieveRequest, context: Any
    ) -> retriever_pb.RetrieveResponse:
        await self.act(request)
        place = request.web or request.collection
        if self.away and place == self.away:
            raise Unavailable("WEB_UNAVAILABLE", "the search does not answer")
        if request.HasField("candidates"):
            passages = list(request.candidates.passages)
        else:
            passages = [
                common_pb2.Passage(
                    id=f"p{i}", text=f"Passage {i} is about river{i}.", attributes={"provider": "PQ"[i % 2]}
                )
                for i in range(6)
            ]
        n, k = len(passages), min(request.k, len(passages))
        count = request.sampling.num_rankings if request.HasField("sampling") else 1
        return retriever_pb.RetrieveResponse(
            passages=passages,
            scores=range(n, 0, -1),
            rankings=common_pb2.Rankings(
                depth=k,
                indices=[(start + i) % n for start in range(count) for i in range(k)],
                log_probabilities=[-1.0] * count if request.HasField("sampling") else [],
            ),
            index_version="v1",
            retriever="bm25",
        )

    async def ListSources(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    async def ListRetrievers(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError


class ScriptedReranker(Script, reranker_grpc.RerankerServiceServicer):
    """Likes later passages better."""

    async def Rerank(self, request: reranker_pb.RerankRequest, context: Any) -> reranker_pb.RerankResponse:  # noqa: N802
        await self.act(request)
        n = len(request.passages)
        return reranker_pb.RerankResponse(
            scores=[i / n for i in range(n)], reranker=request.reranker, model_version="r1"
        )


class ScriptedGenerator(Script, generator_grpc.GeneratorServiceServicer):
    """Answers with the last word of the first passage, letter by letter."""

    letter_delay_s = 0.0
    error_after = 0
    models: Sequence[str] = ()

    def reset(self) -> None:
        """Works again, and was asked nothing."""
        super().reset()
        self.letter_delay_s, self.error_after, self.models = 0.0, 0, ()

    async def Generate(  # noqa: N802
        self, request: generator_pb.GenerateRequest, context: Any
    ) -> AsyncIterator[generator_pb.GenerateResponse]:
        self.asked.append(request)
        answer = self._answer(request)
        try:
            await asyncio.sleep(self.delay_s)
            for i, letter in enumerate(answer.text):
                if self.error is not None and i == self.error_after:
                    raise self.error
                yield generator_pb.GenerateResponse(delta=letter)
                await asyncio.sleep(self.letter_delay_s)
            yield generator_pb.GenerateResponse(answer=answer)
        except (asyncio.CancelledError, GeneratorExit):  # the latter while a letter is being sent
            self.cancelled += 1
            raise

    async def GenerateBatch(  # noqa: N802
        self, request: generator_pb.GenerateBatchRequest, context: Any
    ) -> generator_pb.GenerateBatchResponse:
        self.asked.append(request)
        try:
            await asyncio.sleep(self.delay_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return generator_pb.GenerateBatchResponse(
            results=[generator_pb.GenerateBatchResult(answer=self._answer(one)) for one in request.requests]
        )

    @staticmethod
    def _answer(request: generator_pb.GenerateRequest) -> generator_pb.Answer:
        text = request.passages[0].text.split()[-1] if request.passages else "memory"
        return generator_pb.Answer(
            text=text, model="scripted", model_version="g1", log_probability=-0.25, engine="pointer"
        )

    async def ScoreRelevance(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    async def ListModels(self, request: Any, context: Any) -> Any:  # noqa: N802
        if not self.models:
            raise Unavailable("STARTING", "the models are being loaded")
        return generator_pb.ListModelsResponse(models=[generator_pb.Model(name=one) for one in self.models])


class _Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="EVENMESH_SCRIPTED_")


async def _serve(stack: AsyncExitStack, servicer: object, add: Callable[..., None]) -> str:
    name = type(servicer).__mro__[-2].__name__
    server = MeshServer(
        name,
        _Settings(grace_s=0.1),
        Idle(Registration(add, servicer, f"scripted.{name}")),
        telemetry=Telemetry.disabled(),
    )
    await stack.enter_async_context(server)
    return server.address


@dataclass
class Mesh:
    """An orchestrator and what it talks to."""

    retriever: ScriptedRetriever
    reranker: ScriptedReranker
    generator: ScriptedGenerator
    evaluator: Killable
    orchestrator: Killable
    settings: dict[str, str]
    channel: grpc.aio.Channel
    run_id: str = "run"

    @property
    def stub(self) -> pb_grpc.OrchestratorServiceAsyncStub:
        """A stub of the orchestrator."""
        return pb_grpc.OrchestratorServiceStub(self.channel)

    async def ask(self, *, seconds: float = 60, **request: Any) -> list[pb.AskResponse]:
        """All events of an ask."""
        asked = pb.AskRequest(**({"question": "Which river?", "run_id": self.run_id} | request))
        return [event async for event in self.stub.Ask(asked, timeout=seconds)]

    async def refused(self, *, seconds: float = 60, **request: Any) -> tuple[grpc.StatusCode, MeshError]:
        """The error of an ask that must fail."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.ask(seconds=seconds, **request)
        return caught.value.code(), from_rpc_error(caught.value)

    async def report(self) -> evaluator_pb.RunReport:
        """The evaluator's report of this test's run; empty if there is none."""
        async with grpc.aio.insecure_channel(self.evaluator.address) as channel:
            call = evaluator_grpc.EvaluatorServiceStub(channel).GetReport(
                evaluator_pb.GetReportRequest(run_id=self.run_id), timeout=30, wait_for_ready=True
            )
            if await call.code() is grpc.StatusCode.NOT_FOUND:
                return evaluator_pb.RunReport()
            return (await call).report

    async def observed(self, count: int) -> evaluator_pb.RunReport:
        """The report of this test's run once it has so many observations."""
        ends = time.monotonic() + DEADLINE_S
        while (report := await self.report()).num_observations < count:
            assert time.monotonic() < ends, f"{report.num_observations} of {count} observations arrived"
            await asyncio.sleep(0.05)
        return report


@asynccontextmanager
async def _mesh(
    home: Path, *, with_evaluator: bool = True, beside: Mesh | None = None, **settings: str
) -> AsyncIterator[Mesh]:
    """Run an orchestrator before scripted upstreams, and an evaluator.

    Args:
        home: of both.
        with_evaluator: whether the evaluator runs; it can be started later.
        beside: a mesh whose evaluator is used instead, which stays as it is.
        settings: of the orchestrator.
    """
    async with AsyncExitStack() as stack:
        retriever, reranker, generator = ScriptedRetriever(), ScriptedReranker(), ScriptedGenerator()
        targets = {
            "RETRIEVER_TARGET": await _serve(
                stack, retriever, retriever_grpc.add_RetrieverServiceServicer_to_server
            ),
            "RERANKER_TARGET": await _serve(
                stack, reranker, reranker_grpc.add_RerankerServiceServicer_to_server
            ),
            "GENERATOR_TARGET": await _serve(
                stack, generator, generator_grpc.add_GeneratorServiceServicer_to_server
            ),
        }
        evaluator = Killable("evenmesh_evaluator", "evaluator", home) if beside is None else beside.evaluator
        if beside is None:
            stack.callback(evaluator.kill)
            if with_evaluator:
                await evaluator.start()
        settings = {**targets, "EVALUATOR_TARGET": evaluator.address, **settings}
        orchestrator = Killable("evenmesh_orchestrator", "orchestrator", home, **settings)
        stack.callback(orchestrator.kill)
        await orchestrator.start()
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(orchestrator.address))
        yield Mesh(retriever, reranker, generator, evaluator, orchestrator, settings, channel)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Mesh]:
    """A mesh that the tests of this file share."""
    async with _mesh(tmp_path_factory.mktemp("home"), SOURCES=SOURCES, ENSEMBLES=ENSEMBLES) as mesh:
        yield mesh


@pytest.fixture
def mesh(shared: Mesh) -> Mesh:
    """The shared mesh with everything working, nothing asked yet, and a run of the test's own."""
    for upstream in (shared.retriever, shared.reranker, shared.generator):
        upstream.reset()
    shared.run_id = uuid.uuid4().hex
    return shared


def _kinds(events: list[pb.AskResponse]) -> list[str | None]:
    """Kinds of the events, deltas in a row as one."""
    kinds: list[str | None] = []
    for event in events:
        kind = event.WhichOneof("event")
        if kind != "delta" or kinds[-1:] != ["delta"]:
            kinds.append(kind)
    return kinds


def _only(events: list[pb.AskResponse], kind: str) -> Any:
    (found,) = [getattr(event, kind) for event in events if event.WhichOneof("event") == kind]
    return found


def _all(events: Sequence[pb.AskResponse | pb.AuditResponse], kind: str) -> list[Any]:
    return [getattr(event, kind) for event in events if event.WhichOneof("event") == kind]


async def test_an_ask_from_end_to_end(mesh: Mesh) -> None:
    events = await mesh.ask(
        k=2,
        want_report=True,
        labels={"has_useful": True, "useful_passage_ids": ["p5"], "references": ["river5"]},
    )
    assert _kinds(events) == ["retrieved", "ranked", "delta", "answer", "report", "done"]
    retrieved, ranked, answer = _only(events, "retrieved"), _only(events, "ranked"), _only(events, "answer")
    assert [one.id for one in retrieved.passages] == [f"p{i}" for i in range(6)]
    assert (retrieved.retriever, retrieved.index_version, len(retrieved.scores)) == ("bm25", "v1", 6)
    # The reranker turns the order around.
    assert (ranked.contexts.depth, list(ranked.contexts.indices)) == (2, [5, 4])
    assert (ranked.reranker, ranked.model_version) == ("cross-encoder", "r1")
    assert answer.answer.text == "".join(delta.text for delta in _all(events, "delta")) == "river5."
    (citation,) = answer.citations
    assert (citation.passage_id, citation.provider, citation.rank) == ("p5", "Q", 1)
    assert retrieved.passages[5].text[citation.start : citation.end] == "river5"

    report, done = _only(events, "report"), _only(events, "done")
    # Shown are p5 and p4, useful is p5: ε* = 1 for it and 1/5 for each other, so EE-R = 1 + 1/5 of 1 + 5/25.
    assert (report.ee_d_norm, report.ee_r_norm, report.expected_utility) == (1.0, pytest.approx(1.0), 1.0)
    assert [(one.name, one.exposure, one.share) for one in report.providers] == [
        ("P", 1.0, 0.5),
        ("Q", 1.0, 0.5),
    ]
    assert [one.stage for one in done.stage_times] == [
        common_pb2.STAGE_RETRIEVE,
        common_pb2.STAGE_RERANK,
        common_pb2.STAGE_GENERATE,
        common_pb2.STAGE_OBSERVE,
    ]
    # The evaluator, which is another process, measured the same of its observation.
    assert report.run.num_observations == 1
    for name in ("ee_d_norm", "ee_r_norm", "expected_utility"):
        assert getattr(report.run, name).mean == pytest.approx(getattr(report, name), rel=1e-12)
    assert [(one.name, one.exposure) for one in report.run.providers] == [("P", 1.0), ("Q", 1.0)]
    assert (await mesh.report()) == report.run

    # What the upstreams were asked.
    (asked,) = mesh.retriever.asked
    assert (asked.collection, asked.depth, asked.k) == ("demo", 100, 100)
    assert len(mesh.reranker.asked[0].passages) == 6
    assert [one.id for one in mesh.generator.asked[0].passages] == ["p5", "p4"]


async def test_a_sampled_ask_answers_each_context_once(mesh: Mesh) -> None:
    events = await mesh.ask(reranker="none", k=1, sampling={"num_rankings": 8, "alpha": 2, "seed": 3})
    answers = _all(events, "answer")
    # Rankings start one further each time over six passages: samples 6 and 7 show what 0 and 1 showed.
    assert [(one.answer.text, list(one.samples)) for one in answers] == [
        ("river0.", [0, 6]),
        ("river1.", [1, 7]),
        ("river2.", [2]),
        ("river3.", [3]),
        ("river4.", [4]),
        ("river5.", [5]),
    ]
    # ε = (1/4, 1/4, 1/8 × 4): EE-D = 2/16 + 4/64.
    assert _only(events, "report").ee_d_norm == pytest.approx(3 / 16)
    (_, batch) = mesh.generator.asked
    assert len(batch.requests) == 5
    report = await mesh.observed(1)
    assert (report.num_rankings, report.num_unanswered) == (8, 0)
    assert report.ee_d_norm.mean == pytest.approx(3 / 16)


async def test_inline_candidates_are_asked_instead_of_a_collection(mesh: Mesh) -> None:
    passages = [common_pb2.Passage(id=f"c{i}", text=f"Text {i} word{i}") for i in range(100)]
    events = await mesh.ask(candidates={"passages": passages}, k=3, reranker="none")
    assert len(_only(events, "retrieved").passages) == 100
    assert _only(events, "answer").answer.text == "word0"
    assert not mesh.retriever.asked[0].HasField("collection")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "empty question": ({"question": ""}, "question"),
    "1 MB question": ({"question": "x" * 2**20}, "question"),
    "blank question": ({"question": "\t\n"}, "question"),
    "collection's name": ({"collection": "../etc"}, "collection"),
    "k = 0": ({"k": 0}, "k"),
    "k above depth": ({"k": 11, "depth": 10}, "k"),
    "k above candidates": ({"k": 2, "candidates": {"passages": [{"id": "a", "text": "b"}]}}, "k"),
    "negative alpha": ({"sampling": {"alpha": -1}}, "sampling.alpha"),
    "alpha not a number": ({"sampling": {"alpha": float("nan")}}, "sampling.alpha"),
    "no rankings": ({"sampling": {"num_rankings": 0}}, "sampling.num_rankings"),
    "duplicate passages": (
        {"candidates": {"passages": [{"id": "a", "text": "b"}] * 2}},
        "candidates.passages[1].id",
    ),
    "oversized passage": (
        {"candidates": {"passages": [{"id": "a", "text": "x" * 65_537}]}},
        "candidates.passages[0].text",
    ),
    "many candidates, one bad": (
        {"candidates": {"passages": [{"id": str(i), "text": "b" * (i != 99)} for i in range(100)]}},
        "candidates.passages[99].text",
    ),
    "too many answers": ({"num_answers": 2}, "num_answers"),
    "labels without has_useful": ({"labels": {"useful_passage_ids": ["a"]}}, "labels.has_useful"),
}


async def test_bad_input_names_the_field(mesh: Mesh) -> None:
    for what, (request, field_) in BAD.items():
        code, error = await mesh.refused(**request)
        assert (what, code, error.field) == (what, grpc.StatusCode.INVALID_ARGUMENT, field_)
    assert mesh.retriever.asked == []

    call = mesh.channel.unary_stream("/evenmesh.orchestrator.v1.OrchestratorService/Ask")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"\x0a\x02\xff\xfe", timeout=30).read()  # wrong UTF-8
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_upstream_refusals_reach_the_caller_under_the_asks_own_names(mesh: Mesh) -> None:
    cases: list[tuple[Script, MeshError, grpc.StatusCode, str | None]] = [
        (
            mesh.retriever,
            NotFound("collection", "no collection 'x'"),
            grpc.StatusCode.NOT_FOUND,
            "collection",
        ),
        (mesh.retriever, InvalidField("query", "too odd"), grpc.StatusCode.INVALID_ARGUMENT, "question"),
        (mesh.retriever, NotFound("retriever", "none such"), grpc.StatusCode.NOT_FOUND, "retriever"),
        (
            mesh.retriever,
            FailedPrecondition("NO_DENSE_INDEX", "no dense index"),
            grpc.StatusCode.FAILED_PRECONDITION,
            None,
        ),
        (mesh.reranker, NotFound("reranker", "none such"), grpc.StatusCode.NOT_FOUND, "reranker"),
        (mesh.reranker, InvalidField("passages[3].id", "odd"), grpc.StatusCode.INVALID_ARGUMENT, None),
        (mesh.generator, NotFound("model", "none such"), grpc.StatusCode.NOT_FOUND, "model"),
        (
            mesh.generator,
            InvalidField("decoding.num_beams", "not streamed"),
            grpc.StatusCode.INVALID_ARGUMENT,
            "decoding.num_beams",
        ),
    ]
    for upstream, error, code, field_ in cases:
        upstream.error = error
        status, read = await mesh.refused(reranker="cross-encoder")
        upstream.error = None
        assert (status, read.reason, read.field) == (code, error.reason, field_)
        assert read.message.endswith(error.message)
        assert read.message.count(error.message) == 1

    mesh.retriever.error = Overloaded("too many texts", 1.5)
    status, read = await mesh.refused()
    assert (status, read.retry_after_s) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 1.5)


def _audit(mesh: Mesh, **request: Any) -> pb.AuditRequest:
    """An audit of six passages, of which the first and the last are useful."""
    asked = {
        "question": "Which river?",
        "run_id": mesh.run_id,
        "query_id": "q1",
        "reranker": "none",
        "k": 2,
        "sampling": {"num_rankings": 30, "seed": 7},
        "labels": {
            "has_useful": True,
            "useful_passage_ids": ["p0", "p5"],
            "references": ["river0", "river5"],
        },
    } | request.pop("ask", {})
    return pb.AuditRequest(ask=asked, **({"alphas": [1, 4], "num_oracle": 10} | request))


async def _audited(mesh: Mesh, *, seconds: float = 60, **request: Any) -> list[pb.AuditResponse]:
    return [event async for event in mesh.stub.Audit(_audit(mesh, **request), timeout=seconds)]


def _level(events: list[pb.AuditResponse], policy: int, alpha: float = 0.0) -> list[pb.AuditSample]:
    samples = [event.sample for event in events if event.HasField("sample")]
    return [one for one in samples if one.policy == policy and one.alpha == alpha]


async def test_an_audit_is_an_offline_loop_over_the_same_samples(mesh: Mesh) -> None:
    events = await _audited(mesh)

    scores, names = np.arange(6, 0, -1.0), [f"p{i}" for i in range(6)]
    useful = [name in ("p0", "p5") for name in names]

    def utility(row: Sequence[int]) -> float:
        return token_f1(f"river{row[0]}.", ["river0", "river5"])

    rows = {(pb.AUDIT_POLICY_DETERMINISTIC, 0.0): [[0, 1]]}
    for alpha in (1.0, 4.0):
        drawn = sample_rankings(
            log_weights(scores, alpha),
            num_rankings=30,
            k=2,
            rng=np.random.default_rng([7, zlib.crc32(b"Which river?")]),
        )
        rows[pb.AUDIT_POLICY_SAMPLED, alpha] = drawn.tolist()
    for (policy, alpha), level in rows.items():
        assert [
            (one.sample, list(one.passage_ids), one.answer, one.utility)
            for one in _level(events, policy, alpha)
        ] == [
            (sample, [names[item] for item in row], f"river{row[0]}.", utility(row))
            for sample, row in enumerate(level)
        ]
    oracle = _level(events, pb.AUDIT_POLICY_ORACLE)
    assert [set(one.passage_ids) for one in oracle] == [{"p0", "p5"}] * 10

    reports = {(one.audit.policy, one.audit.alpha): one for one in _all(events, "report")}
    for key, level in rows.items():
        metrics = exposure_metrics(level, useful, k=2)
        report, mean = reports[key], sum(map(utility, level)) / len(level)
        assert list(report.exposure) == pytest.approx(metrics.exposure.tolist(), rel=1e-12)
        for name in ("ee_d", "ee_r", "ee_d_norm", "ee_r_norm"):
            assert getattr(report, name) == pytest.approx(getattr(metrics, name), rel=1e-12)
        assert (report.audit.u_max, report.expected_utility) == (1.0, pytest.approx(mean))
        assert report.audit.normalized_expected_utility == pytest.approx(mean)

    # Every context was sent once, and the evaluator has an observation of every level.
    asked = [
        [passage.id for passage in one.passages] for batch in mesh.generator.asked for one in batch.requests
    ]
    settled = next(event.settled for event in events if event.HasField("settled"))
    assert len(asked) == len(set(map(tuple, asked))) == settled.num_contexts
    report = await mesh.observed(4)
    assert (report.num_rankings, report.num_unanswered) == (1 + 30 + 30 + 10, 0)
    await _audited(mesh)
    assert (await mesh.report()).num_observations == 4


async def test_an_audit_that_cannot_be_run_is_refused_under_its_own_names(mesh: Mesh) -> None:
    for request, field_ in (
        ({"ask": {"labels": {}}}, "ask.labels.has_useful"),
        ({"ask": {"question": " "}}, "ask.question"),
        ({"alphas": [200]}, "alphas[0]"),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _audited(mesh, **request)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert from_rpc_error(caught.value).field == field_
    mesh.retriever.error = NotFound("retriever", "there is no 'x'")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _audited(mesh, ask={"retriever": "x"})
    assert from_rpc_error(caught.value).field == "ask.retriever"
    assert mesh.generator.asked == []


async def test_a_model_that_does_not_exist_is_refused_before_work_begins(mesh: Mesh) -> None:
    mesh.generator.models = ["small"]
    code, error = await mesh.refused(model="large")
    assert (code, error.field) == (grpc.StatusCode.NOT_FOUND, "model")
    assert "there are small" in error.message
    code, error = await mesh.refused(model="large", ensemble={"expressions": ["Wiki@2", "SE@1"]})
    assert (code, error.field) == (grpc.StatusCode.NOT_FOUND, "model")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _audited(mesh, ask={"model": "large"})
    assert (caught.value.code(), from_rpc_error(caught.value).field) == (code, "ask.model")
    assert mesh.retriever.asked == mesh.reranker.asked == mesh.generator.asked == []

    await mesh.ask(model="small")
    await mesh.ask(model="large", num_answers=0)  # nobody answers with it
    mesh.generator.models = []
    await mesh.ask(model="large")  # nobody knows, so the generator is asked


async def test_cancelling_an_audit_stops_the_model(mesh: Mesh) -> None:
    mesh.generator.delay_s = 120
    call = mesh.stub.Audit(_audit(mesh), timeout=240)
    assert (await call.read()).HasField("settled")  # type: ignore[union-attr]
    await until(lambda: mesh.generator.asked, DEADLINE_S)
    call.cancel()
    await until(lambda: mesh.generator.cancelled >= len(mesh.generator.asked), DEADLINE_S)
    assert (await mesh.report()).num_observations == 0


async def test_an_audit_names_what_degraded(mesh: Mesh) -> None:
    mesh.reranker.error = RuntimeError("secret")
    events = await _audited(mesh, ask={"reranker": "rankrag", "rerank_depth": 6})
    (degraded,) = [event.degraded for event in events if event.HasField("degraded")]
    assert (degraded.stage, degraded.action) == (common_pb2.STAGE_RERANK, Degradation.ACTION_RETRIEVER_ORDER)
    assert list(_level(events, pb.AUDIT_POLICY_DETERMINISTIC)[0].passage_ids) == ["p0", "p1"]


async def test_an_audit_stops_where_its_interval_is_narrow_enough(mesh: Mesh) -> None:
    labels = {"has_useful": True, "useful_passage_ids": ["p0"], "references": [f"river{i}" for i in range(6)]}
    events = await _audited(mesh, ask={"labels": labels, "sampling": {"num_rankings": 200}}, until_width=0.3)
    needed = empirical_bernstein_sequence(np.ones(200)).first_within(0.3)
    for alpha in (1.0, 4.0):
        assert len(_level(events, pb.AUDIT_POLICY_SAMPLED, alpha)) == needed


async def test_a_slow_reranker_is_cut_and_cancelled(mesh: Mesh) -> None:
    mesh.reranker.delay_s = 120
    events = await mesh.ask(seconds=10, k=2)
    degraded = _only(events, "degraded")
    assert (degraded.stage, degraded.action, degraded.reason) == (
        common_pb2.STAGE_RERANK,
        Degradation.ACTION_RETRIEVER_ORDER,
        "BUDGET_EXCEEDED",
    )
    assert list(_only(events, "ranked").contexts.indices) == [0, 1]
    assert _only(events, "answer").answer.text == "river0."
    await until(lambda: mesh.reranker.cancelled, DEADLINE_S)
    report = await mesh.observed(1)
    assert [(one.stage, one.reason) for one in report.degradations] == [
        (common_pb2.STAGE_RERANK, "BUDGET_EXCEEDED")
    ]


async def test_a_broken_reranker_is_named_without_its_internals(mesh: Mesh) -> None:
    mesh.reranker.error = RuntimeError("secret path /etc/model")
    degraded = _only(await mesh.ask(), "degraded")
    assert degraded.reason == "UPSTREAM_ERROR"
    assert "secret" not in degraded.message


async def test_a_reranker_whose_model_server_is_down_degrades_and_says_so(
    shared: Mesh, tmp_path: Path
) -> None:
    script = [tei(score=lambda _, texts: [1.0 if "river3" in text else 0.1 for text in texts])]

    async def served(request: HttpRequest, reply: HttpReply) -> None:
        await script[0](request, reply)

    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(served))
        settings = RerankerSettings(
            port=0,
            home=tmp_path / "reranker",
            grace_s=0,
            cross_encoder="",
            default_reranker="none",
            remote_urls=(server.url,),
        )
        service = RerankerService(settings, Telemetry.disabled())
        reranker = await stack.enter_async_context(
            MeshServer("reranker", settings, service, telemetry=Telemetry.disabled())
        )
        mesh = await stack.enter_async_context(
            _mesh(tmp_path, beside=shared, RERANKER_TARGET=reranker.address)
        )
        ask = partial(mesh.ask, k=2, reranker="remote")
        events = await ask()
        ranked = _only(events, "ranked")
        assert (ranked.reranker, ranked.contexts.indices[0]) == ("remote", 3)
        assert not _all(events, "degraded")
        for fault, reason in (
            (replying(503, {}), "UPSTREAM_UNAVAILABLE"),
            (replying(200, [{"index": 0, "score": 0.5}]), "UPSTREAM_UNAVAILABLE"),
            (replying(429, {}, retry_after="1"), "UPSTREAM_OVERLOADED"),
        ):
            script[0] = fault
            events = await ask()
            degraded = _only(events, "degraded")
            assert (degraded.stage, degraded.action, degraded.reason) == (
                common_pb2.STAGE_RERANK,
                Degradation.ACTION_RETRIEVER_ORDER,
                reason,
            )
            assert list(_only(events, "ranked").contexts.indices) == [0, 1]
            assert _only(events, "answer").answer.text == "river0."


async def test_the_callers_deadline_holds_and_travels(mesh: Mesh) -> None:
    mesh.generator.delay_s = 120
    began = time.monotonic()
    code, _ = await mesh.refused(seconds=4)
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - began < 60
    await until(lambda: mesh.generator.cancelled, DEADLINE_S)


async def test_cancelling_an_ask_stops_the_model(mesh: Mesh) -> None:
    mesh.generator.letter_delay_s = 60.0
    call = mesh.stub.Ask(pb.AskRequest(question="Which river?", run_id=mesh.run_id), timeout=60)
    async for event in call:
        if event.HasField("delta"):
            break
    call.cancel()
    await until(lambda: mesh.generator.cancelled, DEADLINE_S)
    assert (await mesh.report()).num_observations == 0


async def test_a_generator_that_dies_in_the_middle_leaves_what_was_said(mesh: Mesh) -> None:
    mesh.generator.error, mesh.generator.error_after = RuntimeError("died"), 3
    mesh.generator.letter_delay_s = 0.05
    events = await mesh.ask()
    assert _kinds(events)[-4:] == ["degraded", "failed", "report", "done"]
    assert "".join(delta.text for delta in _all(events, "delta")) == "riv"
    failed = _only(events, "failed")
    assert (list(failed.samples), failed.error.code) == ([0], "INTERNAL")
    report = await mesh.observed(1)
    assert report.num_unanswered == 1


async def test_upstreams_that_are_not_there(shared: Mesh, tmp_path: Path) -> None:
    nowhere = "127.0.0.1:9"
    async with _mesh(tmp_path, beside=shared, RERANKER_TARGET=nowhere) as mesh:
        degraded = _only(await mesh.ask(), "degraded")
        assert (degraded.reason, degraded.action) == (
            "UPSTREAM_UNAVAILABLE",
            Degradation.ACTION_RETRIEVER_ORDER,
        )
    async with _mesh(tmp_path, beside=shared, RETRIEVER_TARGET=nowhere, GENERATOR_TARGET=nowhere) as mesh:
        code, error = await mesh.refused()
        assert (code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "UPSTREAM_UNAVAILABLE")
        assert nowhere not in error.message


async def test_without_a_generator_retrieval_still_works(shared: Mesh, tmp_path: Path) -> None:
    async with _mesh(tmp_path, beside=shared, GENERATOR_TARGET="127.0.0.1:9") as mesh:
        code, _ = await mesh.refused()
        assert code is grpc.StatusCode.UNAVAILABLE
        events = await mesh.ask(num_answers=0)
        assert _kinds(events) == ["retrieved", "ranked", "report", "done"]


async def test_too_much_at_once_is_refused_with_a_delay(shared: Mesh, tmp_path: Path) -> None:
    async with _mesh(tmp_path, beside=shared, MAX_WORK="10") as mesh:
        mesh.generator.delay_s = 3
        first = asyncio.create_task(mesh.ask(reranker="none", sampling={"num_rankings": 10}))
        await until(lambda: mesh.generator.asked, DEADLINE_S)
        code, error = await mesh.refused()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error.retry_after_s is not None
        assert _kinds(await first)[-1] == "done"


async def test_observations_survive_the_evaluator_and_the_orchestrator(tmp_path: Path) -> None:
    """The evaluator is killed; asks go on, say so, and survive kill -9 of the orchestrator too."""
    async with _mesh(tmp_path) as mesh:
        assert not _all(await mesh.ask(), "degraded")
        await mesh.observed(1)
        mesh.evaluator.kill()
        asked = [await mesh.ask() for _ in range(3)]
        for events in asked:
            degraded = _only(events, "degraded")
            assert (degraded.stage, degraded.action, degraded.reason) == (
                common_pb2.STAGE_OBSERVE,
                Degradation.ACTION_OBSERVATION_QUEUED,
                "UPSTREAM_UNAVAILABLE",
            )
            assert _only(events, "answer").answer.text == "river5."
            assert _kinds(events)[-1] == "done"
        with_report = await mesh.ask(want_report=True)
        assert not _only(with_report, "report").HasField("run")
        assert _only(with_report, "degraded").action == Degradation.ACTION_OBSERVATION_QUEUED

        mesh.orchestrator.kill()
        await mesh.evaluator.start()
        await mesh.orchestrator.start()
        report = await mesh.observed(5)
        assert report.num_observations == report.ee_d.count == 5
        await mesh.channel.channel_ready()
        assert not _all(await mesh.ask(), "degraded")
        assert (await mesh.observed(6)).num_observations == 6


async def test_an_evaluator_that_comes_late_gets_everything(tmp_path: Path) -> None:
    async with _mesh(tmp_path, with_evaluator=False) as mesh:
        await asyncio.gather(*(mesh.ask(reranker="none") for _ in range(20)))
        await mesh.evaluator.start()
        assert (await mesh.observed(20)).num_observations == 20
        async with asyncio.timeout(DEADLINE_S):
            while _all(await mesh.ask(), "degraded"):
                await asyncio.sleep(0.1)


async def test_an_expression_from_end_to_end(mesh: Mesh) -> None:
    events = await mesh.ask(
        expression="SE@RR@2 & Wiki@1 @CP",
        want_report=True,
        labels={"has_useful": True, "useful_passage_ids": ["wiki/p0"]},
    )
    assert _kinds(events) == ["retrieved", "ranked", "delta", "answer", "report", "done"]
    assert {(one.web or one.collection, one.retriever, one.depth) for one in mesh.retriever.asked} == {
        ("searx", "", 4),
        ("wiki", "dense", 20),
    }
    retrieved, ranked = _only(events, "retrieved"), _only(events, "ranked")
    # The scripted retriever has six passages wherever it looks, and brings all of them.
    ids = [one.id for one in retrieved.passages]
    assert ids == [f"web:searx/p{i}" for i in range(6)] + [f"wiki/p{i}" for i in range(6)]
    assert (retrieved.retriever, retrieved.index_version) == ("SE@RR@2&Wiki@1@CP", "SE=v1,Wiki=v1")
    # The reranker turns its list around.
    assert [ids[i] for i in ranked.contexts.indices] == ["web:searx/p5", "web:searx/p4", "wiki/p0"]
    (asked,) = mesh.generator.asked
    assert asked.augmentation == generator_pb.AUGMENTATION_COMPRESSION
    assert [one.id for one in asked.passages] == ["web:searx/p5", "web:searx/p4", "wiki/p0"]
    report = _only(events, "report")
    assert [one for one in report.exposure if one] == [1.0] * 3
    assert report.run.num_observations == 1
    assert report.run.ee_r_norm.mean == pytest.approx(report.ee_r_norm, rel=1e-12)


async def test_what_the_model_knows_is_a_source(mesh: Mesh) -> None:
    events = await mesh.ask(expression="HB@RR@10")
    retrieved, ranked = _only(events, "retrieved"), _only(events, "ranked")
    ids = [one.id for one in retrieved.passages]
    shown = [ids[i] for i in ranked.contexts.indices]
    # Two of Wiki, all six of the search, and the one word that the scripted model knows.
    assert shown == ["PK/1", *(f"web:searx/p{i}" for i in (5, 4, 3, 2, 1, 0)), "wiki/p1", "wiki/p0"]
    batch = mesh.generator.asked[0].requests[0]
    assert (batch.template, batch.augmentation) == (
        "eor-parametric-knowledge",
        generator_pb.AUGMENTATION_RETRIEVAL_FREE,
    )
    assert (batch.decoding.max_new_tokens, batch.decoding.num_beams) == (256, 1)


async def test_a_source_that_is_away_is_left_out_and_counted(mesh: Mesh) -> None:
    mesh.retriever.away = "searx"
    events = await mesh.ask(expression="SE@2&Wiki@1", want_report=True)
    degraded = _only(events, "degraded")
    assert (degraded.stage, degraded.action) == (
        common_pb2.STAGE_RETRIEVE,
        Degradation.ACTION_SOURCE_LEFT_OUT,
    )
    assert degraded.message == "source SE is unavailable: it is left out"
    assert len(_only(events, "ranked").contexts.indices) == 1
    assert [one.reason for one in _only(events, "report").run.degradations] == ["UPSTREAM_UNAVAILABLE"]


async def test_expressions_that_cannot_be_run_are_refused(mesh: Mesh) -> None:
    code, error = await mesh.refused(expression="SE@2&Wikipedia@1")
    assert (code, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, "expression")
    assert error.message == "column 6: there is no source 'Wikipedia'; there are HB, SE, Wiki, PK, ReFree"
    code, error = await mesh.refused(expression="SE@2@RR")
    assert (code, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, "expression")
    assert "column 5: expected &, @CP or the end, got '@RR'" in error.message
    mesh.retriever.error = InvalidField("filter.conditions[0].attribute", "no passage has 'x'")
    code, error = await mesh.refused(
        expression="Wiki@1", filter={"conditions": [{"attribute": "x", "any_of": {"values": ["y"]}}]}
    )
    assert (code, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, "filter.conditions[0].attribute")
    assert mesh.retriever.asked[-1].filter.conditions[0].attribute == "x"


async def test_a_wrong_source_stops_the_start(tmp_path: Path) -> None:
    said = await asyncio.to_thread(refusal, "orchestrator", tmp_path, SOURCES='{"HB": {"all": ["Wiki@20"]}}')
    assert "EVENMESH_ORCHESTRATOR_SOURCES" in said
    assert "source HB: there is no source 'Wiki'" in said


async def test_a_lost_observation_is_named(tmp_path: Path) -> None:
    async with _mesh(tmp_path, with_evaluator=False, OUTBOX_CAPACITY="1") as mesh:
        await mesh.ask()
        degraded = _only(await mesh.ask(), "degraded")
        assert (degraded.action, degraded.reason) == (Degradation.ACTION_OBSERVATION_DROPPED, "OUTBOX_FULL")


async def test_sigterm_lets_an_ask_finish(shared: Mesh, tmp_path: Path) -> None:
    async with _mesh(tmp_path, beside=shared) as mesh:
        mesh.generator.letter_delay_s = 0.1
        call = mesh.stub.Ask(pb.AskRequest(question="Which river?"), timeout=60)
        events = []
        async for event in call:
            events.append(event)
            if event.HasField("ranked"):
                mesh.orchestrator.terminate()
        assert _kinds(events)[-1] == "done"
        await mesh.orchestrator.stop()


async def test_a_home_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("in the way")
    port_file = str(tmp_path / "address")
    said = await asyncio.to_thread(refusal, "orchestrator", tmp_path / "home", PORT_FILE=port_file)
    assert len(said.strip().splitlines()) == 1
    assert "EVENMESH_HOME" in said


async def test_the_orchestrator_imports_no_model_library() -> None:
    heavy = {"torch", "transformers", "scipy.optimize"}
    code = f"import sys, evenmesh_orchestrator.__main__; print(sorted({heavy} & set(sys.modules)))"
    environment = dict(os.environ)
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert ended.stdout.strip() == "[]"


async def test_an_ensemble_from_end_to_end(mesh: Mesh) -> None:
    events = await mesh.ask(ensemble={"name": "hub"}, reranker="rankrag")

    answers = {one.member: one.answer.text for one in _all(events, "answer")}
    # Two members show p0 first, the reranked one p5; a search, and two from memory.
    assert answers == {
        "Wiki@2": "river0.",
        "SE@1": "river0.",
        "Wiki@RR@2": "river5.",
        "PK": "memory",
        "ReFree": "memory",
    }
    ranked = {one.member: one.contexts.depth for one in _all(events, "ranked")}
    assert ranked == {"Wiki@2": 2, "SE@1": 1, "Wiki@RR@2": 2, "PK": 0, "ReFree": 0}
    votes = _all(events, "vote")
    assert [one.num_answers for one in votes] == [1, 2, 3, 4, 5, 5]
    assert votes[-1].final
    assert (list(votes[-1].missing), votes[-1].num_missing, votes[-1].may_change) == ([], 0, False)
    # The evaluator's own vote over the same answers, in the order of the members.
    async with grpc.aio.insecure_channel(mesh.evaluator.address) as channel:
        said = [answers[name] for name in ("Wiki@2", "SE@1", "Wiki@RR@2", "PK", "ReFree")]
        request = evaluator_pb.VoteRequest(question="Which river?", answers=said)
        vote = await evaluator_grpc.EvaluatorServiceStub(channel).Vote(request, timeout=30)
    assert votes[-1].answer == said[vote.winner]
    assert np.allclose(votes[-1].scores, vote.scores, rtol=0, atol=1e-12)
    # Before the last answer the numbers of who is missing are not known; at the end only the diagonal is not.
    assert [int(np.isfinite(one.similarities).sum()) for one in votes] == [0, 2, 6, 12, 20, 20]
    assert list(votes[-1].members) == ["Wiki@2", "SE@1", "Wiki@RR@2", "PK", "ReFree"]
    alike = np.reshape(votes[-1].similarities, (5, 5))
    for one, row in enumerate(said):
        for other, column in enumerate(said):
            if one != other:
                assert alike[one, other] == pytest.approx(token_f1(row, column))
    assert _kinds(events)[-2:] == ["report", "done"]

    # The collection and the search are asked once each, and its list is reranked once.
    assert sorted(one.web or one.collection for one in mesh.retriever.asked) == ["searx", "wiki"]
    assert len(mesh.reranker.asked) == 1
    # Five members, and the vote over them.
    report = await mesh.observed(6)
    assert (report.num_observations, report.num_unanswered) == (6, 0)
    assert (votes[-1].member, votes[-1].answer) == ("Wiki@2", "river0.")
    # One of the four others says the same.
    assert (report.vote_agreement.count, report.vote_agreement.mean) == (1, pytest.approx(1 / 4))


async def test_a_late_member_of_an_ensemble_is_missing_in_the_vote(mesh: Mesh) -> None:
    mesh.retriever.away = "searx"
    events = await mesh.ask(ensemble={"expressions": ["Wiki@2", "SE@1", "ReFree"]})
    (failed,) = _all(events, "failed")
    assert failed.member == "SE@1"
    final = _all(events, "vote")[-1]
    assert (final.final, list(final.missing), final.num_answers) == (True, ["SE@1"], 2)

    mesh.retriever.away, mesh.reranker.delay_s = "", 120
    mesh.reranker.error = FailedPrecondition("NEVER", "not reached")
    events = await mesh.ask(seconds=6, ensemble={"expressions": ["Wiki@2", "Wiki@RR@2"]}, reranker="rankrag")
    # Reranking is cut at its share of the time, and the member goes on in the order of its source.
    assert _all(events, "vote")[-1].num_answers == 2
    assert "Wiki@RR@2: " in _all(events, "degraded")[0].message


async def test_an_ensemble_votes_without_the_evaluator(tmp_path: Path) -> None:
    async with _mesh(tmp_path, with_evaluator=False, SOURCES=SOURCES) as mesh:
        events = await mesh.ask(ensemble={"expressions": ["Wiki@2", "SE@1", "ReFree"]})
        reasons = {one.reason for one in _all(events, "degraded")}
        assert "UPSTREAM_UNAVAILABLE" in reasons
        final = _all(events, "vote")[-1]
        assert (final.final, final.answer, final.num_answers) == (True, "river0.", 3)
        alike = np.reshape(final.similarities, (3, 3))
        assert (alike[0, 1], alike[0, 2]) == (1, token_f1("river0.", "memory"))


async def test_what_an_ensemble_can_be_made_of_is_listed(mesh: Mesh) -> None:
    found = await mesh.stub.ListEnsembles(pb.ListEnsemblesRequest(), timeout=30)
    assert {one.name: list(one.members) for one in found.ensembles} == {
        name: one["members"] for name, one in json.loads(ENSEMBLES).items()
    }
    assert list(found.sources) == [*sorted(json.loads(SOURCES)), "PK", "ReFree"]


async def test_ensembles_that_cannot_be_run_are_refused(mesh: Mesh) -> None:
    for ensemble, field_ in (
        ({"name": "none"}, "ensemble.name"),
        ({"expressions": ["Wiki"]}, "ensemble.expressions"),
        ({"expressions": ["Wiki", "Nowhere"]}, "ensemble.expressions[1]"),
    ):
        code, error = await mesh.refused(ensemble=ensemble)
        assert (code, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, field_)
    assert mesh.retriever.asked == []


async def test_a_wrong_ensemble_stops_the_start(tmp_path: Path) -> None:
    wrong = json.dumps({"hub": {"members": ["Wiki@2", "Nowhere@3"]}})
    said = await asyncio.to_thread(refusal, "orchestrator", tmp_path, SOURCES=SOURCES, ENSEMBLES=wrong)
    assert "ensemble hub: 'Nowhere@3': column 1: there is no source 'Nowhere'" in said
