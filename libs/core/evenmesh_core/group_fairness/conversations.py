"""Group fairness and relevance of a conversation (GFRC)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from evenmesh_core.arrays import FloatArray, count, number
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
    """Mean similarity over the turns that count, in [0, 1] (equation 10); 0 where no turn is relevant."""


@dataclass(frozen=True)
class ConversationFairness:
    """Relevance and group fairness of a conversation."""

    relevance: float
    """R in [0, 1] (equations 3, 6 and 7)."""
    group_fairness: float
    """GF in [0, 1]: mean over the attributes (equation 9)."""
    combined: float
    """alpha · R + (1 − alpha) · GF (equation 5)."""
    position_weights: FloatArray
    """Vector over all nuggets, turn after turn: pw in [0, 1] (equation 6), relevant or not."""
    by_attribute: Mapping[str, AttributeFairness]


def conversation(
    turns: Sequence[Sequence[Nugget]],
    attributes: Mapping[str, Attribute],
    *,
    patience: float = 1250,
    method: Literal["independent", "cumulative"] = "independent",
    irrelevant_turns: Literal["ignore", "uniform"] = "ignore",
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
        alpha: weight of relevance in ``combined``, in [0, 1].
        check: called before each turn of each attribute; what it raises ends the computation.

    Takes time linear in the nuggets and turns, times the groups of all attributes.

    Source: Sakai 2023, §3. Equation 8 is printed without the −1 that equation 6 and table 1 have; this
    follows those. Repeated entities: §5.

    Raises:
        InvalidInput: no turns or attributes; a nugget whose word count, gain or membership is out of range,
            or that stands before its predecessor; patience below 1; alpha outside [0, 1]; an unknown option.
    """
    words = number("patience", patience, low=1.0)
    share = number("alpha", alpha, low=0.0, high=1.0)
    if method not in ("independent", "cumulative"):
        raise InvalidInput("method", method, "'independent' or 'cumulative'")
    if irrelevant_turns not in ("ignore", "uniform"):
        raise InvalidInput("irrelevant_turns", irrelevant_turns, "'ignore' or 'uniform'")
    if len(turns) == 0:
        raise InvalidInput("turns", turns, "at least one system turn")
    if len(attributes) == 0:
        raise InvalidInput("attributes", attributes, "at least one")

    gold = {name: distribution(f"attributes[{name!r}].gold", a.gold) for name, a in attributes.items()}
    _check(turns)
    gains_of = _gains(turns)
    places = np.array([nugget.word_count for turn in turns for nugget in turn], dtype=np.float64)
    weights = np.maximum(0.0, 1.0 - (places - 1.0) / words)
    gains = np.array([gain for turn in gains_of for gain in turn], dtype=np.float64)
    relevance = 2.0 / (words + 1.0) * float(weights @ gains)

    cumulative, uniform = method == "cumulative", irrelevant_turns == "uniform"
    by_attribute = {
        name: _attribute(name, attribute, gold[name], turns, gains_of, cumulative, uniform, check)
        for name, attribute in attributes.items()
    }
    fairness = float(np.mean([part.group_fairness for part in by_attribute.values()]))
    combined = share * relevance + (1.0 - share) * fairness
    return ConversationFairness(relevance, fairness, combined, weights, by_attribute)


def _attribute(
    name: str,
    attribute: Attribute,
    gold: FloatArray,
    turns: Sequence[Sequence[Nugget]],
    gains_of: Sequence[Sequence[float]],
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
    counted = [value for value in similarity if value is not None]
    return AttributeFairness(tuple(achieved), similarity, float(np.mean(counted)) if any_relevant else 0.0)


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
