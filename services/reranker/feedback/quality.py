"""Which feedback of an agent is not learned from: what it contradicts itself in, and what tells nothing.

An agent that lies consistently cannot be told from one with unusual tastes, and need not be: its feedback
trains what ranks for it alone. These checks find feedback that cannot be learned from whoever gave it. It is
flagged and kept, not dropped: a person can look at it, and an export has it.

- **Contradiction.** The same passage for the same query judged more than ``gap`` apart: neither side says
  anything, so the new item and those before it are flagged.
- **Inconsistent.** Of what the agent judges again, more than ``most_contradicted`` contradicts what it said
  before: then also what it judges once is worth little. A coin thrown for usefulness in {0, 1} contradicts
  half of it at first and all of it later. Counted over about the last ``1 / (1 - fade)`` items judged again,
  so that an agent that is repaired is believed again.
- **Constant.** ``constant_run`` items in a row have the same usefulness. An agent that finds a share p of
  passages useful gives n times 0 in a row with probability (1 - p)^n: with p = 2 % and n = 500, 4e-5. Such a
  run orders nothing, and would only move every score one way.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.reranker.feedback.domain import Flag


@dataclass(frozen=True, slots=True)
class Rules:
    """When feedback is flagged.

    Attributes:
        gap: largest difference of two judgements that agree, [0, 1].
        fewest_judged_again: items judged again before an agent can be inconsistent, [1, inf).
        most_contradicted: largest share of them that may contradict, [0, 1].
        fade: what an item judged again still counts when the next one is, (0, 1).
        constant_run: equal items in a row that tell nothing, [2, inf).
    """

    gap: float = 0.5
    fewest_judged_again: int = 20
    most_contradicted: float = 0.25
    fade: float = 0.99
    constant_run: int = 500

    @property
    def enough_judged_again(self) -> float:
        """What ``fewest_judged_again`` items judged again add up to as they fade."""
        return (1 - self.fade**self.fewest_judged_again) / (1 - self.fade) * (1 - 1e-9)


@dataclass(slots=True)
class Conduct:
    """How an agent has been judging, as far as the rules need to know.

    Attributes:
        value: its last usefulness; None before the first.
        run: items in a row that had it, [0, inf).
        judged_again: items it had judged before, fading, [0, inf).
        contradicted: of them those that contradicted, fading, [0, judged_again].
    """

    value: float | None = None
    run: int = 0
    judged_again: float = 0.0
    contradicted: float = 0.0

    def judge(self, usefulness: float, earlier: tuple[float, float] | None, rules: Rules) -> Flag:
        """Takes the agent's next item into account and says whether to learn from it.

        Args:
            usefulness: of the item, [0, 1].
            earlier: least and largest usefulness of the same passage for the same query before; None if it
                was not judged before.
            rules: when to flag.
        """
        self.run = self.run + 1 if usefulness == self.value else 1
        self.value = usefulness
        contradicts = False
        if earlier is not None:
            low, high = min(usefulness, earlier[0]), max(usefulness, earlier[1])
            contradicts = high - low > rules.gap
            self.judged_again = rules.fade * self.judged_again + 1
            self.contradicted = rules.fade * self.contradicted + contradicts
        if contradicts:
            return Flag.CONTRADICTION
        often = self.contradicted > rules.most_contradicted * self.judged_again
        if often and self.judged_again >= rules.enough_judged_again:
            return Flag.INCONSISTENT
        return Flag.CONSTANT if self.run >= rules.constant_run else Flag.NONE
