"""Reports and lists as they go out, and the pages they come in."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Final

from meshkit import checks
from meshkit.errors import InvalidField
from ragmesh.common.v1 import common_pb2
from ragmesh.evaluator.v1 import evaluator_service_pb2 as pb
from services.evaluator.domain import Estimate, RunReport, RunSummary, Stage

DEFAULT_PAGE: Final = 100
"""Runs per page unless told otherwise."""
_STAGES_BACK: Final = {
    Stage.RETRIEVE: common_pb2.STAGE_RETRIEVE,
    Stage.RERANK: common_pb2.STAGE_RERANK,
    Stage.GENERATE: common_pb2.STAGE_GENERATE,
    Stage.OBSERVE: common_pb2.STAGE_OBSERVE,
}


def report(value: RunReport) -> pb.RunReport:
    """Writes a run's report."""
    message = pb.RunReport(
        run_id=value.run_id,
        num_observations=value.num_observations,
        num_rankings=value.num_rankings,
        num_unanswered=value.num_unanswered,
        stages=[
            pb.StageSummary(stage=_STAGES_BACK[stage], duration_ms=_estimate(one))
            for stage, one in value.stages.items()
        ],
        degradations=[
            pb.DegradationCount(stage=_STAGES_BACK[stage], reason=reason, count=count)
            for stage, reason, count in value.degradations
        ],
        providers=[
            pb.ExposureShare(name=one.name, exposure=one.exposure, share=one.share, target=one.target)
            for one in value.providers
        ],
    )
    for quantity, one in value.estimates.items():
        getattr(message, quantity).CopyFrom(_estimate(one))
    message.started_at.FromMicroseconds(value.started_at_us)
    message.updated_at.FromMicroseconds(value.updated_at_us)
    return message


def runs(page: Iterable[RunSummary], before: int | None) -> pb.ListRunsResponse:
    """Writes a page of runs; ``before`` is where the next one begins, None at the end."""
    response = pb.ListRunsResponse(next_page_token="" if before is None else _token(before))
    for one in page:
        run = response.runs.add(run_id=one.run_id, num_observations=one.num_observations)
        run.started_at.FromMicroseconds(one.started_at_us)
        run.updated_at.FromMicroseconds(one.updated_at_us)
    return response


def page(request: pb.ListRunsRequest) -> tuple[int | None, int]:
    """Reads where a page begins (None: at the newest run) and how many runs it has.

    Raises:
        InvalidField: a size out of range, or a token that no page gave.
    """
    size = request.page_size if request.HasField("page_size") else DEFAULT_PAGE
    checks.between("page_size", size, 1, 1000)
    if not request.page_token:
        return None, size
    try:
        kind, _, sequence = base64.urlsafe_b64decode(request.page_token.encode()).decode().partition(":")
        if kind != "before" or not sequence.isascii() or not sequence.isdigit() or len(sequence) > 18:
            raise ValueError(kind)
    except (ValueError, binascii.Error):
        raise InvalidField("page_token", "must be the next_page_token of the page before, or empty") from None
    return int(sequence), size


def _token(before: int) -> str:
    return base64.urlsafe_b64encode(f"before:{before}".encode()).decode()


def _estimate(value: Estimate) -> common_pb2.Estimate:
    return common_pb2.Estimate(
        mean=value.mean, low=value.low, high=value.high, count=value.count, undefined=value.undefined
    )
