"""``dense`` with an encoder that a real Triton server runs."""

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from evenmesh.wire import deadline
from evenmesh.wire.errors import DeadlineExceeded, Unavailable
from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_retriever.__main__ import _load_encoder
from evenmesh_retriever.analyzer import analyzer
from evenmesh_retriever.backends.catalogue import RetrieverCatalogue
from evenmesh_retriever.backends.dense.sentence_encoder import SentenceEncoder
from evenmesh_retriever.backends.dense.triton_encoder import TritonEncoder
from evenmesh_retriever.backends.segments.building.writer import SegmentIndexing
from evenmesh_retriever.backends.segments.store import Options, SegmentStore
from evenmesh_retriever.domain import Passage
from evenmesh_retriever.ports import CannotStart, TenantCollections
from evenmesh_retriever.settings import RetrieverSettings
from tests.support.triton_models import write_bare_encoder
from tests.support.triton_server import TritonServer, skip_where_impossible

pytestmark = pytest.mark.timeout(900)

TEXTS = [
    "How to mend a puncture: find the hole in the tube, roughen it, glue a patch on it.",
    "A dry chain squeaks and wears out.",
    "Worn brake pads squeal.",
    "ночь",
    "?!",
    "Worn brake pads squeal.",
    " ".join(["a front lamp must be white"] * 100),
]
MODEL = "minilm"


@pytest.fixture(scope="module")
def server(triton: TritonServer) -> TritonServer:
    """The server of the session, which has an encoder, and models that are none."""
    return triton


@pytest.fixture(scope="module")
def encoder(server: TritonServer) -> TritonEncoder:
    """The encoder of that server."""
    return TritonEncoder(f"triton://{server.target}/{MODEL}")


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[TritonServer]:
    """A server of a test's own with nothing but an encoder, which a test may stop."""
    skip_where_impossible()
    repository, home = tmp_path / "repository", tmp_path / "home"
    home.mkdir()
    write_bare_encoder(repository, MODEL)
    settings = {"EVENMESH_TRITON_REPOSITORY": str(repository)}
    with TritonServer(home, {"unused": Path()}, settings=settings) as server:
        yield server


def test_vectors_are_those_of_the_encoder_in_this_process(encoder: TritonEncoder) -> None:
    local = SentenceEncoder(precision="fp32")
    done: list[int] = []
    there, here = encoder.encode_passages(TEXTS, done.append), local.encode_passages(TEXTS, lambda _: None)
    assert there.shape == here.shape == (len(TEXTS), 384)
    assert there.dtype == np.float32
    assert (there * here).sum(axis=1).min() >= 0.999
    np.testing.assert_allclose(np.linalg.norm(there, axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(there[2], there[5])
    assert done == [len(set(TEXTS))]
    for text in TEXTS:
        assert encoder.encode_query(text) @ local.encode_query(text) >= 0.999
    assert encoder.encode_passages([], done.append).shape == (0, 384)


def test_more_passages_than_the_server_takes_at_a_time(encoder: TritonEncoder) -> None:
    texts = [f"passage number {number}" for number in range(150)]
    done: list[int] = []
    vectors = encoder.encode_passages(texts, done.append)
    assert done[-1] == 150
    assert len(done) >= 2
    for number in (0, 75, 149):
        assert vectors[number] @ encoder.encode_query(texts[number]) >= 0.999


def test_threads_share_it(encoder: TritonEncoder) -> None:
    alone = [encoder.encode_query(text) for text in TEXTS]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(encoder.encode_query, TEXTS * 5))
    assert min(float(a @ b) for a, b in zip(alone * 5, together, strict=True)) >= 0.999


def test_prefixes_are_its_own_and_make_other_vectors(server: TritonServer, encoder: TritonEncoder) -> None:
    prefixed = TritonEncoder(
        f"triton://{server.target}/{MODEL}", query_prefix="query: ", passage_prefix="passage: "
    )
    assert prefixed.fingerprint != encoder.fingerprint
    assert TritonEncoder(f"triton://{server.target}/{MODEL}").fingerprint == encoder.fingerprint
    same = encoder.encode_query("query: chains")
    assert prefixed.encode_query("chains") @ same >= 0.999
    assert (encoder.name, encoder.dimension) == ("all-MiniLM-L6-v2", 384)
    assert encoder.device == f"triton://{server.target}"


async def test_a_collection_is_embedded_and_searched_with_it(server: TritonServer, tmp_path: Path) -> None:
    settings = RetrieverSettings(encoder=f"triton://{server.target}/{MODEL}")
    encoder = _load_encoder(settings)
    catalogue = RetrieverCatalogue(settings, cache(analyzer), encoder)
    recipe = SegmentIndexing(cache(analyzer), encoder)
    store = SegmentStore(tmp_path / "collections", recipe, catalogue.prepare)
    await store.start()
    collections = store.of(DEFAULT_TENANT)
    distinct = dict.fromkeys(TEXTS)
    await collections.ingest(
        "c", [Passage(f"p{n}", "", text) for n, text in enumerate(distinct)], create=True
    )
    assert collections.describe("c").embedded == 1
    with collections.lease("c") as snapshot:
        found = catalogue.retrievers["dense"].search(snapshot, "my bicycle brakes make a noise", 1)
        assert snapshot.passages(found.rows.tolist())[0].text == "Worn brake pads squeal."
    assert catalogue.retrievers["dense"].info.device == f"triton://{server.target}"
    await store.stop()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("triton://{target}/nothing", "Triton says: .*nothing"),
        ("triton://{target}/t5", "'t5' is no encoder: it needs 'text' STRING in and 'embedding' FP32 out"),
        ("triton://{closed}/minilm", "no Triton server answers"),
        ("triton://localhost", "must be triton://host:port/model"),
        ("triton://{target}/a/b", "must be triton://host:port/model"),
    ],
)
def test_what_is_no_encoder_ends_the_start_in_a_line(
    server: TritonServer, address: str, message: str
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(CannotStart, match=f"^EVENMESH_RETRIEVER_ENCODER='triton://.*{message}") as no:
            _load_encoder(RetrieverSettings(encoder=address.format(target=server.target, closed=closed)))
    assert "\n" not in str(no.value)


def test_pooling_is_set_where_the_model_is(server: TritonServer) -> None:
    settings = RetrieverSettings(encoder=f"triton://{server.target}/{MODEL}", encoder_pooling="cls")
    with pytest.raises(CannotStart, match="EVENMESH_RETRIEVER_ENCODER_POOLING must be empty"):
        _load_encoder(settings)


def test_a_query_waits_no_longer_than_its_caller(encoder: TritonEncoder) -> None:
    def ask() -> None:
        deadline.enter(deadline.Deadline.after(0.021))  # a millisecond above the margin
        encoder.encode_query(" ".join(["long"] * 5000))

    with ThreadPoolExecutor(1) as thread, pytest.raises(DeadlineExceeded):
        thread.submit(ask).result()


async def test_a_server_that_goes_and_comes_back(own_server: TritonServer, tmp_path: Path) -> None:
    encoder = TritonEncoder(f"triton://{own_server.target}/{MODEL}")
    recipe = SegmentIndexing(cache(analyzer), encoder, embed_at_once=0)
    store = SegmentStore(tmp_path / "collections", recipe, lambda _: None, Options(retry_s=0.2))
    await store.start()
    collections = store.of(DEFAULT_TENANT)
    await asyncio.to_thread(own_server.stop)
    with pytest.raises(Unavailable, match="no Triton server answers") as away:
        await asyncio.to_thread(encoder.encode_query, "chains")
    assert away.value.reason == "ENCODER_UNAVAILABLE"
    # Passages are kept; their vectors follow when the server is back.
    await collections.ingest("c", [Passage("p", "", "A dry chain squeaks.")], create=True)
    await store.settled()
    assert collections.describe("c").embedded == 0
    await asyncio.to_thread(own_server.start)
    await asyncio.wait_for(_embedded(collections), 60)
    await store.stop()


async def _embedded(collections: TenantCollections) -> None:
    while collections.describe("c").embedded < 1:
        await asyncio.sleep(0.05)
