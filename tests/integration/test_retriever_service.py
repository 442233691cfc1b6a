"""The retriever as a process: collections, rankings, bad input over the wire, and what survives kill -9."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evenmesh.common.v1.common_pb2 import Passage, Sampling
from evenmesh.retriever.v1 import collection_service_pb2 as collections_pb
from evenmesh.retriever.v1 import retriever_service_pb2 as pb
from evenmesh.retriever.v1.collection_service_pb2_grpc import CollectionServiceStub
from evenmesh.retriever.v1.retriever_service_pb2_grpc import RetrieverServiceStub
from evenmesh.wire.errors import MeshError, from_rpc_error
from evenmesh_training.online.clients import RetrieverPassages
from tests.support import started
from tests.support.forked import ForkedModule
from tests.support.waiting import wait_until

NAMES = ("", "evenmesh.retriever.v1.RetrieverService", "evenmesh.retriever.v1.CollectionService")
INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND


@dataclass(frozen=True)
class Service:
    """A retriever process and a client of it."""

    address: str
    process: subprocess.Popen[str] | ForkedModule
    channel: grpc.Channel
    retriever: RetrieverServiceStub
    collections: CollectionServiceStub

    def ingest(self, collection: str, *parts: Sequence[Passage]) -> collections_pb.IngestResponse:
        """Fills a collection, which is made if there is none."""
        last = len(parts) - 1
        return self.collections.Ingest(
            collections_pb.IngestRequest(
                collection=collection, passages=part, create_if_missing=True, last=place == last
            )
            for place, part in enumerate(parts)
        )

    def ask(self, **fields: Any) -> pb.RetrieveResponse:
        """Retrieves."""
        return self.retriever.Retrieve(pb.RetrieveRequest(**fields))


def start(home: Path, **settings: str) -> subprocess.Popen[str]:
    """A process as users start it."""
    return started.start("retriever", home, **{"ENCODER": "", **settings})


def forked(home: Path, **settings: str) -> ForkedModule:
    """A process that need not import."""
    given = started.environment("retriever", home, {"ENCODER": "", **settings})
    return ForkedModule("evenmesh_retriever", given, home / "retriever.log")


def reported(home: Path, process: subprocess.Popen[str] | ForkedModule) -> str:
    """What a process that has ended wrote."""
    if isinstance(process, ForkedModule):
        return (home / "retriever.log").read_text()
    return process.communicate()[1]


def connected(home: Path, process: subprocess.Popen[str] | ForkedModule, *, within_s: float = 120) -> Service:
    """A client of a process once all of it serves."""
    ends = time.monotonic() + within_s
    file = home / "retriever.address"
    while time.monotonic() < ends:
        if process.poll() is not None:
            pytest.fail(f"the retriever ended with {process.returncode}: {reported(home, process)}")
        if file.exists():
            address = file.read_text()
            channel = grpc.insecure_channel(address)
            health = health_pb2_grpc.HealthStub(channel)
            try:
                replies = [
                    health.Check(health_pb2.HealthCheckRequest(service=name), timeout=5, wait_for_ready=True)
                    for name in NAMES
                ]
                if all(reply.status == health_pb2.HealthCheckResponse.SERVING for reply in replies):
                    retriever, collections = RetrieverServiceStub(channel), CollectionServiceStub(channel)
                    return Service(address, process, channel, retriever, collections)
            except grpc.RpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise
            channel.close()
        time.sleep(0.05)
    process.kill()
    process.wait()
    pytest.fail(f"the retriever did not serve within {within_s} s: {reported(home, process)}")


@contextmanager
def running(
    home: Path,
    begin: Callable[..., subprocess.Popen[str] | ForkedModule] = forked,
    **settings: str,
) -> Iterator[Service]:
    """A process that serves, ended with SIGTERM."""
    process = begin(home, **settings)
    try:
        service = connected(home, process)
        with service.channel:
            yield service
        if process.poll() is None:
            process.terminate()
            assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        if isinstance(process, subprocess.Popen) and process.stderr is not None:
            process.stderr.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A process for tests that leave it as it is: a collection ``c`` of 30 passages, best for ``fox`` p29."""
    with running(tmp_path_factory.mktemp("retriever"), start) as service:
        service.ingest("c", FOXES)
        yield service


def passage(one: str, text: str = "some text", **more: Any) -> Passage:
    return Passage(id=one, text=text, **more)


FOXES = [passage(f"p{number:02}", "fox" + " word" * (30 - number)) for number in range(30)]
ONE = [passage("a")]


def test_a_collection_from_its_making_to_its_end(service: Service) -> None:
    with suppress(grpc.RpcError):  # what a first try left
        service.collections.DeleteCollection(collections_pb.DeleteCollectionRequest(name="life"))
    made = service.collections.CreateCollection(
        collections_pb.CreateCollectionRequest(name="life", description="short")
    ).collection
    assert (made.name, made.num_passages, made.description) == ("life", 0, "short")
    with pytest.raises(grpc.RpcError) as taken:
        service.collections.CreateCollection(collections_pb.CreateCollectionRequest(name="life"))
    assert taken.value.code() == grpc.StatusCode.ALREADY_EXISTS

    filled = service.ingest("life", ONE, [passage("b", attributes={"provider": "x"})])
    assert (filled.added, filled.replaced, filled.unchanged) == (2, 0, 0)
    again = service.ingest("life", [passage("b", attributes={"provider": "y"}), *ONE])
    assert (again.added, again.replaced, again.unchanged) == (0, 1, 1)
    assert again.collection.version != filled.collection.version

    answer = service.ask(query="some text", collection="life")
    assert [found.id for found in answer.passages] == ["a", "b"]
    assert dict(answer.passages[1].attributes) == {"provider": "y"}
    # Segments may be merged meanwhile, which makes a version of its own.
    request = collections_pb.GetCollectionRequest(name="life")
    merged = service.collections.GetCollection(request).collection.version
    assert answer.index_version in (again.collection.version, merged)

    gone = service.collections.DeletePassages(
        collections_pb.DeletePassagesRequest(collection="life", passage_ids=["a", "x"])
    )
    assert (gone.deleted, gone.missing, gone.collection.num_passages) == (1, 1, 1)
    described = service.collections.GetCollection(collections_pb.GetCollectionRequest(name="life")).collection
    assert described == gone.collection
    listed = service.collections.ListCollections(collections_pb.ListCollectionsRequest()).collections
    assert [collection.name for collection in listed] == ["c", "life"]
    service.collections.DeleteCollection(collections_pb.DeleteCollectionRequest(name="life"))
    with pytest.raises(grpc.RpcError) as unknown:
        service.ask(query="q", collection="life")
    assert unknown.value.code() == NOT_FOUND


async def test_the_online_trainer_finds_what_an_ask_finds(service: Service) -> None:
    passages = RetrieverPassages(service.address, retriever="bm25-lucene", max_message_bytes=2**20)
    another = RetrieverPassages(service.address, retriever="nothing", max_message_bytes=2**20)
    try:
        found = await passages.found("c", "fox")
        assert found is not None
        asked = service.ask(query="fox", collection="c", k=30)
        assert [(one.id, one.text) for one in found.passages] == [
            (one.id, one.text) for one in asked.passages
        ]
        assert list(found.scores) == list(asked.scores)
        # A collection that was deleted and a query that cannot be asked have no candidates.
        assert await passages.found("gone", "fox") is None
        assert await passages.found("c", " ") is None
        with pytest.raises(MeshError, match="nothing"):
            await another.found("c", "fox")
    finally:
        await passages.close()
        await another.close()


def test_rankings_are_indices_into_candidates(service: Service) -> None:
    plain = service.ask(query="fox", collection="c", k=3)
    assert [found.id for found in plain.passages] == ["p29", "p28", "p27"]
    assert (plain.rankings.depth, list(plain.rankings.indices)) == (3, [0, 1, 2])
    assert not plain.rankings.log_probabilities
    assert plain.retriever == "bm25-lucene"

    drawn = service.ask(
        query="fox",
        collection="c",
        k=3,
        depth=10,
        sampling=Sampling(alpha=2, num_rankings=20, seed=1),
        include_inclusion_probabilities=True,
    )
    assert len(drawn.passages) == len(drawn.scores) == len(drawn.inclusion_probabilities) == 10
    assert len(drawn.rankings.indices) == 60
    assert max(drawn.rankings.indices) < 10
    assert len(drawn.rankings.log_probabilities) == 20
    assert sum(drawn.inclusion_probabilities) == pytest.approx(3, abs=1e-6)


def test_a_seed_draws_alike_in_every_process(service: Service, tmp_path: Path) -> None:
    def draw(service: Service, **more: Any) -> list[int]:
        candidates = pb.InlineCandidates(passages=FOXES)
        sampling = Sampling(num_rankings=5, seed=more.pop("seed", 11))
        return list(
            service.ask(query="fox", candidates=candidates, sampling=sampling, **more).rankings.indices
        )

    with running(tmp_path) as other:
        assert draw(service) == draw(other) == draw(service, stream_id="fox")
    assert draw(service, stream_id="second") != draw(service)
    assert draw(service, seed=12) != draw(service)


def test_retrievers_are_listed(service: Service) -> None:
    listed = service.retriever.ListRetrievers(pb.ListRetrieversRequest()).retrievers
    assert [(one.name, one.engine, one.is_default) for one in listed] == [
        ("bm25-lucene", "csr", True),
        ("bm25", "csr", False),
        ("bm25-plus", "csr", False),
        ("bm25-l", "csr", False),
    ]


def query(**fields: Any) -> pb.RetrieveRequest:
    return pb.RetrieveRequest(**{"query": "q", "collection": "c", **fields})


def inline(*passages: Passage, **fields: Any) -> pb.RetrieveRequest:
    return pb.RetrieveRequest(query="q", candidates=pb.InlineCandidates(passages=passages), **fields)


TOO_LONG = passage("a", "x" * 65_537)
BAD_QUERIES = [
    ("empty query", INVALID, "query", query(query="")),
    ("white space", INVALID, "query", query(query=" \n")),
    ("1 MB query", INVALID, "query", query(query="x" * 2**20)),
    ("no source", INVALID, "collection", pb.RetrieveRequest(query="q")),
    ("bad name", INVALID, "collection", query(collection="../c")),
    ("unknown collection", NOT_FOUND, "collection", query(collection="nowhere")),
    ("unknown retriever", NOT_FOUND, "retriever", query(retriever="splade")),
    ("k is 0", INVALID, "k", query(k=0)),
    ("k above depth", INVALID, "k", query(k=11, depth=10)),
    ("k above the default depth", INVALID, "k", query(k=101)),
    ("k above the candidates", INVALID, "k", inline(*ONE, k=2)),
    ("depth is 0", INVALID, "depth", query(depth=0)),
    ("depth too large", INVALID, "depth", query(depth=1001)),
    ("alpha negative", INVALID, "sampling.alpha", query(sampling=Sampling(alpha=-1))),
    ("alpha NaN", INVALID, "sampling.alpha", query(sampling=Sampling(alpha=math.nan))),
    ("alpha too large", INVALID, "sampling.alpha", query(sampling=Sampling(alpha=101))),
    ("no rankings", INVALID, "sampling.num_rankings", query(sampling=Sampling(num_rankings=0))),
    ("too many rankings", INVALID, "sampling.num_rankings", query(sampling=Sampling(num_rankings=1001))),
    ("seed too large", INVALID, "sampling.seed", query(sampling=Sampling(seed=2**63))),
    ("no candidates", INVALID, "candidates.passages", inline()),
    ("too many candidates", INVALID, "candidates.passages", inline(*[passage(str(i)) for i in range(1001)])),
    ("candidate twice", INVALID, "candidates.passages[1].id", inline(*ONE, *ONE)),
    ("candidate too long", INVALID, "candidates.passages[0].text", inline(TOO_LONG)),
    ("candidate without id", INVALID, "candidates.passages[0].id", inline(passage(""))),
    ("candidate without text", INVALID, "candidates.passages[0].text", inline(Passage(id="a"))),
]


@pytest.mark.parametrize(
    ("code", "field", "request_"), [row[1:] for row in BAD_QUERIES], ids=[r[0] for r in BAD_QUERIES]
)
def test_bad_queries_name_the_field(
    service: Service, code: grpc.StatusCode, field: str, request_: pb.RetrieveRequest
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        service.retriever.Retrieve(request_)
    error = from_rpc_error(refused.value)
    assert (error.code, error.field) == (code, field)


def part(*passages: Passage, collection: str = "c", create: bool = False) -> collections_pb.IngestRequest:
    return collections_pb.IngestRequest(collection=collection, passages=passages, create_if_missing=create)


MANY = [passage(f"n{number}") for number in range(1000)]
BAD_STREAMS = [
    ("nothing", INVALID, "collection", []),
    ("no collection", INVALID, "collection", [part(*ONE, collection="")]),
    ("bad name", INVALID, "collection", [part(*ONE, collection="C", create=True)]),
    ("unknown collection", NOT_FOUND, "collection", [part(*ONE, collection="nowhere")]),
    ("another collection", INVALID, "collection", [part(*ONE), part(passage("b"), collection="d")]),
    ("too many a message", INVALID, "passages", [part(*MANY, passage("one-more"))]),
    ("no id", INVALID, "passages[1].id", [part(*ONE, passage(""))]),
    ("long id", INVALID, "passages[1000].id", [part(*MANY), part(passage("x" * 257))]),
    ("control character", INVALID, "passages[0].id", [part(passage("a\x00b"))]),
    ("no text", INVALID, "passages[0].text", [part(Passage(id="a"))]),
    ("oversized", INVALID, "passages[2].text", [part(*ONE, passage("b")), part(TOO_LONG)]),
    (
        "oversized attribute",
        INVALID,
        "passages[0].attributes",
        [part(passage("a", attributes={"k": "v" * 1024}))],
    ),
    ("id twice", INVALID, "passages[1001].id", [part(*MANY), part(passage("x"), passage("n7"))]),
    (
        "provider with a line",
        INVALID,
        "passages[0].attributes",
        [part(passage("a", attributes={"provider": "a\nb"}))],
    ),
    ("cut off", INVALID, "last", [part(*ONE), part(passage("b"))]),
    (
        "goes on after the last",
        INVALID,
        "last",
        [collections_pb.IngestRequest(collection="c", passages=ONE, last=True), part(passage("b"))],
    ),
]


@pytest.mark.parametrize(
    ("code", "field", "stream"), [row[1:] for row in BAD_STREAMS], ids=[r[0] for r in BAD_STREAMS]
)
def test_a_stream_that_fails_leaves_nothing(
    service: Service, code: grpc.StatusCode, field: str, stream: list[collections_pb.IngestRequest]
) -> None:
    before = service.collections.ListCollections(collections_pb.ListCollectionsRequest())
    with pytest.raises(grpc.RpcError) as refused:
        service.collections.Ingest(iter(stream))
    error = from_rpc_error(refused.value)
    assert (error.code, error.field) == (code, field)
    assert service.collections.ListCollections(collections_pb.ListCollectionsRequest()) == before


@pytest.mark.parametrize(
    ("method", "request_", "code", "field"),
    [
        ("CreateCollection", collections_pb.CreateCollectionRequest(name=""), INVALID, "name"),
        ("CreateCollection", collections_pb.CreateCollectionRequest(name="x" * 65), INVALID, "name"),
        ("CreateCollection", collections_pb.CreateCollectionRequest(name=".."), INVALID, "name"),
        (
            "CreateCollection",
            collections_pb.CreateCollectionRequest(name="d", description="x" * 1025),
            INVALID,
            "description",
        ),
        ("GetCollection", collections_pb.GetCollectionRequest(name="nowhere"), NOT_FOUND, "name"),
        ("GetCollection", collections_pb.GetCollectionRequest(name="/etc"), INVALID, "name"),
        ("DeleteCollection", collections_pb.DeleteCollectionRequest(name="nowhere"), NOT_FOUND, "name"),
        ("DeletePassages", collections_pb.DeletePassagesRequest(collection="c"), INVALID, "passage_ids"),
        (
            "DeletePassages",
            collections_pb.DeletePassagesRequest(collection="nowhere", passage_ids=["a"]),
            NOT_FOUND,
            "collection",
        ),
        (
            "DeletePassages",
            collections_pb.DeletePassagesRequest(collection="c", passage_ids=["a"] * 10_001),
            INVALID,
            "passage_ids",
        ),
    ],
)
def test_bad_calls_about_collections(
    service: Service, method: str, request_: Message, code: grpc.StatusCode, field: str
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        getattr(service.collections, method)(request_)
    error = from_rpc_error(refused.value)
    assert (error.code, error.field) == (code, field)


def test_wrong_utf_8_is_the_callers_error(service: Service) -> None:
    not_text = b"\x0a\x02\xff\xfe"  # field 1, two bytes
    calls = {
        "/evenmesh.retriever.v1.RetrieverService/Retrieve": service.channel.unary_unary,
        "/evenmesh.retriever.v1.CollectionService/CreateCollection": service.channel.unary_unary,
        "/evenmesh.retriever.v1.CollectionService/Ingest": service.channel.stream_unary,
    }
    for method, kind in calls.items():
        call = kind(method, request_serializer=None, response_deserializer=None)
        with pytest.raises(grpc.RpcError) as refused:
            call(iter([not_text]) if method.endswith("Ingest") else not_text)
        assert refused.value.code() == INVALID, method


def test_a_stream_over_the_limit_names_the_setting(tmp_path: Path) -> None:
    with running(tmp_path, MAX_INGEST_BYTES=str(2**20)) as service:
        with pytest.raises(grpc.RpcError) as refused:
            service.ingest("c", *[[passage(f"{number}", "x" * 60_000)] for number in range(20)])
        error = from_rpc_error(refused.value)
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "REQUEST_TOO_LARGE")
        assert "EVENMESH_RETRIEVER_MAX_INGEST_BYTES" in error.message
        assert service.ingest("c", [passage("a", "x" * 60_000)]).added == 1


def test_queries_see_one_version_while_others_are_made(service: Service) -> None:
    """Every reply holds the passages of the version it names, and of no other."""
    with ThreadPoolExecutor(4) as readers:
        texts = {service.ingest("changing", marked("text0")).collection.version: "text0"}
        done = Event()

        def read() -> list[tuple[str, set[str]]]:
            seen = []
            while not done.is_set():
                answer = service.ask(query="common", collection="changing", k=40)
                seen.append((answer.index_version, {found.text.split()[0] for found in answer.passages}))
                assert len(answer.passages) == 40
            return seen

        reading = [readers.submit(read) for _ in range(4)]
        for number in range(1, 9):
            text = f"text{number}"
            texts[service.ingest("changing", marked(text)).collection.version] = text
        done.set()
        seen = [reply for future in reading for reply in future.result()]
    service.collections.DeleteCollection(collections_pb.DeleteCollectionRequest(name="changing"))
    assert len({version for version, _ in seen}) > 1
    assert all(found == {texts[version]} for version, found in seen)


def marked(text: str) -> list[Passage]:
    return [passage(f"p{number:02}", f"{text} common") for number in range(40)]


def test_kill_9_in_the_middle_of_an_ingest(tmp_path: Path) -> None:
    collection = tmp_path / "collections" / "default" / "c"
    with running(tmp_path) as service:
        acknowledged = service.ingest("c", FOXES).collection
        answer = service.ask(query="fox", collection="c", k=20)
        large = [
            [
                passage(f"q{row}-{number}", " ".join(f"w{row * number * i % 9973}" for i in range(60)))
                for number in range(1000)
            ]
            for row in range(15)
        ]
        parts = [part(*rows) for rows in large]
        parts[-1].last = True
        ingest = service.collections.Ingest.future(iter(parts))
        wait_until(lambda: list(collection.glob("segments/.build-*")), 120, why="the ingest writes nothing")
        os.kill(service.process.pid, signal.SIGKILL)
        service.process.wait()
        assert ingest.exception(60) is not None
    with running(tmp_path) as service:
        kept = service.collections.GetCollection(collections_pb.GetCollectionRequest(name="c")).collection
        assert kept == acknowledged
        assert service.ask(query="fox", collection="c", k=20) == answer
        assert [path.stem for path in (collection / "versions").iterdir()] == [acknowledged.version]
        assert len(list((collection / "segments").iterdir())) == 1
        assert service.ingest("c", [passage("new")]).added == 1


def everything(service: Service, collection: str = "c") -> list[tuple[str, str]]:
    """Ids and texts of all passages, which have the word fox."""
    answer = service.ask(query="fox", collection=collection, k=1000, depth=1000)
    return sorted((found.id, found.text) for found in answer.passages)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, str]]]:
    """The home of a retriever that has ended, with one passage in ``c``; and all of that collection."""
    home = tmp_path_factory.mktemp("begun")
    with running(home) as service:
        service.ingest("c", [passage("p00", "fox 0")])
        return home, everything(service)


@pytest.mark.parametrize(
    "point",
    ["ingest.half-written", "ingest.moved", "compaction.moved", "swap.version-written", "swap.done@3"],
)
def test_killed_at_a_fault_point_the_last_acknowledgement_holds(
    begun: tuple[Path, list[tuple[str, str]]], tmp_path: Path, point: str
) -> None:
    shutil.copytree(begun[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / "retriever.address").unlink(missing_ok=True)
    acknowledged: list[list[tuple[str, str]]] = [[], begun[1]]
    under_way: list[tuple[str, str]] = []
    process = forked(tmp_path, FAULT=point)
    try:
        service = connected(tmp_path, process)
        with pytest.raises(grpc.RpcError) as fell, service.channel:
            for number in range(1, 100):
                batch = {f"p{(number * 2 + row) % 9:02}": f"fox {number} {row}" for row in range(3)}
                under_way = sorted({**dict(acknowledged[-1]), **batch}.items())
                service.ingest("c", [passage(one, text) for one, text in batch.items()])
                acknowledged.append(under_way)
        assert fell.value.code() == grpc.StatusCode.UNAVAILABLE
        assert process.wait(60) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()
    with running(tmp_path) as service:
        assert everything(service) in (acknowledged[-1], under_way)
        service.ingest("c", [passage("new", "fox too")])
        assert ("new", "fox too") in everything(service)


def test_filters_over_the_wire(service: Service) -> None:
    tagged = [
        passage(f"t{number}", "fox", attributes={"provider": "xy"[number % 2], "year": str(2000 + number)})
        for number in range(10)
    ]
    service.ingest("tagged", [*tagged, passage("bare", "fox")])

    def found(*conditions: pb.Condition, **more: Any) -> list[str]:
        where = pb.Filter(conditions=conditions)
        answer = service.ask(query="fox", filter=where, k=11, **(more or {"collection": "tagged"}))
        return [one.id for one in answer.passages]

    of_x = pb.Condition(attribute="provider", any_of=pb.AnyOf(values=["x", "nobody"]))
    since = pb.Condition(attribute="year", number_range=pb.NumberRange(**{"from": 2004}))
    until = pb.Condition(attribute="year", text_range=pb.TextRange(to="2006"))
    assert found(of_x) == ["t0", "t2", "t4", "t6", "t8"]
    assert found(of_x, since, until) == ["t4", "t6"]
    inline_of = {"candidates": pb.InlineCandidates(passages=[*tagged, passage("bare", "fox")])}
    assert found(of_x, since, until, **inline_of) == ["t4", "t6"]
    nowhere = pb.Condition(attribute="colour", any_of=pb.AnyOf(values=["red"]))
    for source in ({"collection": "tagged"}, inline_of):
        with pytest.raises(grpc.RpcError) as refused:
            found(of_x, nowhere, **source)
        error = from_rpc_error(refused.value)
        assert (error.code, error.field) == (INVALID, "filter.conditions[1].attribute")
        assert "'colour'" in error.message
    service.collections.DeleteCollection(collections_pb.DeleteCollectionRequest(name="tagged"))


def test_all_passages_are_listed_by_id(service: Service) -> None:
    texts = {f"l{number:04}": "x" * (number % 50) * 100 + "y" for number in range(1500)}
    filled = [passage(one, text, attributes={"provider": one}) for one, text in texts.items()]
    service.ingest("listed", filled[1000:], filled[500:1000], filled[:500])
    service.ingest("listed", [passage("l0700", "new text")])
    texts["l0700"] = "new text"
    pages = list(service.collections.ListPassages(collections_pb.ListPassagesRequest(collection="listed")))
    assert len(pages) > 3
    listed = [found for page in pages for found in page.passages]
    assert [(found.id, found.text) for found in listed] == sorted(texts.items())
    assert dict(listed[0].attributes) == {"provider": "l0000"}
    assert {page.version for page in pages} == {pages[0].collection.version}
    assert pages[0].collection.num_passages == 1500
    assert not any(page.HasField("collection") for page in pages[1:])
    assert max(page.ByteSize() for page in pages) < 2 * 2**20
    for prefix in ("l070", "l0700", "l1", "k", "m", ""):
        pages = service.collections.ListPassages(
            collections_pb.ListPassagesRequest(collection="listed", id_prefix=prefix)
        )
        found_ids = [found.id for page in pages for found in page.passages]
        assert found_ids == [one for one in sorted(texts) if one.startswith(prefix)]
    with pytest.raises(grpc.RpcError) as long:
        list(
            service.collections.ListPassages(
                collections_pb.ListPassagesRequest(collection="listed", id_prefix="x" * 257)
            )
        )
    assert (from_rpc_error(long.value).code, from_rpc_error(long.value).field) == (INVALID, "id_prefix")

    service.collections.CreateCollection(collections_pb.CreateCollectionRequest(name="bare"))
    pages = list(service.collections.ListPassages(collections_pb.ListPassagesRequest(collection="bare")))
    assert [(page.collection.name, len(page.passages)) for page in pages] == [("bare", 0)]
    with pytest.raises(grpc.RpcError) as unknown:
        list(service.collections.ListPassages(collections_pb.ListPassagesRequest(collection="nowhere")))
    assert from_rpc_error(unknown.value).field == "collection"
    for name in ("listed", "bare"):
        service.collections.DeleteCollection(collections_pb.DeleteCollectionRequest(name=name))


def test_passages_are_given_by_id(service: Service) -> None:
    def given(*ids: str, collection: str = "given") -> list[collections_pb.GetPassagesResponse]:
        request = collections_pb.GetPassagesRequest(collection=collection, passage_ids=ids)
        return list(service.collections.GetPassages(request))

    service.ingest("given", [passage(f"g{number}", "x" * 2000) for number in range(1000)])
    service.ingest("given", [passage("g1", "newer", title="title")])
    service.collections.DeletePassages(
        collections_pb.DeletePassagesRequest(collection="given", passage_ids=["g2"])
    )
    [page] = given("g3", "g1", "g2", "g1", "nobody")
    assert {(one.id, one.title, one.text) for one in page.passages} == {
        ("g1", "title", "newer"),
        ("g3", "", "x" * 2000),
    }
    pages = given(*(f"g{number}" for number in range(1000)))
    assert len(pages) > 1
    assert sorted(one.id for page in pages for one in page.passages) == sorted(
        f"g{number}" for number in range(1000) if number != 2
    )
    assert [len(page.passages) for page in given("nobody")] == [0]
    for ids, collection, field in (((), "given", "passage_ids"), (("g1",), "nowhere", "collection")):
        with pytest.raises(grpc.RpcError) as refused:
            given(*ids, collection=collection)
        assert from_rpc_error(refused.value).field == field
    service.collections.DeleteCollection(collections_pb.DeleteCollectionRequest(name="given"))


def test_a_collection_says_how_it_is_indexed(service: Service) -> None:
    lexical = collections_pb.LexicalIndexing(analyzer="english", k1=0.9, b=0.4)
    made = service.collections.CreateCollection(
        collections_pb.CreateCollectionRequest(name="stemmed", lexical=lexical)
    ).collection
    assert made.lexical == lexical
    assert made.analyzer == "english-snowball-1"
    filled = service.ingest("stemmed", [passage("a", "foxes running"), passage("b", "a dog ran")]).collection
    assert (filled.num_segments, filled.num_tombstones, filled.embedded) == (1, 0, 0)
    answer = service.ask(query="fox runs", collection="stemmed")
    # Both stems are in one passage of two tokens; the mean length is (2 + 3) / 2.
    idf = math.log(1 + (2 - 1 + 0.5) / (1 + 0.5))
    assert answer.scores[0] == pytest.approx(2 * idf / (1 + 0.9 * (1 - 0.4 + 0.4 * 2 / 2.5)))
    for bad, field in [
        (collections_pb.LexicalIndexing(analyzer="latin"), "lexical.analyzer"),
        (collections_pb.LexicalIndexing(k1=-1), "lexical.k1"),
        (collections_pb.LexicalIndexing(b=1.5), "lexical.b"),
    ]:
        with pytest.raises(grpc.RpcError) as refused:
            service.collections.CreateCollection(
                collections_pb.CreateCollectionRequest(name="bad", lexical=bad)
            )
        error = from_rpc_error(refused.value)
        assert (error.code, error.field) == (INVALID, field)
    service.collections.DeleteCollection(collections_pb.DeleteCollectionRequest(name="stemmed"))


def test_quotas_and_tenants(tmp_path: Path) -> None:
    with running(tmp_path, MAX_TENANT_PASSAGES="2") as service:

        def ingest(tenant: str, *ids: str) -> None:
            request = collections_pb.IngestRequest(
                collection="c", passages=[passage(one) for one in ids], create_if_missing=True, last=True
            )
            service.collections.Ingest(iter([request]), metadata=[("evenmesh-tenant", tenant)])

        ingest("one", "a", "b")
        ingest("other", "x")
        with pytest.raises(grpc.RpcError) as refused:
            ingest("one", "c")
        error = from_rpc_error(refused.value)
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
        assert "EVENMESH_RETRIEVER_MAX_TENANT_PASSAGES" in error.message
        mine = service.retriever.Retrieve(
            pb.RetrieveRequest(query="some", collection="c"), metadata=[("evenmesh-tenant", "other")]
        )
        assert [found.id for found in mine.passages] == ["x"]
        with pytest.raises(grpc.RpcError) as nobody:
            service.ask(query="some", collection="c")  # of the tenant `default`
        assert nobody.value.code() == NOT_FOUND
        with pytest.raises(grpc.RpcError) as refused:
            ingest("../one", "c")
        assert from_rpc_error(refused.value).field == "evenmesh-tenant"


def error_at_start(home: Path, **settings: str) -> str:
    """What a process that cannot start says."""
    reported = started.refusal("retriever", home, **{"ENCODER": "", **settings})
    lines = [line for line in reported.splitlines() if not line.startswith("{")]  # the log is JSON
    assert len(lines) == 1, reported
    return lines[0]


def test_what_keeps_it_from_starting_is_one_line(tmp_path: Path) -> None:
    missing = error_at_start(tmp_path, ENCODER="/no/such/model")
    assert missing.startswith("EVENMESH_RETRIEVER_ENCODER='/no/such/model': no such folder")
    assert error_at_start(tmp_path, BM25_B="2").startswith("EVENMESH_RETRIEVER_BM25_B=")
    with running(tmp_path) as service:
        second = error_at_start(tmp_path, PORT_FILE=str(tmp_path / "other.address"))
        assert f"another retriever (process {service.process.pid})" in second
        assert "EVENMESH_HOME" in second
