"""Everything that reads what a stranger may have written: called with bytes, it takes them or says what is wrong."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gzip
import io
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from google.rpc import error_details_pb2, status_pb2

from evenmesh.commands.failure import CommandError
from evenmesh.commands.filters import filter_of
from evenmesh.files import parquet
from evenmesh.files import passages as readers
from evenmesh.types import feedback
from evenmesh.types.collection import Collection, Lexical
from evenmesh.types.filters import filter_message
from evenmesh.types.passage import Passage
from evenmesh.wire import errors
from evenmesh_core import text_metrics
from evenmesh_core.errors import InvalidInput
from evenmesh_core.group_fairness import parse_jsonl, parse_transcripts
from evenmesh_generator.domain import Passage as PromptPassage
from evenmesh_generator.domain import Turn
from evenmesh_generator.prompts import Scope, TemplateLibrary, cut_to_fit
from evenmesh_generator.triton import tensors
from evenmesh_kit.rpc.statuses import to_mesh_error
from evenmesh_kit.security.authentication import Unauthenticated
from evenmesh_kit.security.keys import ApiKeys, KeysError
from evenmesh_kit.security.tokens import Claims, Tokens, TokensError
from evenmesh_kit.telemetry.recorder import extract_context
from evenmesh_lab.files import trec
from evenmesh_lab.files.audits import read_audits
from evenmesh_lab.files.conversations import read_attributes, read_conversations, read_marks
from evenmesh_lab.files.failure import FileError
from evenmesh_lab.files.journal import Journal
from evenmesh_lab.files.labels import read_attribute, read_labels
from evenmesh_lab.files.lamp import read_lamp
from evenmesh_lab.files.multiple_choice import mirage_benchmark
from evenmesh_lab.files.queries import read_queries
from evenmesh_lab.files.questions import read_question_set
from evenmesh_lab.files.records import (
    AuditRecord,
    EnsembleRecord,
    GainRecord,
    LabelRecord,
    QueryRecord,
    query_ids,
    read,
)
from evenmesh_mesh.backup import manifest as backup_manifest
from evenmesh_mesh.backup.manifest import BackupError
from evenmesh_orchestrator.asks import citations
from evenmesh_orchestrator.expressions.parser import ExpressionError, parse
from evenmesh_reranker.models.manifest import FILE, Manifest, ManifestError
from evenmesh_retriever.analyzer import ANALYZERS, analyzer
from evenmesh_retriever.backends.web.extraction import extract
from evenmesh_retriever.backends.web.page import Page
from evenmesh_retriever.backends.web.reader import TRIPS
from evenmesh_studies.conversations.topics import read_topics
from evenmesh_training.online.replay import read_stream
from evenmesh_training.rankrag.data.datasets import RecipeError, rows
from tests.fuzz import documents

CORPUS: Final = Path(__file__).with_name("findings") / "parsers"
"""Inputs that were once taken wrongly: ``<target>-<what>``."""


@dataclass(frozen=True, slots=True)
class Target:
    """One reader.

    Attributes:
        name: what it is called.
        read: gives it bytes; returns, or raises one of ``refusals``.
        refusals: what it says of bytes it cannot take.
        seeds: bytes that it takes, and some that it nearly takes.
        weight: how many inputs of a long run it gets, in proportion to others'.
    """

    name: str
    read: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]
    weight: float = 1.0

    def try_on(self, data: bytes) -> bool:
        """Whether it took the bytes; what it may not raise comes through."""
        try:
            self.read(data)
        except self.refusals:
            return False
        return True


_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - no disk: a million files
_SCRATCH: Final = Path(tempfile.mkdtemp(prefix="fuzz-", dir=_MEMORY if _MEMORY.is_dir() else None))
atexit.register(shutil.rmtree, _SCRATCH, ignore_errors=True)


def _file(suffix: str, use: Callable[[Path], object]) -> Callable[[bytes], object]:
    path = _SCRATCH / f"input{suffix}"

    def given(data: bytes) -> object:
        path.write_bytes(data)
        return use(path)

    return given


def _all(found: object) -> None:
    if isinstance(found, Iterable):
        for _ in found:
            pass


def _lines(*objects: object) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in objects)


_PASSAGES: Final = _lines(
    {"id": "p1", "title": "River", "text": "Water flows.", "attributes": {"provider": "A"}},
    {"_id": "p2", "text": "It boils.", "metadata": {"year": 1990, "x": [1], "y": None, "z": 1e400}},
)
_AUDITS: Final = _lines(
    {"query_id": "q1", "ranking": ["a", "b"], "system": "s", "alpha": 1.0, "sample": 0, "utility": 0.5},
    {"query_id": "q1", "ranking": ["b", "a"], "system": "s", "alpha": 1.0, "sample": 1, "answer": "x"},
)
_LABELS: Final = _lines({"query_id": "q", "passage_id": "p", "grade": 1.0, "provider": "A", "group": "g"})
_RUN: Final = b"q1 Q0 a 1 2.5 s/alpha=2/sample=17\nq1 Q0 b 2 1.5 s/alpha=2/sample=17\nq2 Q0 a 1 1 t\n"
_TRANSCRIPT: Final = b"""##### M002
### U1
Please list up sci-fi movies
### S1 o
Back to the Future: https://example.org/1
#L2
#RATINGS: (0,0,1/2,0.5) #1.3M
#ORIGIN: (0,1/2,0,0,0,1/2,0,0)
"""
_DEEP: Final = b'{"a":' + b"[" * 3000
_LONG_NUMBER: Final = b'{"id": "a", "text": "b", "usefulness": ' + b"9" * 5000 + b"}"


def _parquet(rows_: Sequence[Mapping[str, Any]], **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows_)), sink, **options)
    return sink.getvalue()


def _exported() -> bytes:
    path = _SCRATCH / "exported"
    writer = parquet.Writer(path)
    writer.add(Passage("p1", "Water flows.", "River", {"provider": "A"}))
    writer.finish(
        Collection(
            "demo", "v1", 1, 1, "", "english", "", datetime(2026, 1, 1, tzinfo=UTC), Lexical("english")
        )
    )
    return path.read_bytes()


def _gunzipped(data: bytes) -> None:
    readers.check(_written(".gz", gzip.compress(data, 1)))
    _all(read_queries(_written(".jsonl.gz", gzip.compress(data, 1))).queries)


def _written(suffix: str, data: bytes) -> Path:
    path = _SCRATCH / f"written{suffix}"
    path.write_bytes(data)
    return path


def _records(path: Path) -> None:
    for kind in (AuditRecord, LabelRecord, EnsembleRecord, GainRecord, QueryRecord):
        try:
            _all(read(path, kind))
        except FileError:
            continue
    _all(query_ids(path))
    _all(read_audits([path]))


def _questions(data: bytes) -> None:
    for name in ("questions.jsonl", "questions.json"):
        path = _SCRATCH / name
        path.write_bytes(data)
        read_question_set(str(path))
    read_queries(path)
    mirage_benchmark(path)


def _transcripts(data: bytes) -> None:
    text = data.decode(errors="replace")
    for way in (parse_transcripts, parse_jsonl):
        try:
            found = way(text)
        except InvalidInput:
            continue
        for one in found:
            one.nuggets({level: 1.0 for turn in one.turns for level in (a.level for a in turn.annotations)})


def _conversations(path: Path) -> None:
    for use in (read_conversations, read_marks, read_attributes):
        try:
            use(path)
        except FileError:
            continue


def _lamp(data: bytes) -> None:
    first, _, second = data.partition(b"\x00\x00")
    questions, outputs = _SCRATCH / "lamp.json", _SCRATCH / "lamp-outputs.json"
    questions.write_bytes(first)
    outputs.write_bytes(second or b'{"task": "LaMP_4", "golds": [{"id": "1", "output": "x"}]}')
    read_lamp(questions, outputs)
    read_lamp(questions, None, "LaMP-1")


def _journal(path: Path) -> None:
    (path.parent / "records").write_text("x" * 10)
    with Journal(path, {"a": 1}):
        pass


def _expression(data: bytes) -> None:
    text = data.decode(errors="replace")
    parsed = parse(text)
    assert parse(str(parsed)) == parsed or len(str(parsed)) > 250


def _filter(data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    if (wanted := filter_of([one for one in text.split("\n") if one])) is not None:
        filter_message(wanted)


def _manifest(data: bytes) -> None:
    (_SCRATCH / FILE).write_bytes(data)
    manifest = Manifest.read(_SCRATCH)
    folder = _SCRATCH / "version"
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(ManifestError):
        manifest.verify(folder)


def _backup(data: bytes) -> None:
    folder = _SCRATCH / "backup"
    folder.mkdir(exist_ok=True)
    (folder / backup_manifest.FILE).write_bytes(data)
    manifest = backup_manifest.Manifest.read(folder)
    for part in manifest.parts:
        for name in (part.path, *part.files):
            assert (folder / name).resolve().is_relative_to(folder.resolve())
            assert (folder / name).resolve() != folder.resolve()
    manifest.problems(folder)


class _Failed(grpc.RpcError):
    """A failed call whose details are whatever came."""

    def __init__(self, details: bytes) -> None:
        super().__init__()
        self._details = details

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.INVALID_ARGUMENT

    def details(self) -> str:
        return "x"

    def trailing_metadata(self) -> Sequence[tuple[str, bytes]]:
        return (("grpc-status-details-bin", self._details),)


def _status(data: bytes) -> None:
    found = errors.from_rpc_error(_Failed(data))
    assert isinstance(found, errors.MeshError)
    assert isinstance(to_mesh_error(_Failed(data)), errors.MeshError)
    str(found)


def _status_seed() -> bytes:
    status = status_pb2.Status(code=8, message="later")
    violation = error_details_pb2.BadRequest.FieldViolation(field="a.b[1]", description="later")
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromNanoseconds(1_500_000_000)
    for detail in (
        error_details_pb2.ErrorInfo(reason="OVERLOADED", domain=errors.DOMAIN),
        error_details_pb2.BadRequest(field_violations=[violation]),
        retry,
    ):
        status.details.add().Pack(detail)
    return status.SerializeToString()


def _trace(data: bytes) -> None:
    text = data.decode("latin-1")
    parent, _, state = text.partition("\n")
    extract_context((("traceparent", parent), ("tracestate", state), ("x", "y")))


_JWKS: Final = {"keys": [{"kty": "oct", "k": "AAAA", "kid": "1", "alg": "HS256"}]}


def _token(data: bytes) -> None:
    path = _SCRATCH / "jwks.json"
    if not path.exists():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from jwt.algorithms import OKPAlgorithm

        key = json.loads(OKPAlgorithm.to_jwk(Ed25519PrivateKey.generate().public_key()))
        path.write_text(json.dumps({"keys": [{**key, "kid": "1"}]}))
    tokens = Tokens(str(path), Claims("mesh", ""))
    asyncio.run(tokens.caller(data.decode("latin-1")))


def _triton(data: bytes) -> None:
    text = data.decode(errors="replace")
    tensors.read_error(text)
    one = np.array([data], dtype=object)
    for use in (tensors.read_answer, tensors.read_description):
        try:
            use({"description": one, "text": one, "cost": one, "finish_reason": one, "model_version": one})
        except errors.InvalidField:
            continue


_LIBRARY: Final = TemplateLibrary.bundled()


def _prompts(data: bytes) -> None:
    text = data.decode(errors="replace")
    question, _, body = text.partition("\n")
    passage = PromptPassage("p", question, body)
    turns = [Turn(question, body)]
    for name in _LIBRARY.names:
        template = _LIBRARY.get(name)
        shown = template.render(text, [passage], turns)
        assert text in shown or name.startswith("lamp-1"), name
        if template.scope is not Scope.NO_PASSAGE and not name.startswith("lamp"):
            assert body in shown, name
    cut_to_fit(passage, lambda one: len(one.text) < len(body) // 2)


def _texts(data: bytes) -> None:
    text = data[:2000].decode(errors="replace")
    said, _, known = text.partition("\n")
    for metric in (text_metrics.exact_match, text_metrics.token_f1):
        assert 0 <= metric(said, [known]) <= 1
    for variant in ("rouge1", "rougeL"):
        assert 0 <= text_metrics.rouge(said, [known], variant) <= 1  # type: ignore[arg-type]
    if any(character.isalnum() for character in said):
        text_metrics.contains_answer(text, f"a1 {said}")
    for name in ANALYZERS:
        analyzer(name).tokens(text)
    citations.citations(said, [Passage("p", known, text, {})])


def _page(data: bytes) -> None:
    kind, encoding = ("text/html", None) if data[:1] != b"t" else ("text/plain", "utf-8")
    extract(Page(data, kind, encoding), "https://example.org/a")


_READ: Final = (readers.ReadError,)
_FILE: Final = (FileError,)

TARGETS: Final = {
    target.name: target
    for target in (
        Target("passages", _file(".jsonl", readers.check), _READ, (_PASSAGES, _DEEP, _LONG_NUMBER), 8),
        Target("passages-gzip", _file("", readers.check), _READ, (gzip.compress(_PASSAGES),), 2),
        Target("passages-gunzipped", _gunzipped, _READ, (_PASSAGES,), 1),
        Target(
            "passages-parquet",
            _file(".parquet", readers.check),
            _READ,
            (
                _exported(),
                _parquet([{"id": "a", "text": "b"}]),
                _parquet([{"id": "a", "text": "b", "title": None}]),
            ),
            1,
        ),
        Target(
            "feedback",
            lambda data: _all(feedback.read(data.split(b"\n"), Path("x"))),
            _READ,
            (
                _lines(
                    {
                        "query": "q",
                        "passage_id": "p",
                        "usefulness": 0.5,
                        "agent": {"task_id": "t", "model_id": "m"},
                        "ranking": ["p"],
                    }
                ),
                _DEEP,
            ),
            8,
        ),
        Target("records", _file(".jsonl", _records), _FILE, (_AUDITS, _LABELS, _DEEP), 3),
        Target(
            "records-parquet",
            _file(".parquet", _records),
            _FILE,
            (_parquet([{"query_id": "q", "ranking": ["a"]}]),),
            0.5,
        ),
        Target(
            "questions",
            _questions,
            _FILE,
            (
                _lines({"id": "1", "question": "q", "options": {"A": "x", "B": "y"}, "answer": "A"}),
                _lines({"medqa": {"0": {"question": "q", "options": {"A": "x"}, "answer": "A"}}}),
                _DEEP,
            ),
            2,
        ),
        Target("trec-run", _file(".run", lambda path: _all(trec.read_run(path))), _FILE, (_RUN,), 6),
        Target(
            "trec-qrels",
            _file(".qrels", lambda path: _all(trec.read_qrels(path))),
            _FILE,
            (b"q1 0 p 1\nq1 0 r -2\n", b"q 0 p " + b"9" * 400),
            6,
        ),
        Target("labels", _file(".jsonl", read_labels), _FILE, (_LABELS,), 4),
        Target(
            "attribute",
            _file(".jsonl", lambda path: read_attribute(path, "provider")),
            _FILE,
            (_PASSAGES.splitlines(keepends=True)[0], _lines({"passage_id": "p", "provider": "A"}), _DEEP),
            4,
        ),
        Target(
            "transcripts",
            _transcripts,
            (InvalidInput,),
            (
                _TRANSCRIPT,
                _lines(
                    {
                        "topic": "M",
                        "turns": [
                            {"speaker": "user", "words": 3},
                            {
                                "speaker": "system",
                                "words": 4,
                                "annotations": [
                                    {"end": 4, "level": 2, "entity": "e", "membership": {"R": ["1/2", 0.5]}}
                                ],
                            },
                        ],
                    }
                ),
            ),
            6,
        ),
        Target(
            "conversations",
            _file(".jsonl", _conversations),
            _FILE,
            (_TRANSCRIPT, b'{"RATINGS": {"gold": ["1/4", 0.75], "divergence": "rnod"}, "X": {"groups": 4}}'),
            4,
        ),
        Target(
            "lamp",
            _lamp,
            _FILE,
            (
                b'[{"id": "1", "input": "Generate a headline for the following article: x", "profile": [{"id": "a", "text": "t", "title": "u", "date": "d"}]}]',
                b'[]\x00\x00{"task": "LaMP_1", "golds": []}',
                _DEEP,
            ),
            2,
        ),
        Target(
            "topics",
            _file(".jsonl", read_topics),
            _FILE,
            (
                _lines(
                    {"topic": "M", "question": "q", "format": "f", "useful": [["a"], []]},
                    {"topic": "N", "turns": ["a"]},
                ),
            ),
            4,
        ),
        Target(
            "journal",
            _file(".journal", _journal),
            _FILE,
            (
                _lines(
                    {"version": 1, "settings": {"a": 1}},
                    {"piece": "p", "file": "records", "end": 4, "facts": {"v": "1"}},
                ),
            ),
            3,
        ),
        Target(
            "training-rows",
            _file(".jsonl", lambda path: _all(rows(path))),
            (RecipeError,),
            (_PASSAGES, _DEEP, b"\xff\xfe"),
            4,
        ),
        Target(
            "stream",
            _file(".jsonl", read_stream),
            (InvalidInput,),
            (
                _lines(
                    {"query": "q", "passages": [{"id": "a", "title": "t", "text": "x"}], "usefulness": [0.5]}
                ),
                _DEEP,
            ),
            4,
        ),
        Target(
            "expressions",
            _expression,
            (ExpressionError,),
            (b"SE@RR@5&Wiki@5@CP", b"(a&b@2)@RR@3", b"PK", b"ReFree"),
            3,
        ),
        Target(
            "filters",
            _filter,
            (CommandError, errors.InvalidField),
            (b"provider=a,b\ndate=2020-01-01..2021\nyear:=1990..2e3",),
            6,
        ),
        Target(
            "model-manifest",
            _manifest,
            (ManifestError,),
            (
                json.dumps(
                    {
                        "format": 1,
                        "version": "0123456789abcdef",
                        "created_at": "2026-01-01T00:00:00+00:00",
                        "lineage": {
                            "provenance": "x",
                            "parent": "",
                            "agent": {"task_id": "t", "model_id": "m"},
                            "kind": "full",
                            "base": "",
                            "metrics": {"u": 0.5},
                        },
                        "tokens": ["[task:t]"],
                        "files": {"../../etc/passwd": {"size": 1, "sha256": "0" * 64}},
                    }
                ).encode(),
            ),
            4,
        ),
        Target(
            "backup-manifest",
            _backup,
            (BackupError,),
            (
                json.dumps(
                    {
                        "format": 1,
                        "created_at": "2026-01-01T00:00:00Z",
                        "evenmesh": "0.1",
                        "parts": [
                            {
                                "name": "observations",
                                "kind": "sqlite",
                                "path": "evaluator/observations.db",
                                "files": {"evaluator/observations.db": {"size": 1, "sha256": "0" * 64}},
                            }
                        ],
                    }
                ).encode(),
            ),
            4,
        ),
        Target("status-details", _status, (), (_status_seed(), b""), 6),
        Target(
            "trace-context",
            _trace,
            (),
            (b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\na=b,c=d",),
            6,
        ),
        Target(
            "tokens",
            _token,
            (Unauthenticated,),
            (b"eyJhbGciOiJFZERTQSIsImtpZCI6IjEifQ.e30.AAAA", b"a.b.c"),
            1,
        ),
        Target(
            "jwks",
            _file(".json", lambda path: Tokens(str(path), Claims("mesh", ""))),
            (TokensError,),
            (json.dumps(_JWKS).encode(), _DEEP),
            2,
        ),
        Target(
            "keys",
            _file(".toml", ApiKeys),
            (KeysError,),
            (b'[[key]]\nname = "ci"\nsha256 = "' + b"0" * 64 + b'"\ntenant = "acme"\nroles = ["ask"]\n',),
            2,
        ),
        Target(
            "triton-replies",
            _triton,
            (),
            (
                b'x {"code": "RESOURCE_EXHAUSTED", "reason": "R", "message": "m", "field": null, "retry_after_s": 1}',
                b'{"statistics": {}, "augmentations": []}',
            ),
            6,
        ),
        Target(
            "prompts",
            _prompts,
            (),
            (b"What {{ 7 * 7 }}?\n{% for x in y %} </s> {# a #}", b"title\nPassage 2: User:"),
            0.5,
        ),
        Target("texts", _texts, (), ("İstanbul ẞ the a\nthe istanbul".encode(), b"water 100 C\nwater"), 1),
        Target(
            "web-page",
            _page,
            TRIPS,
            (
                b"<html lang='en'><title>T</title><body><p>Water flows here, all day long.</p></body></html>",
                b"t\x00",
            ),
            0.2,
        ),
        *(Target(*one) for one in documents.TARGETS),
    )
}
"""Every reader by name."""


def plan(total: int) -> dict[str, int]:
    """How many inputs each reader gets of so many."""
    unit = total / sum(target.weight for target in TARGETS.values())
    return {name: math.ceil(target.weight * unit) for name, target in TARGETS.items()}


def known() -> list[tuple[str, Path]]:
    """Inputs of the corpus, each with the reader it is for."""
    if not CORPUS.is_dir():
        return []
    return [
        (max((name for name in TARGETS if path.name.startswith(f"{name}--")), key=len), path)
        for path in sorted(CORPUS.iterdir())
    ]
