"""Retriever processes over Milvus: what is kept there, moving there and back, and Milvus going away."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from evenmesh import Addresses, AsyncClient, Client, Passage
from evenmesh.addresses import VARIABLES
from evenmesh.commands import main
from evenmesh.common.v1 import common_pb2
from evenmesh.retriever.v1 import collection_service_pb2 as collections_pb
from evenmesh.types.collection import Collection, Lexical
from evenmesh.wire.errors import MeshError, from_rpc_error
from tests.integration.test_retriever_service import Service, forked, running
from tests.integration.test_retriever_service import reported as wrote
from tests.support.milvus_lite_process import MilvusLite, serving

PASSAGES = [
    Passage("a'\"\\;--", "Text\nwith\r\nlines\tand \x01 and chains", "", {}),
    Passage("ünï/ço de", "", "Only a title about chains ☃", {"provider": "Brød & Co", "": "no name"}),
    Passage(
        "z", " blanks around ", " and in the title ", {'we"ird\\key': "va'lue\n", "n": "1e3", "empty": ""}
    ),
    *(
        Passage(f"p{number:04}", f"filler number {number}", attributes={"n": str(number)})
        for number in range(2500)
    ),
]


@pytest.fixture(scope="module")
def milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusLite]:
    with serving(tmp_path_factory.mktemp("milvus")) as server:
        yield server


@dataclass(frozen=True)
class Mesh:
    """A mesh of which only the retriever is there."""

    service: Service
    home: Path

    @property
    def addresses(self) -> Addresses:
        nowhere = "127.0.0.1:1"
        retriever = (self.home / "retriever.address").read_text()
        return Addresses(nowhere, retriever, nowhere, nowhere, nowhere)


@pytest.fixture(scope="module")
def milvus_mesh(milvus: MilvusLite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """A retriever whose collections are in Milvus."""
    home = tmp_path_factory.mktemp("there")
    with running(home, STORE="milvus", MILVUS_URI=milvus.uri) as service:
        yield Mesh(service, home)


@pytest.fixture(scope="module")
def there(milvus_mesh: Mesh) -> Service:
    """The service of it."""
    return milvus_mesh.service


@pytest.fixture(scope="module")
def disk_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """A retriever whose collections are on this disk."""
    home = tmp_path_factory.mktemp("here")
    with running(home) as service:
        yield Mesh(service, home)


def use(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes commands find it."""
    for name, address in mesh.addresses.items():
        monkeypatch.setenv(VARIABLES[name], address)


def test_a_collection_moves_to_milvus_and_back_unchanged(
    disk_mesh: Mesh,
    milvus_mesh: Mesh,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = sorted(PASSAGES, key=lambda passage: passage.id)
    with Client(disk_mesh.addresses) as client:
        client.create_collection("bikes", description="About bikes", lexical=Lexical("unicode", 0.9, 0.4))
        client.ingest(PASSAGES, "bikes", create=False)
        of: list[Collection] = []
        assert list(client.passages("bikes", on_collection=of.append)) == expected
        assert [one.num_passages for one in of] == [len(expected)]

    use(disk_mesh, monkeypatch)
    out, again = tmp_path / "bikes.parquet", tmp_path / "again.parquet"
    assert main(["collection", "export", "bikes", str(out)]) == 0
    assert main(["collection", "export", "bikes", str(out)]) == 1
    assert "exists; name a new file" in capsys.readouterr().err

    use(milvus_mesh, monkeypatch)
    assert main(["collection", "import", str(out), "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["added"], done["replaced"], done["unchanged"]) == (len(expected), 0, 0)
    assert done["collection"]["description"] == "About bikes"
    assert done["collection"]["lexical"] == {"analyzer": "unicode", "k1": 0.9, "b": 0.4}
    assert main(["collection", "import", str(out)]) == 1
    assert "--into adds to it" in capsys.readouterr().err
    assert main(["collection", "import", str(out), "--into", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unchanged"] == len(expected)

    async def listed() -> list[Passage]:
        async with AsyncClient(milvus_mesh.addresses) as client:
            return [passage async for passage in client.passages("bikes")]

    assert asyncio.run(listed()) == expected

    assert main(["collection", "export", "bikes", str(again)]) == 0
    use(disk_mesh, monkeypatch)
    assert main(["collection", "import", str(again), "--collection", "bikes-2"]) == 0
    with Client(disk_mesh.addresses) as client:
        assert list(client.passages("bikes-2")) == expected
        assert client.collection("bikes-2").lexical == client.collection("bikes").lexical
    replies = [
        disk_mesh.service.ask(query="chains", collection=name, depth=20, k=20)
        for name in ("bikes", "bikes-2")
    ]
    assert replies[0].passages == replies[1].passages

    cut = tmp_path / "cut.parquet"
    cut.write_bytes(out.read_bytes()[:-100])
    assert main(["collection", "import", str(cut), "--collection", "cut"]) == 1
    assert "is not a whole Parquet file" in capsys.readouterr().err
    with Client(disk_mesh.addresses) as client:
        assert "cut" not in {one.name for one in client.collections()}


def test_collections_of_milvus_over_the_wire(there: Service) -> None:
    one = common_pb2.Passage(id="a", title="Chains", text="Oil the chain.", attributes={"group": "x"})
    two = common_pb2.Passage(id="b", text="A red lamp.", attributes={"group": "y"})
    made = there.ingest("wire", [one, two])
    assert (made.added, made.collection.num_passages, made.collection.analyzer) == (2, 2, "milvus-unicode")
    assert there.ingest("wire", [one]).unchanged == 1
    same = there.collections.GetCollection(collections_pb.GetCollectionRequest(name="wire")).collection
    assert same.version == made.collection.version

    reply = there.ask(query="oil", collection="wire", k=2)
    assert [passage.id for passage in reply.passages] == ["a", "b"]
    assert reply.index_version == made.collection.version
    assert "BM25 is Milvus's" in reply.note
    drawn = there.ask(
        query="oil", collection="wire", k=2, sampling=common_pb2.Sampling(num_rankings=5, seed=1, alpha=1)
    )
    assert len(drawn.rankings.log_probabilities) == 5

    gone = there.collections.DeletePassages(
        collections_pb.DeletePassagesRequest(collection="wire", passage_ids=["a", "nobody"])
    )
    assert (gone.deleted, gone.missing, gone.collection.num_passages) == (1, 1, 1)
    assert gone.collection.version > made.collection.version
    there.collections.DeleteCollection(collections_pb.DeleteCollectionRequest(name="wire"))
    for call in (
        lambda: there.ask(query="oil", collection="wire"),
        lambda: there.collections.GetCollection(collections_pb.GetCollectionRequest(name="wire")),
        lambda: list(there.collections.ListPassages(collections_pb.ListPassagesRequest(collection="wire"))),
        lambda: there.collections.Ingest(
            iter([collections_pb.IngestRequest(collection="wire", passages=[one], last=True)])
        ),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            call()
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_two_processes_share_what_is_in_milvus(there: Service, milvus: MilvusLite, tmp_path: Path) -> None:
    with running(tmp_path, STORE="milvus", MILVUS_URI=milvus.uri) as other:
        there.ingest("shared", [common_pb2.Passage(id="a", text="Oil the chain.")])
        found = other.ask(query="chain", collection="shared")
        assert [passage.id for passage in found.passages] == ["a"]
        names = [
            one.name
            for one in other.collections.ListCollections(collections_pb.ListCollectionsRequest()).collections
        ]
        assert "shared" in names


def test_what_this_milvus_cannot_do_is_said(there: Service) -> None:
    def create(**lexical: object) -> MeshError:
        with pytest.raises(grpc.RpcError) as refused:
            there.collections.CreateCollection(
                collections_pb.CreateCollectionRequest(
                    name="other", lexical=collections_pb.LexicalIndexing(**lexical)
                )
            )
        return from_rpc_error(refused.value)

    assert str(create(analyzer="english")).startswith("lexical.analyzer: this Milvus (milvus_lite-")
    assert str(create(k1=5)) == "lexical.k1: must be above 0 and at most 3 in Milvus"
    with pytest.raises(grpc.RpcError) as refused:
        there.ingest("large", [common_pb2.Passage(id="a", text="x" * 65_536)])
    assert str(from_rpc_error(refused.value)) == (
        "passages[0].text: must be at most 65535 bytes with the title in Milvus, has 65536"
    )
    with pytest.raises(grpc.RpcError) as refused:
        there.ask(query="oil", collection="shared", retriever="bm25")
    assert "this server has bm25-lucene" in str(refused.value)


def test_milvus_going_away_and_coming_back(tmp_path: Path) -> None:
    milvus = MilvusLite(tmp_path / "milvus")
    try:
        with running(tmp_path, STORE="milvus", MILVUS_URI=milvus.uri, MILVUS_TIMEOUT_S="3") as service:
            service.ingest("c", [common_pb2.Passage(id="a", text="Oil the chain.")])
            milvus.kill()
            for call in (
                lambda: service.ask(query="oil", collection="c"),
                lambda: service.ingest("c", [common_pb2.Passage(id="b", text="A lamp.")]),
                lambda: service.collections.ListCollections(collections_pb.ListCollectionsRequest()),
            ):
                began = time.monotonic()
                with pytest.raises(grpc.RpcError) as refused:
                    call()
                assert from_rpc_error(refused.value).reason == "MILVUS_UNAVAILABLE"
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
                assert time.monotonic() - began < 30
            milvus = MilvusLite(tmp_path / "milvus", milvus.port)
            ends = time.monotonic() + 60
            while True:
                try:
                    reply = service.ask(query="oil", collection="c")
                    break
                except grpc.RpcError:
                    assert time.monotonic() < ends
                    time.sleep(0.2)
            assert [passage.id for passage in reply.passages] == ["a"]
    finally:
        milvus.kill()


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        (
            {"MILVUS_URI": "http://127.0.0.1:1"},
            "EVENMESH_RETRIEVER_MILVUS_URI='http://127.0.0.1:1': Milvus cannot be reached",
        ),
        (
            {"MILVUS_TOKEN_FILE": "/no/such/file"},
            "EVENMESH_RETRIEVER_MILVUS_TOKEN_FILE='/no/such/file': No such file",
        ),
        (
            {"DEFAULT_RETRIEVER": "bm25"},
            "EVENMESH_RETRIEVER_DEFAULT_RETRIEVER='bm25': there is none on this server",
        ),
    ],
)
def test_what_cannot_start_says_why(
    milvus: MilvusLite, tmp_path: Path, settings: dict[str, str], reported: str
) -> None:
    process = forked(tmp_path, **{"STORE": "milvus", "MILVUS_URI": milvus.uri, **settings})
    assert process.wait(120) != 0
    errors = wrote(tmp_path, process)
    assert reported in errors
    assert "Traceback" not in errors
