"""Beam search of one request: which beams go on, which answers are done.

The semantics are those of transformers 5 (``GenerationMixin._beam_search``): of the best candidates over all
beams, as many as there are beams go on, those that end compete for a place among the finished, and a
heuristic says when nothing better can come. Scores are kept in single precision, as they are there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

_NEVER: Final = -1.0e9
"""Score of what cannot win."""

_SINGLE: Final = struct.Struct("f")


class Trail(NamedTuple):
    """A token and those before it; None before the first. ``gained``: the token's log-probability, nats."""

    token: int
    before: Trail | None
    gained: float = 0.0

    def tokens(self) -> list[int]:
        """Return all tokens, in order."""
        return [one.token for one in self._steps()]

    def log_probabilities(self) -> list[float]:
        """Return the log-probability of each token, in order, in nats."""
        return [one.gained for one in self._steps()]

    def _steps(self) -> list[Trail]:
        found = []
        at: Trail | None = self
        while at is not None:
            found.append(at)
            at = at.before
        return found[::-1]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A beam's next token.

    ``score``: what ranks it, the beam's score and the token's processed log-probability, nats; ``gained``:
    the token's log-probability in the model's own distribution, nats.
    """

    score: float
    beam: int
    token: int
    gained: float


@dataclass(frozen=True, slots=True)
class Found:
    """A finished answer: its tokens, its score with the length penalty, its log-probability in nats."""

    trail: Trail | None
    score: float
    log_probability: float
    ended: bool


class BeamSearch:
    """The search of one request.

    Args:
        beams: rows searched, [2, inf).
        most_tokens: longest answer, [1, inf).
        ends: tokens that end an answer.
        length_penalty: exponent of the length by which scores are divided; positive favours long answers.
        early_stopping: True stops when as many answers as beams are done; False when the best running beam
            is worse, at its present length, than the worst of them; ``never`` looks at what it could become.
    """

    def __init__(
        self,
        beams: int,
        most_tokens: int,
        ends: frozenset[int],
        *,
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
    ) -> None:
        self._beams = beams
        self._most = most_tokens
        self.ends = ends
        """Tokens that end an answer."""
        self._penalty = length_penalty
        self._early = early_stopping
        self._improvable = True
        self._found = [Found(None, _NEVER, 0.0, False)] * beams
        self._totals = [0.0] * beams
        self.written = 0
        """Tokens of every beam."""
        self.scores = [0.0] + [_NEVER] * (beams - 1)
        """Running score of every beam; all but one count for nothing at first, when all are alike."""
        self.trails: list[Trail | None] = [None] * beams
        """Tokens of every beam."""

    @property
    def candidates(self) -> int:
        """Return how many of a step's best candidates to pass: with fewer, all could have ended."""
        return max(2, 1 + len(self.ends)) * self._beams

    def advance(self, best: Sequence[Candidate]) -> tuple[list[int], list[int]] | None:
        """Advance by one token, given the best candidates over all beams in any order.

        Returns:
            For every beam that goes on, the beam it comes from and its new token; None when all is over.
        """
        best = sorted(best, key=lambda one: -one.score)[: self.candidates]
        self.written += 1
        last = self.written >= self._most
        hits = [last or one.token in self.ends for one in best]
        running = [
            _single(one.score + _NEVER) if hit else one.score for one, hit in zip(best, hits, strict=True)
        ]
        order = sorted(range(len(best)), key=lambda at: -running[at])[: self._beams]
        self._finish(best, hits)
        parents = [best[at].beam for at in order]
        tokens = [best[at].token for at in order]
        self._totals = [self._totals[best[at].beam] + best[at].gained for at in order]
        self.trails = [Trail(best[at].token, self.trails[best[at].beam], best[at].gained) for at in order]
        self.scores = [running[at] for at in order]
        self._improvable = self._improvable and self._can_improve()
        full = self._early is True and all(one.ended for one in self._found)
        if not self._improvable or full or all(hits):
            return None
        return parents, tokens

    @property
    def best(self) -> Found:
        """Return the best finished answer."""
        return self._found[0]

    def _finish(self, best: Sequence[Candidate], hits: Sequence[bool]) -> None:
        full = self._early is True and all(one.ended for one in self._found)
        if full or not self._improvable:
            return
        length = float(self.written) ** self._penalty
        done = [
            Found(
                Trail(one.token, self.trails[one.beam], one.gained),
                _single(one.score / length),
                self._totals[one.beam] + one.gained,
                True,
            )
            for one, hit in zip(best[: self._beams], hits, strict=False)
            if hit  # only those among the best count: the others are there to go on
        ]
        if done:
            self._found = sorted([*self._found, *done], key=lambda one: -one.score)[: self._beams]

    def _can_improve(self) -> bool:
        at_most = self._early == "never" and self._penalty > 0.0
        length = float(self._most if at_most else self.written) ** self._penalty
        possible = _single(self.scores[0] / length)
        worst = min(one.score for one in self._found)
        return any(possible > (worst if one.ended else _NEVER) for one in self._found)


def _single(value: float) -> float:
    """Return the value in single precision."""
    return float(_SINGLE.unpack(_SINGLE.pack(value))[0])
