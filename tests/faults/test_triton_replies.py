"""Replies of a Triton server that no model should give: named errors, nothing of the inside in them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import TYPE_INT64

from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import Internal, InvalidField, MeshError, NotFound, Overloaded, Unavailable
from evenmesh_generator.backends.triton.client import TritonClient
from evenmesh_generator.backends.triton.model import TritonModel
from evenmesh_generator.backends.triton.wire import DESCRIBE, generation_tensors
from evenmesh_generator.domain import Answer, GenerationRequest
from evenmesh_generator.ports import Cancellation
from evenmesh_generator.triton.repository import read_config
from tests.support import triton_models
from tests.support.together import outcomes
from tests.support.triton_server import TritonServer, skip_where_impossible
from tests.support.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.faults, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A server of odd models: ``odd``, and ``other``, whose inputs are of another type than ours."""
    skip_where_impossible()
    repository = tmp_path_factory.mktemp("repository")
    triton_models.write_odd_models(repository, "odd", "other")
    config = read_config(repository / "other" / "config.pbtxt")
    for one in config.input:
        if one.name == "num_beams":
            one.data_type = TYPE_INT64
    (repository / "other" / "config.pbtxt").write_text(text_format.MessageToString(config))
    settings = {"EVENMESH_TRITON_REPOSITORY": str(repository)}
    with TritonServer(tmp_path_factory.mktemp("server"), {"odd": Path()}, settings=settings) as server:
        yield server


@pytest.fixture(autouse=True)
def _serves(server: TritonServer) -> None:
    """Start the server again if it ended in the test before, which alone shall fail; its log is in the report."""
    if not server.running:
        logging.getLogger(__name__).error("the server ended: %s", server.log.read_text()[-4000:])
        server.start()


@pytest_asyncio.fixture(loop_scope="module")
async def odd(server: TritonServer, _serves: None) -> AsyncIterator[TritonModel]:
    """The odd model."""
    async with triton_models.opened(server.target, "odd") as (model,):
        yield model


async def _ask(model: TritonModel, question: str) -> Answer | MeshError:
    (outcome,) = await outcomes(model, [GenerationRequest(question)], Cancellation(Deadline.after(60)))
    return outcome


@pytest.mark.parametrize(
    "question",
    [
        "deltas that do not join",
        "unknown finish reason",
        "no counts",
        "cost that is no JSON",
        "something after the answer",
        "no answer",
        "nothing",
        "a description",
        "stack trace",
    ],
)
async def test_what_is_no_answer_is_an_incident(odd: TritonModel, question: str) -> None:
    outcome = await _ask(odd, question)
    assert isinstance(outcome, Internal)
    assert "secret" not in str(outcome)
    assert "Traceback" not in str(outcome)
    fine = await _ask(odd, "anything else")
    assert isinstance(fine, Answer)
    assert (fine.text, fine.model_version) == ("fine", "v1")


async def test_a_stream_ends_with_the_same_error(odd: TritonModel) -> None:
    cancel = Cancellation(Deadline.after(60))
    read: list[str | Answer] = []
    with pytest.raises(Internal):
        async with aclosing(odd.generate_stream(GenerationRequest("no answer"), cancel)) as parts:
            async for part in parts:
                read.append(part)
    assert read == ["fine"]


async def test_out_of_memory_says_so(odd: TritonModel) -> None:
    outcome = await _ask(odd, "out of memory")
    assert isinstance(outcome, MeshError)
    assert (outcome.code, outcome.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OUT_OF_MEMORY")
    assert "secret" not in str(outcome)


async def test_errors_of_the_models_process_come_back_as_they_were(odd: TritonModel) -> None:
    invalid = await _ask(odd, "own error")
    assert isinstance(invalid, InvalidField)
    assert (invalid.field, invalid.message) == ("question", "is too long")
    full = await _ask(odd, "overloaded")
    assert isinstance(full, Overloaded)
    assert full.retry_after_s == 2.5


async def test_inputs_of_another_type_are_an_incident(server: TritonServer) -> None:
    client = TritonClient(server.target)
    asked = generation_tensors(GenerationRequest("anything"))
    with pytest.raises(Internal):
        await anext(client.stream("other", asked, timeout_s=30))
    await client.close()


async def test_a_model_that_fails_its_probe_takes_no_requests(server: TritonServer) -> None:
    async with triton_models.opened(server.target, "other") as (model,):
        await until(lambda: not model.up)
        outcome = await _ask(model, "anything")
        assert isinstance(outcome, Unavailable)
        assert (outcome.reason, outcome.message) == (
            "TRITON_UNAVAILABLE",
            "other fails its probe at the Triton server",
        )


async def test_a_model_that_is_not_there_is_not_found(server: TritonServer) -> None:
    client = TritonClient(server.target)
    with pytest.raises(NotFound) as caught:
        await anext(client.stream("nobody", DESCRIBE, timeout_s=30))
    assert caught.value.field == "model"
    with pytest.raises(NotFound):
        await client.infer("nobody", DESCRIBE, timeout_s=30)
    await client.close()


async def test_what_a_dead_process_owed_ends_at_once(server: TritonServer) -> None:
    """Triton would leave those who wait until their deadlines."""
    async with triton_models.opened(server.target, "odd") as (model,):
        requests = [GenerationRequest("be slow"), GenerationRequest("die"), GenerationRequest("be slow")]
        deadline = Deadline.after(60)
        found = await outcomes(model, requests, Cancellation(deadline))
        errors = [one for one in found if isinstance(one, MeshError)]
        assert {one.reason for one in errors} == {"TRITON_UNAVAILABLE"}
        assert all(one.retry_after_s for one in errors)
        assert deadline.remaining() > 20
        while isinstance(await _ask(model, "are you back"), MeshError):
            assert not deadline.expired
            await asyncio.sleep(0.1)
