"""Expected exposure of items to a machine user (Kim & Diaz 2025, §3.3.1 and §3.3.3, appendix C).

The generator of a RAG system reads the first k passages of a ranking, so those are exposed. Over the rankings
a stochastic policy draws for one query, each item gets an expected exposure; it is compared with the exposure
an oracle would give, which ranks useful items first and is fair among equals.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from evenmesh_core.arrays import FloatArray, IntArray, count, float_array, number, rankings_array, same_length
from evenmesh_core.errors import InvalidInput

BrowsingModel = Callable[[IntArray], FloatArray]
"""From 1-based ranks to the attention an item gets there, in [0, 1]."""


def top_k(k: int) -> BrowsingModel:
    """Return the machine user MU(i) = 1[i ≤ k]: full attention to the k passages of the context, none beyond.

    Source: Kim & Diaz 2025, equation 4.

    Raises:
        InvalidInput: k below 1.
    """
    depth = count("k", k)

    def attention(ranks: IntArray) -> FloatArray:
        return np.where(ranks <= depth, 1.0, 0.0)

    return attention


def rbp(patience: float) -> BrowsingModel:
    """Return the user of rank-biased precision: attention patience^(i − 1), with patience in [0, 1].

    Source: Moffat & Zobel 2008, without its normalising factor 1 − patience.

    Raises:
        InvalidInput: patience outside [0, 1].
    """
    continues = number("patience", patience, low=0.0, high=1.0)

    def attention(ranks: IntArray) -> FloatArray:
        return np.power(continues, (ranks - 1).astype(np.float64))

    return attention


def reciprocal_rank(ranks: IntArray) -> FloatArray:
    """Return attention 1 / i: itself a browsing model."""
    return 1.0 / ranks


def position_weights(vector: ArrayLike) -> BrowsingModel:
    """Return measured attention: ``vector[i − 1]`` at rank i, none beyond ("lost in the middle" curves).

    Raises:
        InvalidInput: not a non-empty vector of numbers in [0, 1].
    """
    weights = float_array("vector", vector, low=0.0, high=1.0)

    def attention(ranks: IntArray) -> FloatArray:
        seen = ranks <= len(weights)
        return np.where(seen, weights[np.where(seen, ranks - 1, 0)], 0.0)

    return attention


def system_exposure(
    rankings: ArrayLike,
    n_items: int,
    browsing: BrowsingModel,
    *,
    probabilities: ArrayLike | None = None,
) -> FloatArray:
    """Return each item's expected exposure ε over sampled rankings.

    Args:
        rankings: int matrix [N, L] of item indices, best first; or the exact inclusion probabilities, a float
            vector [n_items] (:func:`evenmesh_core.plackett_luce.inclusion_probabilities`), which are the
            exposure under ``top_k`` models, and under no other.
        n_items: number n of items ranked from.
        browsing: attention by rank.
        probabilities: vector [N] of p(π|q), where the rankings are all there are instead of a sample.

    Returns:
        Vector [n_items] in [0, 1].

    Source: Kim & Diaz 2025, equation 5; the mean over samples estimates it.

    Raises:
        InvalidInput: a ranking with an item twice or outside [0, n_items); inclusion probabilities outside
            [0, 1], or that do not add up to the attention paid; probabilities that do not add up to 1.
    """
    n = count("n_items", n_items)
    if _is_float_vector(rankings):
        return _inclusion_exposure(rankings, n, browsing)
    matrix = rankings_array("rankings", rankings, n)
    if probabilities is None:
        return _expected(matrix, n, browsing)
    share = float_array("probabilities", probabilities, low=0.0, high=1.0)
    same_length("rankings", matrix, "probabilities", share)
    if abs(share.sum() - 1.0) > 1e-6:
        raise InvalidInput("sum(probabilities)", float(share.sum()), "1, to within 1e-6")
    return _expected(matrix, n, browsing, share)


def target_exposure(useful_mask: ArrayLike, browsing: BrowsingModel) -> FloatArray:
    """Return each item's exposure ε* under an oracle that is fair among equally useful items.

    The oracle ranks by descending grade and shuffles within a grade, so every item of a grade gets the mean
    attention of the ranks that its grade occupies. Under ``top_k(k)`` and m useful items of n that is
    min(m, k) / m for the useful and max(0, min(k, n) − m) / (n − m) for the others.

    Args:
        useful_mask: vector [n] of booleans, or of grades from 0 (not useful) upwards.
        browsing: attention by rank.

    Returns:
        Vector [n] in [0, 1].

    Source: Kim & Diaz 2025, equation 6; Diaz et al. 2020 for grades and other browsing models.

    Raises:
        InvalidInput: not a non-empty vector of finite grades from 0.
    """
    grades = float_array("useful_mask", useful_mask, low=0.0)
    _, group, sizes = np.unique(-grades, return_inverse=True, return_counts=True)
    ends = np.cumsum(sizes)
    attention = np.concatenate([[0.0], np.cumsum(_attention(browsing, len(grades)))])
    mean: FloatArray = (attention[ends] - attention[ends - sizes]) / sizes
    return np.clip(mean, 0.0, 1.0)[group]


@dataclass(frozen=True)
class ExposureMetrics:
    """Fairness and quality of the rankings of one query."""

    exposure: FloatArray
    """System exposure ε, vector [n] in [0, 1]."""
    target: FloatArray
    """Target exposure ε*, vector [n] in [0, 1]."""
    ee_d: float
    """Disparity EE-D = ‖ε‖², in [0, ``ee_d_bound``]; higher is less fair."""
    ee_r: float
    """Relevance ``EE-R = ⟨ε, ε*⟩``, in [0, its bound]; higher is better; ``nan`` where no item is useful."""
    ee_l: float
    """Loss ``EE-L = ‖ε − ε*‖² = EE-D − 2 EE-R + ‖ε*‖²``, the squared distance; lower is better."""
    ee_d_norm: float
    """EE-D / min(k, n), in [0, 1] (equation 12)."""
    ee_r_norm: float
    """EE-R over its bound, in [0, 1] (equation 24); ``nan`` where no item is useful. The bound is the largest
    EE-R of any policy: ‖ε*‖² where attention never rises with the rank, as in the paper, and more where it
    does ("lost in the middle")."""
    ee_d_bound: float
    """EE-D of any deterministic ranking (theorem 1): min(k, n) under ``top_k(k)``, less under other
    models."""


def exposure_metrics(
    rankings: ArrayLike | None = None,
    useful_mask: ArrayLike | None = None,
    *,
    k: int,
    browsing: BrowsingModel | None = None,
    exposure: ArrayLike | None = None,
) -> ExposureMetrics:
    """Compare the exposure that sampled rankings give with the target exposure.

    The generator is given k passages, so under any browsing model attention ends after rank k, in the
    system's exposure and in the target.

    Args:
        rankings: int matrix [N, L] of item indices, best first, cut at k; None with ``exposure``.
        useful_mask: vector [n] of booleans, or of grades from 0 (not useful) upwards.
        k: number of passages the generator is given, from 1.
        browsing: attention by rank; None means ``top_k(k)``.
        exposure: system exposure, vector [n] in [0, 1], in place of rankings: for instance exact inclusion
            probabilities.

    Source: Kim & Diaz 2025, equations 3 and 6, appendix C. With m < k useful items the authors' code leaves
    the others' target out of EE-R and keeps it in the bound; here both have it, as in the paper.

    Raises:
        InvalidInput: neither or both of rankings and exposure; no useful_mask; or as :func:`system_exposure`,
            :func:`target_exposure`.
    """
    if useful_mask is None:
        raise InvalidInput("useful_mask", useful_mask, "a vector with one entry for each item")
    depth = count("k", k)
    model = _cut(top_k(depth) if browsing is None else browsing, depth)
    target = target_exposure(useful_mask, model)
    n = len(target)
    if (rankings is None) == (exposure is None):
        given = "neither" if rankings is None else "both"
        raise InvalidInput("rankings and exposure", given, "exactly one of the two")
    if exposure is not None:
        system = float_array("exposure", exposure, low=0.0, high=1.0 + 1e-9)
        same_length("useful_mask", target, "exposure", system)
    elif rankings is not None:
        # Checked before the cut: an item twice is an error wherever it stands.
        system = _expected(rankings_array("rankings", rankings, n)[:, :depth], n, model)

    any_useful = bool(np.any(np.asarray(useful_mask)))
    ee_d = float(system @ system)
    ee_r = float(system @ target)
    difference = system - target
    attention = _attention(model, min(depth, n))
    most, bound = _agreement(attention, target, -1), float(attention @ attention)
    return ExposureMetrics(
        exposure=system,
        target=target,
        ee_d=ee_d,
        ee_r=ee_r if any_useful else float("nan"),
        ee_l=float(difference @ difference),
        # Both are at most 1, but for rounding, which depends on the matrix kernel.
        ee_d_norm=min(1.0, ee_d / bound) if bound > 0 else float("nan"),
        ee_r_norm=min(1.0, ee_r / most) if any_useful and most > 0 else float("nan"),
        ee_d_bound=bound,
    )


@dataclass(frozen=True)
class ExposureBounds:
    """Bounds for every policy on one query: (smallest, largest) of each of :class:`ExposureMetrics`.

    With few candidates the normalised metrics do not span [0, 1]: with n = k every policy shows all of them,
    and normalised EE-D is 1.
    """

    ee_d: tuple[float, float]
    ee_r: tuple[float, float]
    """``nan`` where no item is useful."""
    ee_l: tuple[float, float]
    """The smallest is 0, where every item gets its target."""
    ee_d_norm: tuple[float, float]
    ee_r_norm: tuple[float, float]
    """``nan`` where no item is useful, or no useful item can get attention."""


def exposure_bounds(
    useful_mask: ArrayLike, *, k: int, browsing: BrowsingModel | None = None
) -> ExposureBounds:
    """Return the exact bounds of the exposure metrics of one query, over all policies that fill k places.

    EE-D is smallest, (Σ a)² / n for attentions a, where all items get the same exposure, and largest, Σ a²,
    for any deterministic ranking. EE-R is linear in the exposure, so its extremes are deterministic rankings:
    the attentions in the order of the targets, and in the opposite order. EE-L is largest where EE-D is and
    EE-R is smallest, which is the same ranking.

    Args:
        useful_mask: vector [n] of booleans, or of grades from 0 (not useful) upwards.
        k: number of passages the generator is given, from 1.
        browsing: attention by rank; None means ``top_k(k)``.

    Source: Kim & Diaz 2025, appendix C, has the upper bounds for n > k; the lower ones are ours.

    Raises:
        InvalidInput: as :func:`target_exposure`.
    """
    depth = count("k", k)
    model = _cut(top_k(depth) if browsing is None else browsing, depth)
    target = target_exposure(useful_mask, model)
    n = len(target)
    attention = _attention(model, min(depth, n))
    least, most = _agreement(attention, target, 1), _agreement(attention, target, -1)
    even, sharp = float(attention.sum()) ** 2 / n, float(attention @ attention)
    undefined = float("nan"), float("nan")
    any_useful = bool(np.any(np.asarray(useful_mask)))
    return ExposureBounds(
        ee_d=(even, sharp),
        ee_r=(least, most) if any_useful else undefined,
        ee_l=(0.0, sharp - 2 * least + float(target @ target)),
        ee_d_norm=(even / sharp, 1.0) if sharp > 0 else undefined,
        ee_r_norm=(least / most, 1.0) if any_useful and most > 0 else undefined,
    )


def _agreement(attention: FloatArray, target: FloatArray, sign: int) -> float:
    """Return the largest EE-R of any ranking for sign −1, the smallest for sign 1."""
    paid = np.zeros(len(target))
    paid[: len(attention)] = attention
    return float(np.sort(paid)[::-1] @ np.sort(sign * target)) * sign


@dataclass(frozen=True)
class GroupExposure:
    """Exposure by group or provider, against its target."""

    labels: tuple[Hashable, ...]
    """The G groups, ascending."""
    exposure: FloatArray
    """Vector [G]: sum of the system exposure of the group's items."""
    target: FloatArray
    """Vector [G]: sum of the target exposure of the group's items."""
    ratio: FloatArray
    """Vector [G]: exposure / target, 1 where fair; ``nan`` where the target is 0."""
    difference: FloatArray
    """Vector [G]: exposure − target, 0 where fair."""
    worst_ratio: float
    """Smallest over largest ratio, in [0, 1], 1 where fair; ``nan`` where none is above 0."""
    worst_difference: float
    """Largest minus smallest difference, 0 where fair."""


def group_exposure(
    exposure: ArrayLike, target: ArrayLike, labels: Sequence[str] | Sequence[int]
) -> GroupExposure:
    """Sum the exposure of items and its target by provider, or by any other group attribute.

    Args:
        exposure: system exposure, vector [n] in [0, 1].
        target: target exposure, vector [n] in [0, 1].
        labels: provider or group of each item, n of them, all texts or all whole numbers.

    Source: item exposure (Kim & Diaz 2025, §3.3.1) summed as in Singh & Joachims 2018 and Raj & Ekstrand
    2020, who compare groups by ratio and by difference.

    Raises:
        InvalidInput: lengths differ, exposures outside [0, 1], or labels of mixed type.
    """
    system = float_array("exposure", exposure, low=0.0, high=1.0 + 1e-9)
    wanted = float_array("target", target, low=0.0, high=1.0 + 1e-9)
    same_length("exposure", system, "target", wanted)
    same_length("exposure", system, "labels", labels)
    whole = (isinstance(label, (int, np.integer)) and not isinstance(label, bool) for label in labels)
    if not (all(isinstance(label, str) for label in labels) or all(whole)):
        raise InvalidInput("labels", labels, "all texts, or all whole numbers")
    # Not as an array of texts, which takes the length of the longest for each.
    named: list[Any] = [label if isinstance(label, str) else int(label) for label in labels]
    groups = sorted(set(named))
    places = {label: place for place, label in enumerate(groups)}
    member = np.array([places[label] for label in named], dtype=np.int64)
    achieved = _sums(member, system, len(groups))
    due = _sums(member, wanted, len(groups))
    ratio = np.divide(achieved, due, out=np.full(len(groups), np.nan), where=due > 0)
    difference = achieved - due
    defined = ratio[~np.isnan(ratio)]
    best = float(defined.max()) if defined.size else 0.0
    return GroupExposure(
        labels=tuple(groups),
        exposure=achieved,
        target=due,
        ratio=ratio,
        difference=difference,
        worst_ratio=float(defined.min()) / best if best > 0 else float("nan"),
        worst_difference=float(difference.max() - difference.min()),
    )


def _sums(places: IntArray, weights: FloatArray, length: int) -> FloatArray:
    sums: FloatArray = np.bincount(places, weights=weights, minlength=length).astype(np.float64, copy=False)
    return sums


def _is_float_vector(values: ArrayLike) -> bool:
    array = np.asarray(values) if isinstance(values, (list, tuple, np.ndarray)) else None
    return array is not None and array.ndim == 1 and array.dtype.kind == "f"


def _inclusion_exposure(values: ArrayLike, n: int, browsing: BrowsingModel) -> FloatArray:
    inclusion = float_array("rankings", values, low=0.0, high=1.0 + 1e-9)
    if len(inclusion) != n:
        raise InvalidInput("len(rankings)", len(inclusion), f"{n}, the number of items")
    attention = _attention(browsing, n)
    paid = float(attention.sum())
    if not np.array_equal(attention, np.arange(n) < paid):
        raise InvalidInput("browsing", "not a top-k model", "top_k models, for inclusion probabilities")
    if abs(inclusion.sum() - paid) > 1e-6 * n:
        raise InvalidInput(
            "sum(rankings)", float(inclusion.sum()), f"{paid:g}, the attention paid, or rankings"
        )
    return np.minimum(inclusion, 1.0)


def _expected(
    rankings: IntArray, n: int, browsing: BrowsingModel, share: FloatArray | None = None
) -> FloatArray:
    """Return the mean attention to each item over rankings, weighted by ``share`` or equally."""
    attention = _attention(browsing, rankings.shape[1])
    paid = np.broadcast_to(attention, rankings.shape) if share is None else np.outer(share, attention)
    sums = _sums(rankings.ravel(), paid.ravel(), n)
    return np.minimum(sums / len(rankings) if share is None else sums, 1.0)


def _attention(browsing: BrowsingModel, length: int) -> FloatArray:
    """Return the attention at ranks 1 to ``length``."""
    attention = float_array("browsing(ranks)", browsing(np.arange(1, length + 1)), low=0.0, high=1.0)
    if len(attention) != length:
        raise InvalidInput("len(browsing(ranks))", len(attention), f"{length}, one attention for each rank")
    return attention


def _cut(browsing: BrowsingModel, k: int) -> BrowsingModel:
    def attention(ranks: IntArray) -> FloatArray:
        return np.where(ranks <= k, browsing(ranks), 0.0)

    return attention
