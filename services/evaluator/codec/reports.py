"""Reports, lists and measurements as they go out, and how they are asked for."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from meshkit import checks
from meshkit.errors import InvalidField
from ragmesh.common.v1 import common_pb2
from ragmesh.evaluator.v1 import evaluator_service_pb2 as pb
from services.evaluator.codec import fields
from services.evaluator.domain import (
    Configuration,
    Estimate,
    ExposureShare,
    RunReport,
    Scope,
    ScopeSummary,
    Stage,
    StoredMeasurement,
    Window,
)

DEFAULT_PAGE: Final = 100
"""Runs or configurations per page unless told otherwise."""
_WINDOWS: Final[dict[int, Window]] = {
    pb.WINDOW_UNSPECIFIED: Window.ALL,
    pb.WINDOW_ALL: Window.ALL,
    pb.WINDOW_HOUR: Window.HOUR,
    pb.WINDOW_DAY: Window.DAY,
}
_WINDOWS_BACK: Final = {
    Window.ALL: pb.WINDOW_ALL,
    Window.HOUR: pb.WINDOW_HOUR,
    Window.DAY: pb.WINDOW_DAY,
}
_STAGES_BACK: Final = {
    Stage.RETRIEVE: common_pb2.STAGE_RETRIEVE,
    Stage.RERANK: common_pb2.STAGE_RERANK,
    Stage.GENERATE: common_pb2.STAGE_GENERATE,
    Stage.OBSERVE: common_pb2.STAGE_OBSERVE,
}


def scope(request: pb.GetReportRequest) -> Scope:
    """Reads which run or configuration a report is asked of.

    Raises:
        InvalidField: neither or both, or a bound of the contract is broken.
    """
    if not request.HasField("configuration"):
        return fields.identifier("run_id", request.run_id)
    if request.run_id:
        raise InvalidField("run_id", "must be empty where a configuration is given")
    return configuration("configuration", request.configuration)


def window(field: str, value: int) -> Window:
    """Reads a window; unset is all.

    Raises:
        InvalidField: a number that is no window.
    """
    if value not in _WINDOWS:
        raise InvalidField(field, f"must be one of {fields.names(pb.Window.keys())}, got {value}")
    return _WINDOWS[value]


def configuration(field: str, message: pb.Configuration) -> Configuration:
    """Reads a configuration.

    Raises:
        InvalidField: a bound of the contract is broken.
    """
    names = (message.collection, message.retriever, message.reranker, message.generator)
    for name, value in zip(("collection", "retriever", "reranker", "generator"), names, strict=True):
        fields.limited(f"{field}.{name}", value, fields.MAX_NAME_BYTES)
    alpha = message.alpha if message.HasField("alpha") else None
    if alpha is not None:
        checks.between(f"{field}.alpha", alpha, 0, 100)
    return Configuration(*names, alpha)


def report(value: RunReport) -> pb.RunReport:
    """Writes a report."""
    message = pb.RunReport(
        run_id=value.scope if isinstance(value.scope, str) else "",
        configuration=None if isinstance(value.scope, str) else _configuration(value.scope),
        window=_WINDOWS_BACK[value.window],
        num_observations=value.num_observations,
        num_rankings=value.num_rankings,
        num_unanswered=value.num_unanswered,
        started_at=_time(value.started_at_us),
        updated_at=_time(value.updated_at_us),
        stages=[
            pb.StageSummary(stage=_STAGES_BACK[stage], duration_ms=_estimate(one))
            for stage, one in value.stages.items()
        ],
        degradations=[
            pb.DegradationCount(stage=_STAGES_BACK[stage], reason=reason, count=count)
            for stage, reason, count in value.degradations
        ],
        providers=map(_share, value.providers),
        passages=map(_share, value.passages),
    )
    for quantity, one in value.estimates.items():
        getattr(message, quantity).CopyFrom(_estimate(one))
    return message


def runs(page: Iterable[ScopeSummary], before: int | None) -> pb.ListRunsResponse:
    """Writes a page of runs; ``before`` is where the next one begins, None at the end."""
    return pb.ListRunsResponse(
        runs=[
            pb.Run(
                run_id=str(one.scope),
                num_observations=one.num_observations,
                started_at=_time(one.started_at_us),
                updated_at=_time(one.updated_at_us),
            )
            for one in page
        ],
        next_page_token=_token(before),
    )


def configurations(page: Iterable[ScopeSummary], before: int | None) -> pb.ListConfigurationsResponse:
    """Writes a page of configurations; ``before`` is where the next one begins, None at the end."""
    return pb.ListConfigurationsResponse(
        configurations=[
            pb.ConfigurationSummary(
                configuration=_configuration(one.scope),
                num_observations=one.num_observations,
                started_at=_time(one.started_at_us),
                updated_at=_time(one.updated_at_us),
            )
            for one in page
            if isinstance(one.scope, Configuration)
        ],
        next_page_token=_token(before),
    )


def measurement(value: StoredMeasurement) -> pb.ListMeasurementsResponse:
    """Writes what one observation measured."""
    return pb.ListMeasurementsResponse(
        observation_id=value.observation_id,
        query_id=value.query_id,
        configuration=_configuration(value.configuration),
        observed_at=_time(value.observed_at_us),
        quantities=value.quantities,
    )


def page(request: pb.ListRunsRequest | pb.ListConfigurationsRequest) -> tuple[int | None, int]:
    """Reads where a page begins (None: at the newest) and how many entries it has.

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


def _token(before: int | None) -> str:
    return "" if before is None else base64.urlsafe_b64encode(f"before:{before}".encode()).decode()


def _configuration(value: Configuration) -> pb.Configuration:
    return pb.Configuration(
        collection=value.collection,
        retriever=value.retriever,
        reranker=value.reranker,
        generator=value.generator,
        alpha=value.alpha,
    )


def _share(value: ExposureShare) -> pb.ExposureShare:
    return pb.ExposureShare(
        name=value.name,
        exposure=value.exposure,
        share=value.share,
        target=value.target,
        per_observation=_estimate(value.per_observation),
    )


def _time(microseconds: int | None) -> Timestamp | None:
    if microseconds is None:
        return None
    time = Timestamp()
    time.FromMicroseconds(microseconds)
    return time


def _estimate(value: Estimate) -> common_pb2.Estimate:
    return common_pb2.Estimate(
        mean=value.mean, low=value.low, high=value.high, count=value.count, undefined=value.undefined
    )
