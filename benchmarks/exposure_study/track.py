"""The measures of TREC's fair ranking track 2019: utility, and the exposure of groups over a stream.

Source: Biega, Diaz, Ekstrand and Kohlmeier 2020, "Overview of the TREC 2019 Fair Ranking Track", as its
evaluation computes them: papers without labels are looked at by nobody and give no exposure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from benchmarks.exposure_study.sets import authors, papers
from evenmesh_core.arrays import FloatArray, IntArray
from evenmesh_core.plackett_luce.policy import log_weights
from evenmesh_core.plackett_luce.sampling import sample_rankings

CONTINUATION: Final = 0.5
"""Probability of going on to the next rank."""
STOPPING: Final = 0.7
"""Probability that a relevant paper ends the search."""
DRAWN: Final = 1_000
"""Rankings of a query."""
SEED: Final = 0
BY_ID: Final = "by id"
"""The deterministic ranking: relevant papers first, equal ones by their id."""
DEFINITIONS: Final = {
    "economic level": "author_economic_level",
    "h-index quartile": "author_h_index_quartile",
}


class Outcome(NamedTuple):
    """Utility of an answer, mean over the stream; distance of exposure from relevance, [0, √2]."""

    utility: float
    unfairness: float


def attention(useful: FloatArray) -> FloatArray:
    """Return how likely a paper ends the search at each rank, for relevances in ranked order.

    Args:
        useful: 0 or 1, shape [rankings, ranks].

    Returns:
        Float array of that shape: 0.5^(rank − 1) · Π (1 − 0.7 r) of those before · 0.7 r.
    """
    stopping = STOPPING * useful
    going_on = np.cumprod(1 - stopping, axis=1)
    before = np.concatenate([np.ones((len(useful), 1)), going_on[:, :-1]], axis=1)
    ranks = np.arange(useful.shape[1])
    found: FloatArray = CONTINUATION**ranks * before * stopping
    return found


def rankings(useful: Sequence[bool], dial: float | str, rng: np.random.Generator) -> IntArray:
    """Return rankings of a query's papers, shape [rankings, papers]."""
    scores = np.array(useful, dtype=np.float64)
    if dial == BY_ID:
        order: IntArray = np.argsort(-scores, kind="stable")[None, :]
        return order
    return sample_rankings(log_weights(scores, float(dial)), num_rankings=DRAWN, k=len(scores), rng=rng)


def outcome(
    stream: Iterable[tuple[float, list[str], list[bool]]],
    groups: Mapping[str, Sequence[str]],
    dial: float | str,
) -> Outcome:
    """Return utility and unfairness of a dial over queries, each weighted by its frequency."""
    rng = np.random.default_rng(SEED)
    exposure: dict[str, float] = defaultdict(float)
    relevance: dict[str, float] = defaultdict(float)
    utility = total = 0.0
    for frequency, items, useful in stream:
        ranked = rankings(useful, dial, rng)
        gains = np.array(useful, dtype=np.float64)
        utility += frequency * float(attention(gains[ranked]).sum(axis=1).mean())
        total += frequency
        labelled = [place for place, one in enumerate(items) if one in groups]
        if not labelled:
            continue
        # Only labelled papers are looked at: the others are taken out of each ranking.
        kept = np.isin(ranked, labelled)
        seen = ranked[kept].reshape(len(ranked), len(labelled))
        paid = attention(gains[seen])
        each = np.zeros(len(items))
        np.add.at(each, seen.ravel(), paid.ravel() / len(ranked))
        for place in labelled:
            for group in groups[items[place]]:
                exposure[group] += frequency * each[place]
                relevance[group] += frequency * STOPPING * gains[place]
    shares, due = (_shares(one, sorted(relevance)) for one in (exposure, relevance))
    return Outcome(utility / total, float(np.linalg.norm(shares - due)))


def compared(dials: Sequence[float | str]) -> list[dict[str, float | str]]:
    """Return a row for each definition of groups and dial."""
    stream = list(papers())
    found: list[dict[str, float | str]] = []
    for name, column in DEFINITIONS.items():
        groups = authors(column)
        for dial in dials:
            one = outcome(stream, groups, dial)
            found.append(
                {
                    "groups": name,
                    "dial": dial,
                    "queries": len(stream),
                    "utility": one.utility,
                    "unfairness": one.unfairness,
                }
            )
    return found


def _shares(of: Mapping[str, float], names: Sequence[str]) -> FloatArray:
    values = np.array([of.get(name, 0.0) for name in names])
    shares: FloatArray = values / values.sum()
    return shares
