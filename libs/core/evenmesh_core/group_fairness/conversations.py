"""Group fairness and relevance of a conversation (GFRC)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from evenmesh_core.arrays import FloatArray, count, float_array, number, same_length
from evenmesh_core.errors import InvalidInput
from evenmesh_core.group_fairness.divergences import Attribute, distribution, divergence


@dataclass(frozen=True)
class Nugget:
    """A piece of information in a system turn, with its judgement."""

    word_count: int
    """Place of its last white-space token among all words of the conversation, the user's too, from 1."""
    gain: float
    """Relevance in [0, 1]; 0 is not relevant."""
    membership: Mapping[str, Sequence[float]]
    """For each attribute, to what degree it belongs to each of the C groups: from 0, sum 1."""
    entity: str | None = None
    """Its subject. An entity that came before, in this turn or an earlier one, is not relevant again."""


@dataclass(frozen=True)
class AttributeFairness:
    """Fairness of a conversation with regard to one attribute."""

    achieved: tuple[FloatArray | None, ...]
    """For each turn its distribution over the C groups; None where it is irrelevant and ignored."""
    similarity: tuple[float | None, ...]
    """For each turn 1 − divergence from the target, in [0, 1]; None where the turn is ignored."""
    group_fairness: float
    """Mean similarity over the turns that count, weighed by turn, in [0, 1] (equations 4 and 10); 0 where no
    turn is relevant, or all weights are 0."""


@dataclass(frozen=True)
class ConversationFairness:
    """Relevance and group fairness of a conversation."""

    relevance: float
    """R, from 0 (equations 3, 6 and 7): at most 1 where no two relevant nuggets end at the same word."""
    group_fairness: float
    """GF in [0, 1]: weighted mean over the attributes (equations 4 and 9)."""
    combined: float
    """alpha · R + (1 − alpha) · GF (equation 5)."""
    position_weights: FloatArray
    """Vector over all nuggets, turn after turn: pw in [0, 1] (equation 6), relevant or not."""
    turn_weights: FloatArray
    """Vector over the turns: PW(S) in [0, 1] (equation 4), by the relevant nuggets of a turn, or all nuggets
    of a turn without."""
    by_attribute: Mapping[str, AttributeFairness]


def conversation(
    turns: Sequence[Sequence[Nugget]],
    attributes: Mapping[str, Attribute],
    *,
    patience: float = 1250,
    method: Literal["independent", "cumulative"] = "independent",
    irrelevant_turns: Literal["ignore", "uniform"] = "ignore",
    turn_weights: Literal["equal", "position"] = "equal",
    attribute_weights: Mapping[str, float] | None = None,
    alpha: float = 0.5,
    check: Callable[[], None] | None = None,
) -> ConversationFairness:
    """Score the system turns of a conversation by relevance and group fairness.

    A nugget is relevant if its gain is above 0 and its entity is new. Its position weight falls linearly from
    1 at the first word to 0 past ``patience`` words. A turn's distribution is the plain mean of its relevant
    nuggets' memberships.

    Args:
        turns: for each system turn its nuggets, in the order of the text.
        attributes: the sets of groups, at least one.
        patience: L, the words the user is willing to read, from 1: 5 minutes at 250 words a minute.
        method: whether a turn's distribution comes from its own nuggets, or from those of all turns so far.
        irrelevant_turns: whether a turn without relevant nuggets is left out, or counts as uniform over the
            groups.
        turn_weights: PW(S) of equation 4: "equal", 1 for every turn that counts (the paper's study), or
            "position", the largest position weight of its relevant nuggets, so that late turns count less. A
            turn that counts as uniform takes the largest of all its nuggets, 0 without nuggets.
        attribute_weights: w_m of equation 4, from 0, one for each attribute, sum 1; None weighs all alike.
        alpha: weight of relevance in ``combined``, in [0, 1].
        check: called before each turn of each attribute; what it raises ends the computation.

    Takes time linear in the nuggets and turns, times the groups of all attributes.

    Source: Sakai 2023, §3, equations 3 to 10; §3.2 for "position". Equation 8 is printed without the −1 that
    equation 6 and table 1 have; this follows those. Repeated entities: §5.

    Raises:
        InvalidInput: no turns or attributes; a nugget whose word count, gain or membership is out of range,
            or that stands before its predecessor; patience below 1; alpha outside [0, 1]; weights that are
            not one for each attribute with sum 1; an unknown option.
    """
    words = number("patience", patience, low=1.0)
    share = number("alpha", alpha, low=0.0, high=1.0)
    if method not in ("independent", "cumulative"):
        raise InvalidInput("method", method, "'independent' or 'cumulative'")
    if irrelevant_turns not in ("ignore", "uniform"):
        raise InvalidInput("irrelevant_turns", irrelevant_turns, "'ignore' or 'uniform'")
    if turn_weights not in ("equal", "position"):
        raise InvalidInput("turn_weights", turn_weights, "'equal' or 'position'")
    if len(turns) == 0:
        raise InvalidInput("turns", turns, "at least one system turn")
    if len(attributes) == 0:
        raise InvalidInput("attributes", attributes, "at least one")

    shares = _attribute_weights(attribute_weights, attributes)
    gold = {name: distribution(f"attributes[{name!r}].gold", a.gold) for name, a in attributes.items()}
    _check(turns)
    gains_of = _gains(turns)
    places = np.array([nugget.word_count for turn in turns for nugget in turn], dtype=np.float64)
    weights = np.maximum(0.0, 1.0 - (places - 1.0) / words)
    gains = np.array([gain for turn in gains_of for gain in turn], dtype=np.float64)
    relevance = 2.0 / (words + 1.0) * float(weights @ gains)

    cumulative, uniform = method == "cumulative", irrelevant_turns == "uniform"
    of_turns = np.ones(len(turns)) if turn_weights == "equal" else _turn_weights(weights, gains_of)
    by_attribute = {
        name: _attribute(name, attribute, gold[name], turns, gains_of, of_turns, cumulative, uniform, check)
        for name, attribute in attributes.items()
    }
    fairness = float(sum(shares[name] * part.group_fairness for name, part in by_attribute.items()))
    combined = share * relevance + (1.0 - share) * fairness
    return ConversationFairness(relevance, fairness, combined, weights, of_turns, by_attribute)


def s_measure(
    positions: ArrayLike, weights: ArrayLike, *, patience: float = 1000, normalizer: float = 1.0
) -> float:
    """Score a textual summary: S = 1/N · Σ_v w(v) · max(0, 1 − pos(v) / L).

    Args:
        positions: vector [V] of pos(v), the place of each nugget in the summary, from 0: characters or words.
        weights: vector [V] of w(v), its relevance grade, from 0.
        patience: L, above 0, in the unit of the positions; 1,000 characters are two minutes of Japanese.
        normalizer: N, above 0. The value of a minimal summary of all nuggets with ``normalizer=1`` makes S at
            most 1 for summaries that are no better ("pseudo minimal output").

    Returns:
        The score, from 0.

    Source: Sakai 2023, §2.2, equation 2, the measure of the NTCIR 1CLICK tasks.

    Raises:
        InvalidInput: no nuggets, lengths that differ, or a number out of range.
    """
    places = float_array("positions", positions, low=0.0)
    grades = float_array("weights", weights, low=0.0)
    same_length("positions", places, "weights", grades)
    for name, value in (("patience", patience), ("normalizer", normalizer)):
        if number(name, value) <= 0:
            raise InvalidInput(name, value, "numbers above 0")
    return float(grades @ np.maximum(0.0, 1.0 - places / patience)) / normalizer


def _turn_weights(position_weights: FloatArray, gains_of: Sequence[Sequence[float]]) -> FloatArray:
    """Return the largest position weight of each turn's relevant nuggets, or of all if none is relevant."""
    found = []
    start = 0
    for gains in gains_of:
        mine = position_weights[start : start + len(gains)]
        start += len(gains)
        relevant = mine[np.asarray(gains, dtype=np.float64) > 0]
        chosen = relevant if len(relevant) else mine
        found.append(float(chosen.max()) if len(chosen) else 0.0)
    return np.array(found, dtype=np.float64)


def _attribute_weights(
    weights: Mapping[str, float] | None, attributes: Mapping[str, Attribute]
) -> Mapping[str, float]:
    if weights is None:
        return dict.fromkeys(attributes, 1.0 / len(attributes))
    if set(weights) != set(attributes):
        raise InvalidInput(
            "attribute_weights", sorted(weights), f"one weight for each of {', '.join(attributes)}"
        )
    known = {name: number(f"attribute_weights[{name!r}]", one, low=0.0) for name, one in weights.items()}
    if abs(sum(known.values()) - 1.0) > 1e-6:
        raise InvalidInput("sum(attribute_weights)", sum(known.values()), "1, to within 1e-6")
    return known


def _attribute(
    name: str,
    attribute: Attribute,
    gold: FloatArray,
    turns: Sequence[Sequence[Nugget]],
    gains_of: Sequence[Sequence[float]],
    turn_weights: FloatArray,
    cumulative: bool,
    uniform: bool,
    check: Callable[[], None] | None,
) -> AttributeFairness:
    achieved: list[FloatArray | None] = []
    total, summed = np.zeros(len(gold)), 0
    any_relevant = False
    for t, (turn, gains) in enumerate(zip(turns, gains_of, strict=True)):
        if check is not None:
            check()
        relevant = [
            _membership(f"turns[{t}][{i}].membership", nugget, name, len(gold))
            for i, (nugget, gain) in enumerate(zip(turn, gains, strict=True))
            if gain > 0
        ]
        if not cumulative:
            total, summed = np.zeros(len(gold)), 0
        if relevant:
            any_relevant = True
            # Added one by one, in the order of the text: the sum of all turns so far is never taken anew.
            for membership in relevant:
                total = total + membership
            summed += len(relevant)
            achieved.append(total / summed)
        else:
            achieved.append(np.full(len(gold), 1.0 / len(gold)) if uniform else None)
    measure = attribute.divergence
    similarity = tuple(None if p is None else 1.0 - divergence(measure, p, gold) for p in achieved)
    counted = np.array([value for value in similarity if value is not None])
    paid = turn_weights[[value is not None for value in similarity]]
    fairness = float(paid @ counted / paid.sum()) if any_relevant and paid.sum() > 0 else 0.0
    return AttributeFairness(tuple(achieved), similarity, fairness)


def _gains(turns: Sequence[Sequence[Nugget]]) -> list[list[float]]:
    """Return the gains of the nuggets, 0 for those whose entity was relevant before."""
    seen: set[str] = set()
    gains = []
    for turn in turns:
        row = []
        for nugget in turn:
            row.append(0.0 if nugget.entity in seen else nugget.gain)
            if nugget.entity is not None and nugget.gain > 0:
                seen.add(nugget.entity)
        gains.append(row)
    return gains


def _check(turns: Sequence[Sequence[Nugget]]) -> None:
    before = 1
    for t, turn in enumerate(turns):
        for i, nugget in enumerate(turn):
            where = f"turns[{t}][{i}]"
            before = count(f"{where}.word_count", nugget.word_count, low=before)
            number(f"{where}.gain", nugget.gain, low=0.0, high=1.0)


def _membership(where: str, nugget: Nugget, name: str, groups: int) -> FloatArray:
    if name not in nugget.membership:
        raise InvalidInput(where, sorted(nugget.membership), f"a membership for attribute {name!r}")
    membership = distribution(f"{where}[{name!r}]", nugget.membership[name])
    if len(membership) != groups:
        raise InvalidInput(f"len({where}[{name!r}])", len(membership), f"{groups}, as in gold")
    return membership
