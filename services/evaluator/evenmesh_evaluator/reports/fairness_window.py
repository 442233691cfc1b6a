"""Fairness over a sliding window, by configuration, updated with each observation.

A window is a ring of time buckets, each with sums by configuration; a read adds up the buckets in the window.
Memory is bounded whatever names callers send: past a number of configurations and providers for each bucket,
:data:`OTHER` collects the rest. Tenants share the configurations of a bucket and of a result evenly, so that
none can take the series of another.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeVar

from evenmesh_evaluator.domain import Configuration, Measurement, Observation

QUANTITIES: Final = ("ee_d", "ee_d_norm", "ee_r", "ee_r_norm", "expected_utility", "vote_agreement")
"""Quantities that are averaged."""
OTHER: Final = "(other)"
"""Name of everything past the limits."""

_BUCKETS: Final = 60
_MOST_SERIES: Final = 200
_MOST_PROVIDERS: Final = 1_000
_MOST_PROVIDERS_OF_TENANT: Final = 4 * _MOST_PROVIDERS
_LONGEST_LABEL: Final = 100
_FRESH_S: Final = 1.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Series:
    """A configuration of a tenant as metric labels.

    ``alpha`` is empty for deterministic rankings, and the target in words where there is one.
    """

    tenant: str
    collection: str
    retriever: str
    reranker: str
    generator: str
    alpha: str

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(tenant: str, configuration: Configuration) -> Series:
        """Return the labels of a configuration; long names, such as expressions, are cut."""
        alpha = configuration.target if configuration.alpha is None else format(configuration.alpha, "g")
        return Series(
            tenant=tenant,
            collection=configuration.collection[:_LONGEST_LABEL],
            retriever=configuration.retriever[:_LONGEST_LABEL],
            reranker=configuration.reranker[:_LONGEST_LABEL],
            generator=configuration.generator[:_LONGEST_LABEL],
            alpha=alpha[:_LONGEST_LABEL],
        )

    @staticmethod
    @lru_cache(maxsize=1024)
    def rest(tenant: str) -> Series:
        """Return the labels of a tenant's configurations past the limit."""
        return Series(tenant, OTHER, OTHER, OTHER, OTHER, OTHER)

    @property
    def is_rest(self) -> bool:
        """Return whether these are the labels of what is past the limit."""
        return self == Series.rest(self.tenant)


REST: Final = Series.rest(OTHER)
"""Labels of all configurations of tenants past the limit."""


@dataclass(slots=True)
class Fairness:
    """Sums over observations: quantities, how often each was defined, and exposure by known provider."""

    num_observations: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    providers: dict[str, float] = field(default_factory=dict)

    def add(self, measurement: Measurement, *, most_providers: int = _MOST_PROVIDERS) -> None:
        """Add one observation; providers past ``most_providers`` count as :data:`OTHER`."""
        self.num_observations += 1
        for name in QUANTITIES:
            value = measurement.quantities.get(name)
            if value is not None:
                self.sums[name] = self.sums.get(name, 0.0) + value
                self.counts[name] = self.counts.get(name, 0) + 1
        if measurement.providers is not None:
            exposures = measurement.providers.exposure.tolist()
            self._expose(zip(measurement.providers.names, exposures, strict=True), most_providers)

    def merge(self, other: Fairness) -> None:
        """Add the observations of another."""
        self.num_observations += other.num_observations
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + other.counts[name]
        self._expose(other.providers.items(), _MOST_PROVIDERS)

    def mean(self, quantity: str) -> float | None:
        """Return the mean of a quantity over the observations that define it; None without any."""
        count = self.counts.get(quantity)
        return self.sums[quantity] / count if count else None

    @property
    def exposure_ratio(self) -> float | None:
        """Smallest over largest exposure of the providers that had a candidate, [0, 1]; 1 is even.

        None with fewer than two known providers, or where none was shown.
        """
        known = [exposure for name, exposure in self.providers.items() if name != OTHER]
        most = max(known, default=0.0)
        return min(known) / most if len(known) > 1 and most > 0 else None

    def _expose(self, exposures: Iterable[tuple[str, float]], most: int) -> None:
        mine = self.providers
        for name, exposure in exposures:
            if not name:
                continue
            if name not in mine and len(mine) >= most:
                name = OTHER
            mine[name] = mine.get(name, 0.0) + exposure


class _Bucket:
    """The observations of a time, by configuration; tenants share the named ones evenly."""

    def __init__(self) -> None:
        self.series: dict[Series, Fairness] = {}
        self._named: Counter[str] = Counter()
        self._providers: Counter[str] = Counter()

    def add(self, key: Series, measurement: Measurement) -> None:
        """Add one observation."""
        key = self._place(key)
        one = self.series.setdefault(key, Fairness())
        before = len(one.providers)
        left = max(0, _MOST_PROVIDERS_OF_TENANT - self._providers[key.tenant])
        one.add(measurement, most_providers=min(_MOST_PROVIDERS, before + left))
        self._providers[key.tenant] += len(one.providers) - before

    def _place(self, key: Series) -> Series:
        """Return where a configuration counts: by name while its tenant has its share, or as the rest."""
        if key in self.series:
            return key
        if self._named.total() >= _MOST_SERIES:
            fullest = max(self._named, key=self._named.__getitem__)
            if self._named[key.tenant] + 1 >= self._named[fullest]:
                return self._rest(key.tenant)
            self._fold(fullest)
        self._named[key.tenant] += 1
        return key

    def _fold(self, tenant: str) -> None:
        """Count a tenant's least observed configuration as its rest."""
        rest = self._rest(tenant)
        named = [key for key in self.series if key.tenant == tenant and not key.is_rest]
        gone = self.series.pop(min(named, key=lambda key: self.series[key].num_observations))
        self._named[tenant] -= 1
        self._providers[tenant] -= len(gone.providers)
        one = self.series.setdefault(rest, Fairness())
        before = len(one.providers)
        one.merge(gone)
        self._providers[rest.tenant] += len(one.providers) - before

    def _rest(self, tenant: str) -> Series:
        rest = Series.rest(tenant)
        room = len(self.series) - self._named.total() < _MOST_SERIES
        return rest if rest in self.series or room else REST


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one provider in a collection's exposure of known providers, [0, 1]."""

    tenant: str
    collection: str
    provider: str
    share: float


class FairnessWindow:
    """Fairness of the observations of the last ``window_s`` seconds, to a sixtieth of it.

    For one writer thread and any number of readers.

    Args:
        window_s: length of the window. Seconds, (0, inf).
        series: most configurations by name (the most observed of each tenant), and most providers (the most
            exposed).
        clock: current time. Seconds since 1970.
    """

    def __init__(self, window_s: float, *, series: int, clock: Callable[[], float] = time.time) -> None:
        self._step_s = window_s / _BUCKETS
        self._series = series
        self._clock = clock
        self._buckets: dict[int, _Bucket] = {}
        self._lock = threading.Lock()
        self._latest: dict[Series, Fairness] = {}
        self._read_at = float("-inf")

    def add(self, observation: Observation, measurement: Measurement) -> None:
        """Add an observation at its own time; one older than the window is ignored."""
        now = int(self._clock() / self._step_s)
        at = min(int(observation.observed_at_us / 1e6 / self._step_s), now)
        if at <= now - _BUCKETS:
            return
        key = Series.of(observation.tenant, observation.configuration)
        with self._lock:
            bucket = self._buckets.get(at)
            if bucket is None:
                bucket = self._buckets[at] = _Bucket()
                for old in [one for one in self._buckets if one <= now - _BUCKETS]:
                    del self._buckets[old]
            bucket.add(key, measurement)

    def read(self) -> dict[Series, Fairness]:
        """Return the window by configuration: ``series`` of them, and the rest of each tenant as one.

        Tenants take turns, each with its most observed configuration next. A result of the last second is
        reused, so that the metrics of one scrape agree.
        """
        now_s = self._clock()
        if 0 <= now_s - self._read_at < _FRESH_S:
            return self._latest
        oldest = int(now_s / self._step_s) - _BUCKETS
        whole: dict[Series, Fairness] = {}
        for at in tuple(self._buckets):
            with self._lock:  # for one bucket at a time, so that `add` waits less
                if at > oldest and (bucket := self._buckets.get(at)) is not None:
                    for key, one in bucket.series.items():
                        whole.setdefault(key, Fairness()).merge(one)
        most = sorted(whole, key=lambda one: (-whole[one].num_observations, repr(one)))
        named = _in_turns((key for key in most if not key.is_rest), lambda key: key.tenant)[: self._series]
        latest = {key: whole.pop(key) for key in named}
        tenants = list(dict.fromkeys(key.tenant for key in most if key in whole and key != REST))[
            : self._series
        ]
        for key, one in whole.items():
            rest = Series.rest(key.tenant) if key.tenant in tenants else REST
            latest.setdefault(rest, Fairness()).merge(one)
        self._latest, self._read_at = latest, now_s
        return latest

    def shares(self) -> list[Share]:
        """Return shares by collection and provider: ``series`` of them, and each collection's rest.

        Tenants take turns. The largest of each collection come first, as bounds on shares hold for those,
        then the most exposed.
        """
        exposures: defaultdict[tuple[str, str, str], float] = defaultdict(float)
        for key, one in self.read().items():
            for provider, exposure in one.providers.items():
                exposures[key.tenant, key.collection, provider] += exposure
        totals: defaultdict[tuple[str, str], float] = defaultdict(float)
        for (tenant, collection, _), exposure in exposures.items():
            totals[tenant, collection] += exposure
        known = [key for key in exposures if key[2] != OTHER]
        known.sort(key=lambda key: (-exposures[key], key))
        first = {key[:2]: key for key in reversed(known) if key[1] != OTHER}
        known.sort(key=lambda key: first.get(key[:2]) != key)
        named = _in_turns(known, lambda key: key[0])[: self._series]
        shares = [Share(*key, exposures[key] / totals[key[:2]]) for key in named if totals[key[:2]] > 0]
        rest = {key: 1.0 for key, total in totals.items() if total > 0}
        for share in shares:
            rest[share.tenant, share.collection] -= share.share
        shares += [Share(*key, OTHER, left) for key, left in rest.items() if left > 1e-9]
        return shares


def _in_turns(keys: Iterable[T], tenant: Callable[[T], str]) -> list[T]:
    """Return the first key of each tenant, then the second of each, and so on."""
    seen: Counter[str] = Counter()
    turns: list[tuple[int, T]] = []
    for key in keys:
        turns.append((seen[tenant(key)], key))
        seen[tenant(key)] += 1
    return [key for _, key in sorted(turns, key=lambda one: one[0])]
