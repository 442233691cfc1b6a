"""The retriever alone, as programs ask it."""

from datetime import UTC, datetime

import pytest

from evenmesh import AsyncClient, Client, Collection, Passage, Retrieval, Retriever, Source
from evenmesh.codec import messages as codec
from evenmesh.codec.mapping import decode
from evenmesh.retriever.v1 import collection_service_pb2 as collection_pb2
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb2
from evenmesh.types.retrieval import retrieve_request
from evenmesh.wire.errors import DeadlineExceeded, InvalidField, NotFound
from tests.support.scripted import ScriptedMesh

OPTIONS = {
    "collection": "c",
    "retriever": "bm25",
    "k": 2,
    "alpha": 2.0,
    "samples": 2,
    "seed": 7,
    "stream_id": "s",
    "whole_collection": True,
    "inclusion": True,
    "filter": {"provider": "Club"},
}


def assert_drawn(found: Retrieval) -> None:
    assert [passage.id for passage in found.passages] == ["p1", "p2", "p3"]
    assert found.rankings == ((0, 1), (2, 0))
    assert found.scores == (2.5, 1.0, 0.0)
    assert found.log_probabilities == (-0.5, -1.5)
    assert found.inclusion_probabilities == (0.9, 0.6, 0.5)
    assert (found.retriever, found.index_version, found.note) == ("bm25", "v7", "half of it")


async def test_both_clients_retrieve(scripted: ScriptedMesh) -> None:
    async with AsyncClient(scripted.addresses) as client:
        assert_drawn(await client.retrieve("oil", **OPTIONS))
    with Client(scripted.addresses) as client:
        assert_drawn(client.retrieve("oil", **OPTIONS))
        plain = client.retrieve("oil", collection="c")
        assert (plain.rankings, plain.log_probabilities) == (((0, 1),), ())
        assert client.retrieve("nothing", collection="c").rankings == ((),)
        with pytest.raises(InvalidField, match="must be false without sampling"):
            client.retrieve("oil", collection="c", whole_collection=True)
    one, other = scripted.retriever.requests[:2]
    assert one == other
    assert one.whole_collection
    assert (one.sampling.alpha, one.sampling.num_rankings, one.sampling.seed) == (2.0, 2, 7)
    assert not one.HasField("depth")
    assert one.filter.conditions[0].attribute == "provider"


def test_a_request_has_the_options_of_the_call() -> None:
    assert retrieve_request("q", {"web": "SE", "depth": 3}) == retriever_pb2.RetrieveRequest(
        query="q", web="SE", depth=3
    )
    sent = retrieve_request("q", {"passages": [Passage(id="a", text="x")]})
    assert [passage.id for passage in sent.candidates.passages] == ["a"]
    target = retrieve_request("q", {"collection": "c", "disparity": 0.25}).sampling
    assert (target.disparity, target.HasField("alpha")) == (0.25, False)
    with pytest.raises(InvalidField, match="not several"):
        retrieve_request("q", {"collection": "c", "web": "SE"})
    with pytest.raises(TypeError, match="no option question"):
        retrieve_request("q", {"question": "q"})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(InvalidField, match="must be a whole number") as wrong:
        retrieve_request("q", {"collection": "c", "k": 1.5})  # type: ignore[typeddict-item]
    assert wrong.value.field == "k"


def test_replies_of_read_replicas_say_how_old_they_may_be() -> None:
    message = retriever_pb2.RetrieveResponse(index_version="7-a")
    assert codec.retrieval(message).index_as_of is None
    message.index_as_of.FromSeconds(1_800_000_000)
    assert codec.retrieval(message).index_as_of == datetime.fromtimestamp(1_800_000_000, UTC)
    stored = collection_pb2.Collection(name="c")
    assert decode(Collection, stored).as_of is None
    stored.as_of.FromSeconds(1_800_000_000)
    assert decode(Collection, stored).as_of == datetime.fromtimestamp(1_800_000_000, UTC)


async def test_both_clients_list_sources(scripted: ScriptedMesh) -> None:
    scripted.retriever.sources = [retriever_pb2.Source(name="SE", description="the web")]
    async with AsyncClient(scripted.addresses) as client:
        assert await client.sources() == [Source("SE", "the web")]
    with Client(scripted.addresses) as client:
        assert client.sources() == [Source("SE", "the web")]


async def test_both_clients_list_retrievers(scripted: ScriptedMesh) -> None:
    async with AsyncClient(scripted.addresses) as client:
        found = await client.retrievers()
    with Client(scripted.addresses) as client:
        assert client.retrievers() == found
    assert found[0] == Retriever("bm25", "BM25", "csr", "", "cpu", True)
    assert [one.is_default for one in found] == [True, False]


async def test_both_clients_remove_passages(scripted: ScriptedMesh) -> None:
    with Client(scripted.addresses) as client:
        client.ingest([Passage(str(n), "x") for n in range(5)], "c")
        done = client.delete_passages("c", ["0", "1", "9"])
        assert (done.deleted, done.missing, done.collection.num_passages) == (2, 1, 3)
    async with AsyncClient(scripted.addresses) as other:
        assert (await other.delete_passages("c", iter(["2"]))).deleted == 1
        with pytest.raises(InvalidField, match="at least 1"):
            await other.delete_passages("c", [])
        with pytest.raises(NotFound, match="no collection 'd'"):
            await other.delete_passages("d", ["1"])
        with pytest.raises(InvalidField, match="must be text"):
            await other.delete_passages("c", [1])  # type: ignore[list-item]


def test_many_ids_are_removed_in_several_calls(scripted: ScriptedMesh) -> None:
    with Client(scripted.addresses) as client:
        client.ingest([Passage(str(n), "x") for n in range(3)], "c")
        before = scripted.collections.parts
        done = client.delete_passages("c", map(str, range(10_001)))
    assert (done.deleted, done.missing) == (3, 9_998)
    assert scripted.collections.parts == before + 2


async def test_both_clients_wait_for_vectors(scripted: ScriptedMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenmesh._sync.retrieval.EMBEDDED_EVERY_S", 0.001)
    monkeypatch.setattr("evenmesh._async.retrieval.EMBEDDED_EVERY_S", 0.001)
    scripted.collections.kept["c"] = []
    shares: list[float] = []
    scripted.collections.shares = [0.25, 0.5]
    with Client(scripted.addresses) as client:
        assert client.until_embedded("c", on_progress=shares.append).embedded == 1
    scripted.collections.shares = [0.75]
    async with AsyncClient(scripted.addresses) as client:
        assert (await client.until_embedded("c", on_progress=shares.append)).embedded == 1
        scripted.collections.shares = [0.125] * 100
        with pytest.raises(DeadlineExceeded, match=r"12\.5% of the passages of 'c' have vectors"):
            await client.until_embedded("c", timeout=0)
    assert shares == [0.25, 0.5, 0.75]


async def test_embed(scripted: ScriptedMesh) -> None:
    async with AsyncClient(scripted.addresses) as client:
        found = await client.embed(["one", "one two"], queries=True, model="minilm")
    with Client(scripted.addresses) as client:
        assert client.embed(["one", "one two"], queries=True, model="minilm") == found
    assert [one[1] for one in found.vectors] == pytest.approx([0.3, 0.7])
    assert (found.tokens, found.model, found.fingerprint, found.max_tokens) == ((1, 2), "minilm", "f1", 256)
    asked = retriever_pb2.EmbedRequest(
        texts=["one", "one two"], kind=retriever_pb2.TEXT_KIND_QUERY, model="minilm"
    )
    assert scripted.retriever.embedded == [asked, asked]
