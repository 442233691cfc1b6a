"""The examples of docs/guides/sdk.md run in their order, and the methods that it names exist."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from evenmesh import AsyncClient, Client
from evenmesh.addresses import VARIABLES
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2_grpc as evaluator_grpc
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator_pb2
from evenmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as orchestrator_grpc
from evenmesh.reranker.v1 import feedback_service_pb2 as feedback_pb2
from evenmesh.reranker.v1 import feedback_service_pb2_grpc as feedback_grpc
from evenmesh.retriever.v1 import collection_service_pb2 as collection_pb2
from evenmesh.retriever.v1 import collection_service_pb2_grpc as collection_grpc
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb2
from evenmesh.retriever.v1 import retriever_service_pb2_grpc as retriever_grpc
from evenmesh_evaluator.measures.servicer import MeasuresServicer
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.rpc.server import MeshServer, Registration
from evenmesh_kit.settings import ServiceSettings
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_lab.similarities import Models, Similarities
from tests.support import scripted
from tests.support.lifecycle import Idle

PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "sdk.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


class Orchestrator(scripted.Orchestrator):
    """Also takes turns."""

    async def Converse(  # noqa: N802 - the contract's name
        self, requests: AsyncIterator[orchestrator_pb2.ConverseRequest], context: Any
    ) -> AsyncIterator[orchestrator_pb2.ConverseResponse]:
        number = 0
        async for _ in requests:
            number += 1
            for event in scripted.script():
                yield orchestrator_pb2.ConverseResponse(conversation_id="c", turn=number, event=event)


class Evaluator(MeasuresServicer, scripted.Evaluator):
    """Scripted runs, and measures as they are."""

    def __init__(self, pool: ComputePool) -> None:
        scripted.Evaluator.__init__(self)
        MeasuresServicer.__init__(
            self, Similarities(Models()), pool=pool, admission=Admission(1_000_000, "KiB", queue_s=60.0)
        )


class Feedback(feedback_grpc.FeedbackServiceServicer):
    """Stores nothing, and says that it did."""

    async def RecordFeedback(  # type: ignore[override]  # noqa: N802 - the contract's name
        self, request: feedback_pb2.RecordFeedbackRequest, context: Any
    ) -> feedback_pb2.RecordFeedbackResponse:
        results = [feedback_pb2.FeedbackResult(id=one.id) for one in request.feedback]
        return feedback_pb2.RecordFeedbackResponse(results=results)


async def test_the_examples_run_in_their_order(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = ComputePool(1, "measures")
    services: list[tuple[Callable[..., None], object, Any, str]] = [
        (
            orchestrator_grpc.add_OrchestratorServiceServicer_to_server,
            Orchestrator(),
            orchestrator_pb2,
            "OrchestratorService",
        ),
        (
            retriever_grpc.add_RetrieverServiceServicer_to_server,
            scripted.Retriever(),
            retriever_pb2,
            "RetrieverService",
        ),
        (
            collection_grpc.add_CollectionServiceServicer_to_server,
            scripted.Collections(),
            collection_pb2,
            "CollectionService",
        ),
        (
            evaluator_grpc.add_EvaluatorServiceServicer_to_server,
            Evaluator(pool),
            evaluator_pb2,
            "EvaluatorService",
        ),
        (feedback_grpc.add_FeedbackServiceServicer_to_server, Feedback(), feedback_pb2, "FeedbackService"),
    ]
    registrations = [
        Registration(add, servicer, pb.DESCRIPTOR.services_by_name[name].full_name)
        for add, servicer, pb, name in services
    ]
    async with MeshServer(
        "page",
        ServiceSettings(grace_s=0, port=0),
        Idle(*registrations),
        telemetry=Telemetry.disabled(),
    ) as server:
        for variable in VARIABLES.values():
            monkeypatch.setenv(variable, server.address)
        names: dict[str, Any] = {"__name__": "page"}
        for example in EXAMPLES:
            await asyncio.to_thread(exec, example, names)
    pool.close()
    printed = capsys.readouterr().out
    for line in ("p1 Co-op", "INVALID_FIELD question None", "2 2", "1 1", "['bm25', 'dense']", "1 0 ()"):
        assert line in printed.splitlines(), printed
    assert "1 every 200 kilometres\n2 every 200 kilometres" in printed
    assert "(0.5, 0.0, 0.5) 0.5 0.5" in printed


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) == 10


@pytest.mark.parametrize("method", re.findall(r"`([a-z_]+)`(?:, `[a-z_]+`)* \|", PAGE))
def test_the_methods_of_its_table_exist(method: str) -> None:
    assert hasattr(Client, method)
    assert hasattr(AsyncClient, method)
