"""One writer, eight readers, a live collection: every reply is of exactly one version, to the last bit.

Lasts 20 seconds, or EVENMESH_SOAK_S of them.
"""

from __future__ import annotations

import math
import os
import random
import resource
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Lock

import grpc
import pytest

from evenmesh.common.v1.common_pb2 import Passage, Sampling
from evenmesh.retriever.v1 import collection_service_pb2 as collections_pb
from evenmesh.retriever.v1 import retriever_service_pb2 as pb
from evenmesh.retriever.v1.retriever_service_pb2_grpc import RetrieverServiceStub
from tests.integration.test_retriever_service import Service, running

LASTS_S = float(os.environ.get("EVENMESH_SOAK_S", "20"))
READERS = 8
IDS = [f"p{number:03}" for number in range(200)]
K1, B = 1.2, 0.75

pytestmark = pytest.mark.timeout(LASTS_S + 240)


def test_every_reply_is_of_exactly_one_version(tmp_path: Path) -> None:
    with running(tmp_path, THREADS="4", LOG_LEVEL="WARNING") as service:  # no one reads its log
        replies: dict[str, pb.RetrieveResponse] = {}
        guard, done = Lock(), Event()

        def read() -> int:
            many = 0
            with grpc.insecure_channel((tmp_path / "retriever.address").read_text()) as channel:
                stub = RetrieverServiceStub(channel)
                while not done.is_set():
                    reply = stub.Retrieve(
                        pb.RetrieveRequest(
                            query="common",
                            collection="c",
                            depth=1000,
                            k=10,
                            sampling=Sampling(num_rankings=2, seed=7),
                        ),
                        timeout=60,
                    )
                    with guard:
                        first = replies.setdefault(reply.index_version, reply)
                    assert reply == first  # one version, one answer: draws included
                    many += 1
            return many

        rng = random.Random(1)
        writer = Writer(service, rng)
        writer.ingest(IDS[:50])
        memory: list[int] = []
        with ThreadPoolExecutor(READERS) as readers:
            reading = [readers.submit(read) for _ in range(READERS)]
            ends = time.monotonic() + LASTS_S
            try:
                while time.monotonic() < ends and not any(one.done() for one in reading):
                    writer.ingest(rng.sample(IDS, rng.randint(1, 12)))
                    writer.delete(rng.sample(IDS, rng.randint(1, 9)))
                    memory.append(resident(service.process.pid))
            finally:
                done.set()
            answered = sum(one.result() for one in reading)
    assert answered >= len(replies) > 10
    made = sorted(writer.states)
    for version, reply in replies.items():
        # A merge in the background makes a version too, of what the last write before it has left.
        made_by = max(one for one in made if one <= generation(version))
        assert_ranks(reply, writer.states[made_by])
    third = len(memory) // 3
    assert max(memory[2 * third :]) <= 1.2 * max(memory[third : 2 * third]) + 2**24


class Writer:
    """Writes a collection, and knows what it held at each version.

    Attributes:
        held: texts by id, as last acknowledged.
        states: what was held from each acknowledged generation on.
    """

    def __init__(self, service: Service, rng: random.Random) -> None:
        self._service = service
        self._rng = rng
        self.held: dict[str, str] = {}
        self.states: dict[int, dict[str, str]] = {}

    def ingest(self, ids: list[str]) -> None:
        texts = {one: "common" + f" x{self._rng.randrange(10**6)}" * self._rng.randint(0, 9) for one in ids}
        made = self._service.ingest("c", [Passage(id=one, text=text) for one, text in texts.items()])
        self._acknowledged(made.collection, {**self.held, **texts})

    def delete(self, ids: list[str]) -> None:
        request = collections_pb.DeletePassagesRequest(collection="c", passage_ids=ids)
        made = self._service.collections.DeletePassages(request)
        assert made.deleted == len(self.held.keys() & set(ids))
        self._acknowledged(made.collection, {one: text for one, text in self.held.items() if one not in ids})

    def _acknowledged(self, collection: collections_pb.Collection, held: dict[str, str]) -> None:
        assert collection.num_passages == len(held)
        if held != self.held:
            self.states[generation(collection.version)] = held
        self.held = held


def assert_ranks(reply: pb.RetrieveResponse, held: Mapping[str, str]) -> None:
    """The reply is the ranking of these passages for ``common``, which all of them have, scores and all."""
    lengths = {one: len(text.split()) for one, text in held.items()}
    average = sum(lengths.values()) / len(lengths)
    idf = math.log1p(0.5 / (len(held) + 0.5))
    scores = {one: idf / (1 + K1 * (1 - B + B * size / average)) for one, size in lengths.items()}
    ranked = sorted(scores, key=lambda one: (lengths[one], one))
    assert [found.id for found in reply.passages] == ranked
    assert [found.text for found in reply.passages] == [held[one] for one in ranked]
    assert list(reply.scores) == pytest.approx([scores[one] for one in ranked], rel=1e-9)


def generation(version: str) -> int:
    """The number that versions grow by."""
    return int(version.partition("-")[0])


def resident(process: int) -> int:
    """Memory of a process. Bytes."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * resource.getpagesize()
