"""Audits of the SDK: every option reaches its field, every field its attribute."""

import pytest

from evenmesh.codec import audit as audit_codec
from evenmesh.common.v1 import common_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb2
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.types.audit import AuditReport, AuditSample, AuditSettled, audit_request
from evenmesh.types.events import Degraded, Done, Failed
from evenmesh.wire.errors import InvalidField


def test_every_option_reaches_its_field() -> None:
    request = audit_request(
        "Which river?",
        {"collection": "c", "samples": 7, "seed": 3, "useful": ["p1"], "references": ["Rhine"]},
        alphas=[1, 8],
        oracle=5,
        until_width=0.25,
        level=0.9,
    )
    assert list(request.alphas) == [1.0, 8.0]
    assert (request.num_oracle, request.until_width, request.level) == (5, 0.25, 0.9)
    assert (request.ask.collection, request.ask.sampling.num_rankings, request.ask.sampling.seed) == (
        "c",
        7,
        3,
    )
    assert request.ask.labels.has_useful
    assert not request.ask.sampling.HasField("alpha")


def test_what_is_not_said_is_left_to_the_mesh() -> None:
    request = audit_request("Which river?", {"seed": 9})
    assert request.ask.sampling.seed == 9
    for name in ("num_oracle", "until_width", "level"):
        assert not request.HasField(name)  # type: ignore[arg-type]
    assert not request.ask.sampling.HasField("num_rankings")
    assert list(request.alphas) == []


def test_what_the_wire_cannot_say_names_the_field() -> None:
    with pytest.raises(InvalidField) as caught:
        audit_request("q", {}, oracle=-1)
    assert caught.value.field == "num_oracle"


def test_samples_are_read() -> None:
    sampled = pb.AuditSample(
        alpha=0.0,
        sample=2,
        passage_ids=["a", "b"],
        answer="",
        utility=0.0,
        policy=pb.AUDIT_POLICY_SAMPLED,
        log_probability=-1.5,
        answered=True,
        model="m",
        model_version="1",
    )
    assert audit_codec.event(pb.AuditResponse(sample=sampled)) == AuditSample(
        "sampled", 0.0, 2, ("a", "b"), "", 0.0, -1.5, None, "m", "1"
    )
    failed = pb.AuditSample(
        sample=1,
        policy=pb.AUDIT_POLICY_ORACLE,
        error=common_pb2.ItemError(code="UNAVAILABLE", reason="X", message="away"),
    )
    assert audit_codec.event(pb.AuditResponse(sample=failed)) == AuditSample(
        "oracle", None, 1, (), None, None, None, Failed((1,), "UNAVAILABLE", "X", "away", ""), "", ""
    )


def test_reports_are_read() -> None:
    message = pb.ExposureReport(
        exposure=[1.0, 0.5],
        ee_d=1.25,
        ee_d_norm=0.625,
        ee_r=0.0,
        providers=[evaluator_pb2.ExposureShare(name="P", exposure=1.5, share=1.0)],
        audit=pb.AuditLevel(
            policy=pb.AUDIT_POLICY_SAMPLED,
            alpha=0.0,
            num_rankings=4,
            num_answered=3,
            exact_ee_d_norm=0.5,
            exact_exposure=[1.0, 0.5],
        ),
    )
    report = audit_codec.event(pb.AuditResponse(report=message))
    assert isinstance(report, AuditReport)
    assert (report.policy, report.alpha, report.num_rankings, report.num_answered) == ("sampled", 0.0, 4, 3)
    assert (report.exposure, report.ee_d, report.ee_d_norm, report.ee_r) == ((1.0, 0.5), 1.25, 0.625, 0.0)
    assert (report.exact_ee_d_norm, report.exact_ee_r_norm) == (0.5, None)
    assert report.exact_exposure == (1.0, 0.5)
    assert (report.ee_r_norm, report.expected_utility, report.u_max) == (None, None, None)
    assert [share.name for share in report.providers] == ["P"]


def test_other_events_are_read() -> None:
    settled = pb.AuditSettled(
        passage_ids=["a"],
        providers=["P"],
        retriever="bm25",
        index_version="v1",
        reranker="none",
        num_contexts=3,
    )
    assert audit_codec.event(pb.AuditResponse(settled=settled)) == AuditSettled(
        ("a",), ("P",), "bm25", "v1", "none", "", 3
    )
    degraded = audit_codec.event(pb.AuditResponse(degraded=common_pb2.Degradation(reason="X")))
    assert isinstance(degraded, Degraded)
    assert isinstance(audit_codec.event(pb.AuditResponse(done=pb.Done(run_id="r"))), Done)
    assert audit_codec.event(pb.AuditResponse()) is None
