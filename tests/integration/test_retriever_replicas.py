"""Retrievers as processes on one folder: one writes, others follow; and who writes when it has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event

import grpc
import pytest

from evenmesh.common.v1.common_pb2 import Passage, Sampling
from evenmesh.retriever.v1 import collection_service_pb2 as collections_pb
from evenmesh.retriever.v1 import retriever_service_pb2 as pb
from evenmesh.wire.errors import MeshError, from_rpc_error
from tests.integration.test_retriever_service import Service, connected, forked, part, running
from tests.support.started import environment
from tests.support.waiting import wait_until

SIZE = 20
ELSEWHERE = """
import runpy
from evenmesh_retriever.backends.segments.files import lease
class NoLock:
    def __init__(self, *_, **__): pass
    def release(self): pass
lease.FolderLock, lease.machine = NoLock, lambda: "elsewhere"
runpy.run_module("evenmesh_retriever", run_name="__main__")
"""
"""A retriever that no lock of this machine keeps from the folder, as one of another machine."""


@contextmanager
def replica(home: Path, name: str) -> Iterator[Service]:
    """A process that follows the one of a home."""
    own = home.with_name(name)
    own.mkdir()
    with running(own, FOLLOW=str(home), FOLLOW_LOOK_S="0.05") as service:
        yield service


def batch(text: str) -> list[Passage]:
    return [Passage(id=f"p{number:02}", text=f"common {text} {number}") for number in range(SIZE)]


def marks(answer: pb.RetrieveResponse) -> set[str]:
    return {found.text.split()[1] for found in answer.passages}


def version(service: Service, name: str = "c") -> str:
    """The version that is served; empty if there is no such collection."""
    listed = service.collections.ListCollections(collections_pb.ListCollectionsRequest()).collections
    return next((one.version for one in listed if one.name == name), "")


def refusal(call: Callable[[], object]) -> MeshError:
    with pytest.raises(grpc.RpcError) as refused:
        call()
    return from_rpc_error(refused.value)


def test_two_replicas_answer_while_one_writes_and_is_killed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    acknowledged: dict[str, str] = {}
    killed, done = Event(), Event()
    with ExitStack() as stack:
        replicas = [stack.enter_context(replica(home, name)) for name in ("one", "two")]
        assert version(replicas[0]) == ""  # nobody has written there yet
        process = forked(home)
        stack.callback(process.wait)
        stack.callback(process.kill)
        writer = connected(home, process)
        acknowledged[writer.ingest("c", batch("m0")).collection.version] = "m0"
        wait_until(lambda: all(version(one) == version(writer) for one in replicas))

        def read(service: Service) -> list[tuple[str, set[str]]]:
            seen = []
            while not done.is_set():
                answer = service.ask(query="common", collection="c", k=SIZE, depth=SIZE)
                assert answer.HasField("index_as_of")
                assert len(answer.passages) == SIZE
                seen.append((answer.index_version, marks(answer)))
            return seen

        def write() -> None:
            number = 0
            while not killed.is_set():
                number += 1
                try:
                    reply = writer.ingest("c", batch(f"m{number}"))
                except grpc.RpcError:
                    return
                acknowledged[reply.collection.version] = f"m{number}"

        with ThreadPoolExecutor(3) as threads:
            reading = [threads.submit(read, one) for one in replicas]
            writing = threads.submit(write)
            wait_until(lambda: len(acknowledged) > 12)  # segments have been merged by then
            process.kill()
            process.wait()
            killed.set()
            writing.result(60)
            last = max(acknowledged)
            # They go on, and see all that was acknowledged.
            wait_until(lambda: all(version(one) >= last for one in replicas))
            for one in replicas:
                assert one.ask(query="common", collection="c").index_version >= last
            done.set()
            replies = [reply for one in reading for reply in one.result(60)]
        # Of one version each; what was not acknowledged may have become durable before the end.
        assert all(len(found) == 1 for _, found in replies)
        assert len({one for one, _ in replies}) > 2
        assert all(found == {acknowledged[one]} for one, found in replies if one in acknowledged)

        again = stack.enter_context(running(home))
        assert version(again) >= last
        assert int(next(iter(marks(again.ask(query="common", collection="c"))))[1:]) >= int(
            acknowledged[last][1:]
        )
        deleted = again.collections.DeletePassages(
            collections_pb.DeletePassagesRequest(collection="c", passage_ids=["p00", "p07"])
        )
        wait_until(lambda: all(version(one) == deleted.collection.version for one in replicas))
        request = pb.RetrieveRequest(
            query="common 3 5",
            collection="c",
            k=5,
            sampling=Sampling(alpha=2, num_rankings=20, seed=7),
            include_inclusion_probabilities=True,
        )
        said = []
        for one in (again, *replicas):
            answer = one.retriever.Retrieve(request)
            assert answer.HasField("index_as_of") == (one is not again)
            answer.ClearField("index_as_of")
            said.append(answer.SerializeToString(deterministic=True))
        assert said[0] == said[1] == said[2]
        listed = [
            [
                passage
                for page in one.collections.ListPassages(collections_pb.ListPassagesRequest(collection="c"))
                for passage in page.passages
            ]
            for one in (again, *replicas)
        ]
        assert len(listed[0]) == SIZE - 2
        assert listed[0] == listed[1] == listed[2]

        follower = replicas[0].collections
        for call in (
            lambda: follower.CreateCollection(collections_pb.CreateCollectionRequest(name="d")),
            lambda: follower.DeletePassages(
                collections_pb.DeletePassagesRequest(collection="c", passage_ids=["p01"])
            ),
            lambda: follower.DeleteCollection(collections_pb.DeleteCollectionRequest(name="c")),
            lambda: follower.Ingest(iter([part(Passage(id="x", text="y"))])),
        ):
            error = refusal(call)
            assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "READ_ONLY_REPLICA")
        again.collections.DeleteCollection(collections_pb.DeleteCollectionRequest(name="c"))
        wait_until(lambda: all(version(one) == "" for one in replicas))


def test_a_writer_that_waits_takes_over_what_was_acknowledged(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first = forked(tmp_path)
        stack.callback(first.wait)
        stack.callback(first.kill)
        writer = connected(tmp_path, first)
        address = tmp_path / "second.address"
        second = forked(tmp_path, LEASE_WAIT_S="600", PORT_FILE=str(address))
        stack.callback(second.wait)
        stack.callback(second.kill)
        held = writer.ingest("c", batch("kept")).collection.version
        wait_until(address.exists)
        first.kill()
        first.wait()
        (tmp_path / "retriever.address").write_text(address.read_text())
        successor = connected(tmp_path, second)
        assert version(successor) == held
        assert successor.ingest("c", batch("later")).replaced == SIZE


def test_a_writer_that_was_away_while_another_machine_took_over_ends(tmp_path: Path) -> None:
    with ExitStack() as stack:
        slow = forked(tmp_path, LEASE_S="1")
        stack.callback(slow.wait)
        stack.callback(slow.kill)
        writer = connected(tmp_path, slow)
        held = writer.ingest("c", batch("kept")).collection.version
        os.kill(slow.pid, signal.SIGSTOP)  # as a machine that is suspended, or cut off
        address = tmp_path / "elsewhere.address"
        taking = subprocess.Popen(
            [sys.executable, "-c", ELSEWHERE],
            env=environment(
                "retriever", tmp_path, {"PORT_FILE": str(address), "ENCODER": "", "LEASE_S": "1"}
            ),
            stderr=subprocess.PIPE,
            text=True,
        )
        stack.callback(taking.wait)
        stack.callback(taking.kill)
        wait_until(address.exists)
        (tmp_path / "retriever.address").write_text(address.read_text())
        successor = connected(tmp_path, taking)
        assert version(successor) == held
        later = successor.ingest("c", batch("later")).collection.version
        os.kill(slow.pid, signal.SIGCONT)
        assert slow.wait(60) == 0  # it learns of it, and what it serves would grow old
        assert version(successor) == later
        assert successor.ingest("c", batch("last")).replaced == SIZE
