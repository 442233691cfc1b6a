"""Reports: what a run, or one ask, showed."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean of a measured quantity with its 95 % interval.

    Attributes:
        mean: over the defined values, in the quantity's unit; None when there are none.
        low: lower end of the interval; None with fewer than two values.
        high: upper end of the interval; None with fewer than two values.
        count: defined values.
        undefined: values that were undefined and left out.
    """

    mean: float | None
    low: float | None
    high: float | None
    count: int
    undefined: int


@dataclass(frozen=True, slots=True)
class ExposureShare:
    """Exposure of one provider (or passage).

    Attributes:
        name: the provider; empty if unknown.
        exposure: expected exposure, summed over what is reported on; unit attention, 0 or more.
        share: fraction of all exposure, 0 to 1.
        target: target exposure over observations with labels; None without any.
    """

    name: str
    exposure: float
    share: float
    target: float | None


@dataclass(frozen=True, slots=True)
class DegradationCount:
    """How often one stage degraded for one reason, in asks."""

    stage: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class RunReport:
    """A run so far.

    Attributes:
        run_id: the run.
        num_observations: observations stored.
        num_rankings: sampled rankings in them.
        num_unanswered: samples that had no answer.
        ee_d: EE-D per observation (Kim and Diaz, section 3.3.1), squared attention.
        ee_d_norm: EE-D over its bound, 0 to 1.
        ee_r: EE-R per labelled observation, squared attention.
        ee_r_norm: EE-R over its bound, 0 or more.
        expected_utility: per observation with references, 0 to 1.
        providers: exposure per provider, most exposed first; at most 100.
        stages: duration by stage name, in milliseconds.
        degradations: by stage and reason.
        started_at: first observation, UTC.
        updated_at: latest observation, UTC.
    """

    run_id: str
    num_observations: int
    num_rankings: int
    num_unanswered: int
    ee_d: Estimate
    ee_d_norm: Estimate
    ee_r: Estimate
    ee_r_norm: Estimate
    expected_utility: Estimate
    providers: tuple[ExposureShare, ...]
    stages: Mapping[str, Estimate]
    degradations: tuple[DegradationCount, ...]
    started_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Run:
    """A run in a list: its id, its observations, and when the first and the latest came (UTC)."""

    run_id: str
    num_observations: int
    started_at: datetime
    updated_at: datetime
