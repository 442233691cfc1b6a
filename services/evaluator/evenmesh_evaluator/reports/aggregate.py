"""Mergeable aggregates of observations; the cost of adding one does not grow with their number."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np

from evenmesh_evaluator.domain import MEASURED, Exposed, Measurement, Observation, Stage
from evenmesh_evaluator.reports.moments import KeyedMoments, Moments

K = TypeVar("K")

_TARGETS: Final = 2  # summed columns of exposures: targets, and the number of observations with one
_HEAD_BYTES: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """Counts, moments and exposures of a set of observations.

    ``num_exposed`` is the number of observations with exposure. ``providers`` and ``passages`` hold moments
    of the exposure per observation by name, with the sum of the target and the number of observations that
    have one; the empty name stands for unknown providers. ``utilities`` holds moments of expected utility by
    the key of its u_max. Times are microseconds since 1970, None without observations.
    """

    num_observations: int = 0
    num_rankings: int = 0
    num_unanswered: int = 0
    num_exposed: int = 0
    started_at_us: int | None = None
    updated_at_us: int | None = None
    quantities: Mapping[str, Moments] = field(default_factory=dict)
    stages: Mapping[Stage, Moments] = field(default_factory=dict)
    degradations: Mapping[tuple[Stage, str], int] = field(default_factory=dict)
    providers: KeyedMoments = field(default_factory=lambda: KeyedMoments.empty(_TARGETS))
    passages: KeyedMoments = field(default_factory=lambda: KeyedMoments.empty(_TARGETS))
    utilities: KeyedMoments = field(default_factory=KeyedMoments.empty)

    @staticmethod
    def of(items: Sequence[tuple[Observation, Measurement, str | None]]) -> Aggregate:
        """Aggregate observations, each with its measurement and the key of its u_max, if any."""
        stages: dict[Stage, list[float]] = {}
        for observation, _, _ in items:
            for stage, milliseconds in observation.stage_ms.items():
                stages.setdefault(stage, []).append(milliseconds)
        utilities = [
            (key, value)
            for _, measurement, key in items
            if key is not None and (value := measurement.quantities["expected_utility"]) is not None
        ]
        measurements = [measurement for _, measurement, _ in items]
        times = [observation.observed_at_us for observation, _, _ in items]
        return Aggregate(
            num_observations=len(items),
            num_rankings=sum(measurement.num_rankings for measurement in measurements),
            num_unanswered=sum(measurement.num_unanswered for measurement in measurements),
            num_exposed=sum(measurement.providers is not None for measurement in measurements),
            started_at_us=min(times, default=None),
            updated_at_us=max(times, default=None),
            quantities={name: Moments.of(m.quantities[name] for m in measurements) for name in MEASURED},
            stages={stage: Moments.of(times) for stage, times in stages.items()},
            degradations=Counter(one for observation, _, _ in items for one in observation.degradations),
            providers=_exposures(m.providers for m in measurements),
            passages=_exposures(m.passages for m in measurements),
            utilities=KeyedMoments.of([k for k, _ in utilities], np.array([v for _, v in utilities], float)),
        )

    @staticmethod
    def merged(parts: Sequence[Aggregate]) -> Aggregate:
        """Merge aggregates; no parts give the empty aggregate."""
        if len(parts) <= 1:
            return parts[0] if parts else Aggregate()
        degradations: Counter[tuple[Stage, str]] = Counter()
        for part in parts:
            degradations.update(part.degradations)
        started = [part.started_at_us for part in parts if part.started_at_us is not None]
        updated = [part.updated_at_us for part in parts if part.updated_at_us is not None]
        return Aggregate(
            num_observations=sum(part.num_observations for part in parts),
            num_rankings=sum(part.num_rankings for part in parts),
            num_unanswered=sum(part.num_unanswered for part in parts),
            num_exposed=sum(part.num_exposed for part in parts),
            started_at_us=min(started, default=None),
            updated_at_us=max(updated, default=None),
            quantities=_merged(part.quantities for part in parts),
            stages=_merged(part.stages for part in parts),
            degradations=degradations,
            providers=KeyedMoments.merged([part.providers for part in parts]),
            passages=KeyedMoments.merged([part.passages for part in parts]),
            utilities=KeyedMoments.merged([part.utilities for part in parts]),
        )

    def pack(self) -> bytes:
        """Return the aggregate as bytes: a JSON head after its length, then keys and columns of tables."""
        tables = [self.providers, self.passages, self.utilities]
        keys = ["\0".join(table.keys).encode() for table in tables]
        head = json.dumps(
            [
                self.num_observations,
                self.num_rankings,
                self.num_unanswered,
                self.num_exposed,
                self.started_at_us,
                self.updated_at_us,
                {name: _listed(one) for name, one in self.quantities.items()},
                {stage: _listed(one) for stage, one in self.stages.items()},
                [[stage, reason, count] for (stage, reason), count in self.degradations.items()],
                [[len(text), *table.columns.shape] for text, table in zip(keys, tables, strict=True)],
            ],
            separators=(",", ":"),
        ).encode()
        parts = [len(head).to_bytes(_HEAD_BYTES, "little"), head]
        for text, table in zip(keys, tables, strict=True):
            parts += [text, table.columns.astype("<f8", copy=False).tobytes()]
        return b"".join(parts)

    @staticmethod
    def unpack(data: bytes) -> Aggregate:
        """Return the aggregate that :meth:`pack` wrote."""
        at = _HEAD_BYTES + int.from_bytes(data[:_HEAD_BYTES], "little")
        head: list[Any] = json.loads(data[_HEAD_BYTES:at])
        tables = []
        for size, rows, width in head[9]:
            text = data[at : at + size].decode()
            at += size
            columns = np.frombuffer(data, "<f8", rows * width, at).reshape(rows, width)
            at += columns.nbytes
            tables.append(KeyedMoments(text.split("\0") if width else (), columns))
        return Aggregate(
            num_observations=head[0],
            num_rankings=head[1],
            num_unanswered=head[2],
            num_exposed=head[3],
            started_at_us=head[4],
            updated_at_us=head[5],
            quantities={name: Moments(*one) for name, one in head[6].items()},
            stages={Stage(stage): Moments(*one) for stage, one in head[7].items()},
            degradations={(Stage(stage), reason): count for stage, reason, count in head[8]},
            providers=tables[0],
            passages=tables[1],
            utilities=tables[2],
        )


def _exposures(measured: Iterable[Exposed | None]) -> KeyedMoments:
    parts = [one for one in measured if one is not None]
    if not parts:
        return KeyedMoments.empty(_TARGETS)
    names = [name for one in parts for name in one.names]
    targets = [np.zeros(len(one.names)) if one.target is None else one.target for one in parts]
    labelled = [np.full(len(one.names), float(one.target is not None)) for one in parts]
    return KeyedMoments.of(
        names,
        np.concatenate([one.exposure for one in parts]),
        np.concatenate(targets),
        np.concatenate(labelled),
    )


def _merged(parts: Iterable[Mapping[K, Moments]]) -> dict[K, Moments]:
    merged: dict[K, Moments] = {}
    for part in parts:
        for key, one in part.items():
            merged[key] = merged[key].merged(one) if key in merged else one
    return merged


def _listed(one: Moments) -> list[float]:
    return [one.count, one.undefined, one.mean, one.m2]
