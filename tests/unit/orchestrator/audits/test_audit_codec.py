"""AuditRequest: every bound of the contract, with the field named; and the events as they are written."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest

from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.errors import MeshError, NotFound
from evenmesh_orchestrator.asks.request import Defaults
from evenmesh_orchestrator.audits import codec
from evenmesh_orchestrator.audits.levels import Level, sample_of
from evenmesh_orchestrator.domain import Action, Audit, Contexts, Degraded, Pool, Stage
from evenmesh_orchestrator.expressions.sources import SourceCatalogue, SourceDefinition
from tests.unit.orchestrator.fakes import Mesh, answer, passage
from tests.unit.orchestrator.fakes import audit as made

SOURCES = SourceCatalogue({"Wiki": SourceDefinition(collection="wiki")})
POOL = Pool([passage("a")], np.array([1.0]), np.array([[0]]), None, "bm25", "v1")
LABELS = {"has_useful": True, "useful_passage_ids": ["p1"]}


def _read(ask: dict[str, Any] | None = None, **request: Any) -> Audit:
    asked = {"question": "Which river?", "labels": LABELS} | (ask or {})
    return codec.read_audit(pb.AuditRequest(ask=asked, **request), Defaults("demo", "none", SOURCES))


def test_defaults_are_the_papers() -> None:
    audit = _read()
    assert audit.alphas == (1.0, 2.0, 4.0, 8.0)
    assert (audit.sampling.num_rankings, audit.num_oracle, audit.ask.num_answers) == (100, 100, 100)
    assert (audit.until_width, audit.level) == (None, 0.95)
    assert audit.num_rankings == 1 + 4 * 100 + 100


def test_what_is_given_is_read() -> None:
    audit = _read(
        {"sampling": {"num_rankings": 7, "seed": 3}, "labels": LABELS | {"references": ["x"]}},
        alphas=[0, 100],
        num_oracle=0,
        until_width=0.25,
        level=0.5,
    )
    assert (audit.alphas, audit.num_oracle, audit.until_width, audit.level) == ((0.0, 100.0), 0, 0.25, 0.5)
    assert (audit.sampling.num_rankings, audit.sampling.seed) == (7, 3)


@pytest.mark.parametrize(
    ("ask", "request_", "field"),
    [
        ({"question": ""}, {}, "ask.question"),
        ({"labels": {}}, {}, "ask.labels.has_useful"),
        ({"sampling": {"alpha": 2}}, {}, "ask.sampling.alpha"),
        ({"sampling": {"disparity": 0.5}}, {}, "ask.sampling.disparity"),
        ({"sampling": {"relevance_loss": 0}}, {}, "ask.sampling.relevance_loss"),
        ({"sampling": {"num_rankings": 1001}}, {}, "ask.sampling.num_rankings"),
        ({"want_report": True}, {}, "ask.want_report"),
        ({"expression": "ReFree"}, {}, "ask.sampling"),
        ({"expression": "Nowhere@3"}, {}, "ask.expression"),
        ({"augmentation": 3}, {}, "ask.augmentation"),
        ({"num_answers": 101}, {}, "ask.num_answers"),
        ({}, {"alphas": [1, 101]}, "alphas[1]"),
        ({}, {"alphas": [1, 2, 1]}, "alphas[2]"),
        ({}, {"alphas": range(17)}, "alphas"),
        ({}, {"num_oracle": 1001}, "num_oracle"),
        ({}, {"until_width": 0.1}, "until_width"),
        ({"labels": LABELS | {"references": ["x"]}}, {"until_width": 1.0}, "until_width"),
        ({}, {"level": 0.0}, "level"),
    ],
)
def test_bad_input_names_the_field(ask: dict[str, Any], request_: dict[str, Any], field: str) -> None:
    with pytest.raises(MeshError) as caught:
        _read(ask, **request_)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.field == field


def test_errors_of_the_ask_keep_what_they_are() -> None:
    renamed = codec.of_ask(NotFound("retriever", "there is no 'x'"))
    assert (renamed.field, renamed.code, renamed.reason) == (
        "ask.retriever",
        NotFound("retriever", "").code,
        NotFound("retriever", "").reason,
    )
    bare = MeshError(renamed.code, "X", "words")
    assert codec.of_ask(bare) is bare


async def test_events_are_written(mesh: Mesh) -> None:
    written = [codec.event(event) for event in await mesh.audit(made(rankings=2, alphas=[4]))]
    kinds = [one.WhichOneof("event") for one in written]
    assert kinds == ["settled", *["sample"] * (1 + 2 + 2), *["report"] * 3, "done"]
    assert list(written[0].settled.passage_ids) == list("abcdef")
    first = written[1].sample
    assert (first.policy, first.answered, first.answer) == (pb.AUDIT_POLICY_DETERMINISTIC, True, "a b")
    assert not first.HasField("log_probability")
    assert written[2].sample.HasField("log_probability")
    assert (first.model, first.model_version, first.utility) == ("pointer", "1", 1.0)
    report = written[7].report
    assert (report.audit.policy, report.audit.alpha, report.audit.num_rankings) == (
        pb.AUDIT_POLICY_SAMPLED,
        4.0,
        2,
    )
    assert report.audit.HasField("exact_ee_d_norm")
    assert report.ee_d == pytest.approx(report.ee_d_norm * 2)


def test_a_sample_without_answer_says_why() -> None:
    error = NotFound("model", "there is no 'x'")
    oracle = Level(pb.AUDIT_POLICY_ORACLE, None, Contexts(np.array([[0]]), None), None, 1)
    sample = sample_of(oracle, 3, POOL, np.array([0]), error, None)
    assert (sample.answered, sample.answer, sample.error.code) == (False, "", "NOT_FOUND")
    assert not sample.HasField("utility")
    drawn = Level(pb.AUDIT_POLICY_SAMPLED, 2.0, Contexts(np.array([[0]]), np.array([-1.5])), None, 1)
    fine = sample_of(drawn, 0, POOL, np.array([0]), answer("x"), 0.0)
    assert (fine.HasField("error"), fine.utility, fine.alpha) == (False, 0.0, 2.0)


def test_degradations_are_those_of_asks() -> None:
    written = codec.event(Degraded(Stage.RERANK, Action.RETRIEVER_ORDER, "X", "words"))
    assert (written.degraded.reason, written.degraded.message) == ("X", "words")
