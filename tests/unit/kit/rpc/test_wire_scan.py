"""Bounds are checked on the bytes, before anything is decoded."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from google.protobuf import struct_pb2
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from evenmesh.common.v1.common_pb2 import Passage, Rankings
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.evaluator.v1.evaluator_service_pb2 import EvaluateRankingsRequest
from evenmesh.orchestrator.v1.orchestrator_service_pb2 import AskRequest
from evenmesh.reranker.v1.feedback_service_pb2 import Feedback, RecordFeedbackRequest
from evenmesh.reranker.v1.reranker_service_pb2 import RerankRequest
from evenmesh.wire.errors import InvalidField, MeshError
from evenmesh_kit.rpc.wire_scan import MAX_UNKNOWN, scanner_of

MIB = 2**20


def varint(value: int) -> bytes:
    low, more = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(more) if more else bytes([low])


def sized(tag: int, body: bytes) -> bytes:
    return bytes([tag]) + varint(len(body)) + body


def refused(kind: type[Message], data: bytes) -> InvalidField:
    with pytest.raises(InvalidField) as error:
        scanner_of(kind.DESCRIPTOR).scan(data)
    return error.value


def malformed(kind: type[Message], data: bytes) -> str:
    with pytest.raises(MeshError) as error:
        scanner_of(kind.DESCRIPTOR).scan(data)
    assert error.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert error.value.reason == "MALFORMED_REQUEST"
    return error.value.message


def passage(number: int = 0, **fields: object) -> Passage:
    return Passage(**{"id": f"p{number}", "text": "word", **fields})  # type: ignore[arg-type]


NUGGET = evaluator_pb.Nugget(membership={"kind": evaluator_pb.Distribution(shares=[0] * 1001)})
CASES: list[tuple[Message, str, str]] = [
    (AskRequest(question="x" * 8193), "question", "must be at most 8192 bytes, has 8193"),
    (AskRequest(search="ü" * 4097), "search", "must be at most 8192 bytes, has 8194"),
    (
        RerankRequest(passages=[passage(number) for number in range(1001)]),
        "passages",
        "must be at most 1000 items, has more",
    ),
    (
        RerankRequest(passages=[passage(1), passage(2, id="x" * 257)]),
        "passages[1].id",
        "must be at most 256 bytes, has 257",
    ),
    (
        RerankRequest(passages=[passage(attributes={f"key {n}": "" for n in range(65)})]),
        "passages[0].attributes",
        "must be at most 64 entries, has more",
    ),
    (
        RerankRequest(passages=[passage(attributes={"a": "", "kind": "x" * 1025})]),
        "passages[0].attributes['kind']",
        "must be at most 1024 bytes, has 1025",
    ),
    (
        RerankRequest(passages=[passage(attributes={"x" * 1025: ""})]),
        "passages[0].attributes",
        "each key must be at most 1024 bytes, has 1025",
    ),
    (
        RecordFeedbackRequest(feedback=[Feedback(ranking=["a"] * 5 + ["x" * 257])]),
        "feedback[0].ranking[5]",
        "must be at most 256 bytes, has 257",
    ),
    (
        evaluator_pb.EvaluateConversationRequest(turns=[evaluator_pb.ConversationTurn(nuggets=[NUGGET])]),
        "turns[0].nuggets[0].membership['kind'].shares",
        "must be at most 1000 items, has more",
    ),
    (
        evaluator_pb.CompareSystemsRequest(first=[0.0] * 100_001),
        "first",
        "must be at most 100000 items, has more",
    ),
    (
        evaluator_pb.SampledAnswer(samples=[1, 300] * 500 + [1]),
        "samples",
        "must be at most 1000 items, has more",
    ),
]


@pytest.mark.parametrize(("message", "field", "text"), CASES, ids=[one[1] for one in CASES])
def test_a_field_beyond_its_bound_is_refused_by_its_path(message: Message, field: str, text: str) -> None:
    error = refused(type(message), message.SerializeToString())
    assert (error.field, error.message) == (field, text)


@pytest.mark.parametrize(
    "message",
    [
        AskRequest(question="x" * 8192, k=3),
        RerankRequest(query="q", passages=[passage(n, attributes={"a": "x" * 1023}) for n in range(1000)]),
        RerankRequest(passages=[passage(attributes={f"key {n}": "" for n in range(64)})]),
        evaluator_pb.CompareSystemsRequest(first=[0.5] * 100_000, second=[1.5] * 100_000),
        evaluator_pb.SampledAnswer(text="x" * 65_536, samples=[1, 300] * 500),
        Rankings(depth=1000, indices=[2**32 - 1] * 1000),
    ],
)
def test_what_is_at_its_bounds_passes(message: Message) -> None:
    scanner_of(message.DESCRIPTOR).scan(message.SerializeToString())


TEXTS = st.text(max_size=90)
PASSAGES = st.builds(
    Passage, id=st.text(max_size=260), title=TEXTS, attributes=st.dictionaries(TEXTS, TEXTS, max_size=70)
)


@given(st.lists(PASSAGES, max_size=6))
def test_it_refuses_exactly_what_the_decoded_message_has_beyond_a_bound(passages: list[Passage]) -> None:
    message = RerankRequest(passages=passages)
    good = all(len(one.id.encode()) <= 256 and len(one.attributes) <= 64 for one in message.passages)
    try:
        scanner_of(RerankRequest.DESCRIPTOR).scan(message.SerializeToString())
    except InvalidField:
        assert not good
    else:
        assert good


@given(st.binary(max_size=400), st.sampled_from([AskRequest, RerankRequest, evaluator_pb.ObserveRequest]))
def test_no_bytes_raise_anything_but_an_error_of_the_mesh(data: bytes, kind: type[Message]) -> None:
    with contextlib.suppress(MeshError):
        scanner_of(kind.DESCRIPTOR).scan(sized(0x0A, data) + data)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=1200), st.integers(0, 1200))
def test_packed_and_unpacked_numbers_count_together(numbers: list[int], split: int) -> None:
    unpacked = b"".join(b"\x10" + varint(one) for one in numbers[:split])
    data = unpacked + sized(0x12, b"".join(map(varint, numbers[split:])))
    assert list(evaluator_pb.SampledAnswer.FromString(data).samples) == numbers
    if len(numbers) > 1000:
        assert refused(evaluator_pb.SampledAnswer, data).field == "samples"
    else:
        scanner_of(evaluator_pb.SampledAnswer.DESCRIPTOR).scan(data)


HOSTILE: list[tuple[str, type[Message], Callable[[], bytes]]] = [
    ("empty passages", AskRequest, lambda: sized(0x1A, b"\x0a\x00" * (31 * MIB // 2))),
    ("many lists of passages", AskRequest, lambda: sized(0x1A, b"\x0a\x00" * 900) * 10_000),
    ("unpacked numbers", evaluator_pb.CompareSystemsRequest, lambda: (b"\x09" + bytes(8)) * (31 * MIB // 9)),
    ("packed numbers", Rankings, lambda: sized(0x12, bytes(31 * MIB))),
    ("map entries", RerankRequest, lambda: sized(0x12, b"\x22\x00" * (31 * MIB // 2))),
    ("empty texts", Feedback, lambda: b"\x42\x00" * (31 * MIB // 2)),
    ("one number again and again", AskRequest, lambda: b"\x38\x01" * (31 * MIB // 2)),
    ("unknown fields", AskRequest, lambda: b"\xf8\x07\x01" * (31 * MIB // 3)),
    ("groups", AskRequest, lambda: b"\xfb\x07" * (31 * MIB // 2)),
    ("a tag without end", AskRequest, lambda: b"\xff" * (31 * MIB)),
    ("a number without end", AskRequest, lambda: b"\x38" + b"\xff" * (31 * MIB)),
]


@pytest.mark.parametrize(("kind", "made"), [one[1:] for one in HOSTILE], ids=[one[0] for one in HOSTILE])
def test_hostile_bytes_are_refused_without_memory(kind: type[Message], made: Callable[[], bytes]) -> None:
    scanner, data = scanner_of(kind.DESCRIPTOR), made()
    tracemalloc.start()
    try:
        with pytest.raises(MeshError):
            scanner.scan(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MIB


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x12\x7f" + b"x" * 40, "truncated"),
        (b"\x12\xff", "truncated"),
        (b"\x38", "truncated"),
        (b"\x38" + b"\xff" * 10 + b"\x01", "more than 10 bytes"),
        (b"\x12" + b"\xff" * 6, "more than 5 bytes"),
        (b"\x8a\x00\x01x", "a tag is not as protobuf writes it"),
        (b"\x00\x01", "a tag is not as protobuf writes it"),
        (b"\xfb\x07\xfc\x07", "a tag is not as protobuf writes it"),
        (b"\xf8\x07\x01" * (MAX_UNKNOWN + 1), "more than 16 unknown fields"),
    ],
)
def test_bytes_that_protobuf_does_not_write_are_refused(data: bytes, why: str) -> None:
    start = sized(0x0A, b"a question that is long enough to be walked")
    assert why in malformed(AskRequest, start + data)


def test_a_few_unknown_fields_pass() -> None:
    message = AskRequest(question="a question that is long enough to be walked").SerializeToString()
    scanner_of(AskRequest.DESCRIPTOR).scan(message + b"\xf8\x07\x01" * MAX_UNKNOWN)


def test_a_singular_field_comes_once() -> None:
    error = refused(AskRequest, AskRequest(question="a question that is long").SerializeToString() * 2)
    assert (error.field, error.message) == ("question", "must be given at most once")


def test_a_message_in_itself_has_a_deepest_level() -> None:
    value = struct_pb2.Value(string_value="x")
    for _ in range(40):
        value = struct_pb2.Value(list_value=struct_pb2.ListValue(values=[value]))
    assert "more than 32 levels" in malformed(struct_pb2.Value, value.SerializeToString())


def test_texts_may_be_left_to_others() -> None:
    scanner = scanner_of(AskRequest.DESCRIPTOR, texts=False)
    request = AskRequest(question="x" * 100_000)
    scanner.scan(request.SerializeToString())
    request.candidates.passages.extend([Passage()] * 20_000)
    with pytest.raises(InvalidField, match="items"):
        scanner.scan(request.SerializeToString())


def test_an_estimate_counts_messages_and_items_at_every_level() -> None:
    # A message takes 24 and 16 a text, 8 another field, 96 a list, 192 a map; an item of a list of texts 64, of
    # a map 112, of a list of messages what the message takes and 8.
    query = 24 + 16 + 96 + 192
    request = EvaluateRankingsRequest(
        queries=[EvaluateRankingsRequest.Query(ranking=["a"] * 3, grades={"a": 1, "b": 2}) for _ in range(5)]
    )
    data = request.SerializeToString()
    root = sum(
        96 if field.is_repeated else 16 if field.type == field.TYPE_STRING else 8
        for field in request.DESCRIPTOR.fields
    )
    exactly = 24 + root + len(data) + 5 * (query + 8 + 3 * 64 + 2 * 112)
    assert scanner_of(EvaluateRankingsRequest.DESCRIPTOR).scan(data) >= exactly
    long = EvaluateRankingsRequest(queries=[request.queries[0]] * 100)
    long.queries[0].ranking.extend(["a"] * 900)  # walked, not counted by tags
    more = 24 + root + long.ByteSize() + 100 * (query + 8 + 3 * 64 + 2 * 112) + 900 * 64
    assert scanner_of(EvaluateRankingsRequest.DESCRIPTOR).scan(long.SerializeToString()) >= more


EMPTY_IDS = sized(0x0A, b"\x12\x00" * 1000) * 2000
"""Two million ids without a character: each bound of a field holds."""


def test_a_message_that_takes_too_much_is_refused() -> None:
    with pytest.raises(MeshError) as refused:
        scanner_of(EvaluateRankingsRequest.DESCRIPTOR).scan(EMPTY_IDS, 100 * 2**20)
    assert (refused.value.reason, refused.value.retry_after_s) == ("REQUEST_TOO_LARGE", None)
    assert "more than 104,857,600 bytes decoded" in refused.value.message


MEASURE = """
import sys
from pathlib import Path
from evenmesh.evaluator.v1.evaluator_service_pb2 import EvaluateRankingsRequest
from evenmesh.reranker.v1.reranker_service_pb2 import RerankRequest

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

kind = {"rankings": EvaluateRankingsRequest, "passages": RerankRequest}[sys.argv[1]]
data = sys.stdin.buffer.read()
before = resident()
message = kind.FromString(data)
print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc of Linux")
@pytest.mark.parametrize(
    ("name", "kind", "data"),
    [
        ("rankings", EvaluateRankingsRequest, EMPTY_IDS),
        (
            "rankings",
            EvaluateRankingsRequest,
            sized(0x0A, b"".join(sized(0x1A, sized(0x0A, b"%04d" % at) + b"\x10\x01") for at in range(1000)))
            * 500,
        ),
        (
            "passages",
            RerankRequest,
            sized(0x12, b"".join(sized(0x22, sized(0x0A, b"%02d" % at)) for at in range(64))) * 1000,
        ),
    ],
    ids=["lists of texts", "maps of numbers", "maps of texts"],
)
def test_an_estimate_is_about_what_protobuf_takes(name: str, kind: type[Message], data: bytes) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, name], input=data, stdout=subprocess.PIPE, check=True, env=environment
    )
    assert scanner_of(kind.DESCRIPTOR).scan(data) > 0.7 * int(done.stdout)
