"""The largest request that each method takes stays within the memory that its pod has.

Each shape of ``tests.support.heavy_requests`` is sent at full size and then smaller, until the service takes it. The
table at the end of ``pytest -s`` has what it cost: CPU seconds of all services until the reply, those of the work
that went on after it, and the most memory of its own service. It runs where ``EVENMESH_LARGEST`` is set: it takes
minutes (``make largest``). CPU seconds are shown and not asserted, because they are the machine's;
``tests/contract/test_largest_model_requests.py`` counts tokens and pairs.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import psutil
import pytest
import yaml
from google.protobuf import message_factory
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evenmesh import Addresses, Client
from evenmesh.local_mesh import MeshState
from evenmesh.wire import errors
from evenmesh.wire.channel import connect
from evenmesh.wire.errors import MeshError
from evenmesh_mesh import SERVICES, MeshSettings, stop
from evenmesh_studies import demo
from tests.contract.test_method_facts import METHODS
from tests.support.detached_mesh import launch_for_tests
from tests.support.heavy_requests import COLLECTION, SHAPES, Shape
from tests.support.manifests import K8S

# fmt: off
SHARES: Final = (
    1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.14, 0.12, 0.1, 0.08,
    0.065, 0.05, 0.04, 0.03, 0.02, 0.01, 0.005, 0.002, 0.001,
)
# fmt: on
REFUSALS: Final = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
TIMEOUT_S: Final = 300
_UNITS: Final = {"Mi": 2**20, "Gi": 2**30}

if not os.environ.get("EVENMESH_LARGEST"):
    pytest.skip("EVENMESH_LARGEST=1 runs it: it takes minutes", allow_module_level=True)

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]


@dataclass(frozen=True)
class Taken:
    """What the largest request that was taken cost.

    Attributes:
        share: of the largest request that the contract allows.
        size: bytes.
        cpu_s: of all services until the reply. Seconds.
        after_s: of all services between the reply and rest. Seconds.
        took_s: until the reply.
        peak: most memory of its service. Bytes.
    """

    share: float
    size: int
    cpu_s: float
    after_s: float
    took_s: float
    peak: int

    def row(self, method: str, shape: str) -> str:
        """Return its row of the table."""
        return (
            f"| {method.rpartition('/')[2]} | {shape} | {self.size / 2**20:.2f} | {self.cpu_s:.1f} | "
            f"{self.after_s:.1f} | {self.took_s:.1f} | {self.peak / 2**20:.0f} |"
        )


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshState]:
    home = tmp_path_factory.mktemp("mesh")
    settings = MeshSettings(
        home=home,
        port=0,
        start_s=600,
        environment={
            "EVENMESH_RERANKER_CROSS_ENCODER": "bundled",
            "EVENMESH_ORCHESTRATOR_SOURCES": json.dumps(
                {"Lexical": {"collection": COLLECTION, "retriever": "bm25"}}
            ),
            "OMP_NUM_THREADS": "2",
        },
    )
    state = launch_for_tests(settings)
    try:
        with Client(Addresses(**state.addresses)) as client:
            client.ingest(demo.passages(), COLLECTION)
            client.until_embedded(COLLECTION)
        yield state
    finally:
        stop(home)


@pytest.fixture(scope="module")
def rows() -> Iterator[list[str]]:
    """Show the rows of the table when all methods have run."""
    table = [
        "| method | request | MiB | CPU s | CPU s afterwards | s | MiB of memory |",
        "|---|---|---|---|---|---|---|",
    ]
    yield table
    sys.stderr.write("\n" + "\n".join(table) + "\n")


@pytest.mark.parametrize("method", SHAPES)
async def test_the_largest_request_fits_its_pod(mesh: MeshState, rows: list[str], method: str) -> None:
    name = method.split(".")[1]
    process = psutil.Process(mesh.services[name].pid)
    service = method.split("/")[1]
    for shape, build in SHAPES[method].items():
        async with connect(mesh.services[name].address, service=service, retry=False) as channel:
            taken = await _largest_taken(channel, method, build, process, mesh)
            health = health_pb2_grpc.HealthStub(channel)
            await health.Check(health_pb2.HealthCheckRequest(), timeout=60)
        rows.append(taken.row(method, shape))
        sys.stderr.write(f"{rows[-1]} {taken.share:g} of the largest\n")
        assert taken.peak < memory_limit(name)


async def _largest_taken(
    channel: Any, method: str, build: Shape, process: psutil.Process, mesh: MeshState
) -> Taken:
    refused = ""
    taken = None
    for at, share in enumerate((SHARES[-1], *SHARES)):
        built = build(share)
        requests = built if isinstance(built, list) else [built]
        size = sum(one.ByteSize() for one in requests)
        _forget_peak(process.pid)
        before, begun = _cpu_s(mesh), time.monotonic()
        try:
            await _call(channel, method, requests)
        except (grpc.RpcError, MeshError) as error:
            failed = errors.from_rpc_error(error) if isinstance(error, grpc.RpcError) else error
            refused = f"{failed.code.name} {failed.reason}: {failed}"
            if failed.code in REFUSALS:
                continue
            # A model's work takes what it takes.
            assert failed.code is grpc.StatusCode.DEADLINE_EXCEEDED, refused
        spent, took = _cpu_s(mesh) - before, time.monotonic() - begun
        after = await _at_rest(mesh) - before - spent
        taken = Taken(share, size, spent, after, took, _peak(process.pid))
        if at:  # the first one, a small one, loads models
            return taken
    if taken is not None:
        return taken
    pytest.fail(f"{method} takes none of the requests: {refused}")


async def _call(channel: Any, method: str, sent: list[Message]) -> None:
    reply = message_factory.GetMessageClass(METHODS[method].output_type)

    async def requests() -> AsyncIterator[Message]:
        for one in sent:
            yield one

    call = channel.stream_stream(
        method, request_serializer=type(sent[0]).SerializeToString, response_deserializer=reply.FromString
    )(requests(), timeout=TIMEOUT_S)
    async for one in call:
        for name in {"refusal", "failed"}.intersection(reply.DESCRIPTOR.fields_by_name):
            if one.HasField(name):  # a stream says so and goes on
                raise errors.from_item_error(getattr(one, name).error)


def memory_limit(service: str) -> int:
    """Return the memory that the pod of a service has. Bytes."""
    documents = yaml.safe_load_all((K8S / "base" / f"{service}.yaml").read_text())
    (pod,) = (
        one["spec"]["template"]["spec"] for one in documents if one["kind"] in {"Deployment", "StatefulSet"}
    )
    stated: str = pod["containers"][0]["resources"]["limits"]["memory"]
    return int(stated[:-2]) * _UNITS[stated[-2:]]


def _cpu_s(mesh: MeshState) -> float:
    """Return the CPU time of all services so far. Seconds."""
    times = [psutil.Process(mesh.services[one.name].pid).cpu_times() for one in SERVICES]
    return sum(one.user + one.system for one in times)


async def _at_rest(mesh: MeshState) -> float:
    """Wait until the services compute less than a tenth of the time; return the CPU time so far. Seconds."""
    async with asyncio.timeout(TIMEOUT_S):
        spent = _cpu_s(mesh)
        while (now := await _a_second_later(mesh)) - spent > 0.1:
            spent = now
    return now


async def _a_second_later(mesh: MeshState) -> float:
    await asyncio.sleep(1)
    return _cpu_s(mesh)


def _forget_peak(pid: int) -> None:
    """Begin the peak of a process again, at what it has."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _peak(pid: int) -> int:
    """Return the most memory that a process has had. Bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
