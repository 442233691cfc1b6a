"""Reading of report and list requests, and writing of their responses."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from evenmesh.common.v1 import common_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire import checks
from evenmesh.wire.choices import Choices
from evenmesh.wire.errors import InvalidField
from evenmesh_evaluator import fields
from evenmesh_evaluator.domain import (
    Configuration,
    Estimate,
    ExposureShare,
    RunReport,
    Scope,
    ScopeSummary,
    StoredMeasurement,
    Window,
)

DEFAULT_PAGE: Final = 100
"""Runs or configurations per page where the request does not say."""
_RUNS: Final = "runs"
_CONFIGURATIONS: Final = "configurations"
WINDOWS: Final = Choices(pb.Window.DESCRIPTOR, Window, Window.ALL)
"""Windows of reports; unspecified is all of time."""


def scope(request: pb.GetReportRequest) -> Scope:
    """Return the run or configuration that a report is about.

    Raises:
        InvalidField: neither or both are given, or a bound of the contract is broken.
    """
    if not request.HasField("configuration"):
        return fields.identifier("run_id", request.run_id)
    if request.run_id:
        raise InvalidField("run_id", "must be empty where a configuration is given")
    return configuration("configuration", request.configuration)


def configuration(field: str, message: pb.Configuration) -> Configuration:
    """Return a configuration.

    Raises:
        InvalidField: a bound of the contract is broken.
    """
    names = (message.collection, message.retriever, message.reranker, message.generator)
    for name, value in zip(("collection", "retriever", "reranker", "generator"), names, strict=True):
        fields.limited(f"{field}.{name}", value, fields.MAX_NAME_BYTES)
    alpha = message.alpha if message.HasField("alpha") else None
    if alpha is not None:
        checks.between(f"{field}.alpha", alpha, 0, 100)
        if message.target:
            raise InvalidField(f"{field}.alpha", "cannot be given with a target, which has no one alpha")
    return Configuration(
        *names, alpha, fields.limited(f"{field}.target", message.target, fields.MAX_NAME_BYTES)
    )


def observation(payload: bytes) -> pb.GetObservationResponse:
    """Write an observation from the message that was stored."""
    return pb.GetObservationResponse(observation=pb.Observation.FromString(payload))


def report(value: RunReport) -> pb.RunReport:
    """Write a report."""
    message = pb.RunReport(
        run_id=value.scope if isinstance(value.scope, str) else "",
        configuration=None if isinstance(value.scope, str) else configuration_message(value.scope),
        window=pb.Window.Value(f"WINDOW_{value.window.name}"),
        num_observations=value.num_observations,
        num_rankings=value.num_rankings,
        num_unanswered=value.num_unanswered,
        started_at=_time(value.started_at_us),
        updated_at=_time(value.updated_at_us),
        stages=[
            pb.StageSummary(stage=common_pb2.Stage.Value(f"STAGE_{stage.name}"), duration_ms=estimate(one))
            for stage, one in value.stages.items()
        ],
        degradations=[
            pb.DegradationCount(
                stage=common_pb2.Stage.Value(f"STAGE_{stage.name}"), reason=reason, count=count
            )
            for stage, reason, count in value.degradations
        ],
        providers=map(_share, value.providers),
        passages=map(_share, value.passages),
    )
    for quantity, one in value.estimates.items():
        getattr(message, quantity).CopyFrom(estimate(one))
    return message


def runs(page: Iterable[ScopeSummary], before: int | None, tenant: str) -> pb.ListRunsResponse:
    """Write a page of a tenant's runs; ``before`` is where the next page begins, None at the end."""
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
        next_page_token=_token(_RUNS, before, tenant),
    )


def configurations(
    page: Iterable[ScopeSummary], before: int | None, tenant: str
) -> pb.ListConfigurationsResponse:
    """Write a page of a tenant's configurations; ``before`` begins the next page, None at the end."""
    return pb.ListConfigurationsResponse(
        configurations=[
            pb.ConfigurationSummary(
                configuration=configuration_message(one.scope),
                num_observations=one.num_observations,
                started_at=_time(one.started_at_us),
                updated_at=_time(one.updated_at_us),
            )
            for one in page
            if isinstance(one.scope, Configuration)
        ],
        next_page_token=_token(_CONFIGURATIONS, before, tenant),
    )


def measurement(value: StoredMeasurement) -> pb.ListMeasurementsResponse:
    """Write the measurement of one observation."""
    return pb.ListMeasurementsResponse(
        observation_id=value.observation_id,
        query_id=value.query_id,
        configuration=configuration_message(value.configuration),
        observed_at=_time(value.observed_at_us),
        quantities=value.quantities,
    )


def estimate(value: Estimate) -> common_pb2.Estimate:
    """Write an estimate; undefined values stay unset."""
    return common_pb2.Estimate(
        mean=value.mean, low=value.low, high=value.high, count=value.count, undefined=value.undefined
    )


def page(request: pb.ListRunsRequest | pb.ListConfigurationsRequest, tenant: str) -> tuple[int | None, int]:
    """Return where a page begins (None: at the newest entry) and its number of entries.

    Raises:
        InvalidField: a size out of range, or a token that is not of this list of the tenant.
    """
    size = request.page_size if request.HasField("page_size") else DEFAULT_PAGE
    checks.between("page_size", size, 1, 1000)
    if not request.page_token:
        return None, size
    kind = _RUNS if isinstance(request, pb.ListRunsRequest) else _CONFIGURATIONS
    number = request.page_token.partition("-")[2].partition("-")[0]
    if not re.fullmatch("[0-9]{1,18}", number) or request.page_token != _token(kind, int(number), tenant):
        raise InvalidField("page_token", "must be the next_page_token of the page before, or empty")
    return int(number), size


def _token(kind: str, before: int | None, tenant: str) -> str:
    if before is None:
        return ""
    return f"{kind}-{before}-{hashlib.blake2b(tenant.encode(), digest_size=8).hexdigest()}"


def configuration_message(value: Configuration) -> pb.Configuration:
    """Write a configuration."""
    return pb.Configuration(
        collection=value.collection,
        retriever=value.retriever,
        reranker=value.reranker,
        generator=value.generator,
        alpha=value.alpha,
        target=value.target,
    )


def _share(value: ExposureShare) -> pb.ExposureShare:
    return pb.ExposureShare(
        name=value.name,
        exposure=value.exposure,
        share=value.share,
        target=value.target,
        per_observation=estimate(value.per_observation),
    )


def _time(microseconds: int | None) -> Timestamp | None:
    if microseconds is None:
        return None
    time = Timestamp()
    time.FromMicroseconds(microseconds)
    return time
