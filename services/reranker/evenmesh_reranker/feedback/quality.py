"""Which feedback of an agent is kept out of training: contradictions, and items that carry no information.

An agent that lies consistently looks like one with unusual tastes, and may: its feedback trains only what
ranks for it. These rules find feedback that no model can learn from. It is flagged, not dropped, so that a
person can look at it and an export has it.

- **Contradiction.** Two judgements of the same passage for the same query differ by more than ``gap``: the
  new item and those before it are flagged.
- **Inconsistent.** More than ``most_contradicted`` of what the agent judges again contradicts what it said
  before; then what it judges once is worth little too. A random usefulness in {0, 1} contradicts half of it
  at first and all of it later. Counted over about the last ``1 / (1 - fade)`` items judged again, so that a
  repaired agent is trusted again.
- **Constant.** ``constant_run`` items in a row have the same usefulness. An agent that finds a share p of
  passages useful gives n times 0 in a row with probability (1 - p)^n: with p = 2 % and n = 500, 4e-5. Such a
  run orders nothing, and would only move every score one way.
"""

from __future__ import annotations

from dataclasses import dataclass

from evenmesh_reranker.feedback.domain import Flag


@dataclass(frozen=True, slots=True)
class QualityRules:
    """When feedback is flagged.

    Attributes:
        gap: largest difference of two judgements that agree, [0, 1].
        fewest_judged_again: items judged again before an agent can be inconsistent, [1, inf).
        most_contradicted: largest share of these that may contradict, [0, 1].
        fade: weight that an item judged again keeps when the next one arrives, (0, 1).
        constant_run: length of a run of equal items that is flagged, [2, inf).
    """

    gap: float = 0.5
    fewest_judged_again: int = 20
    most_contradicted: float = 0.25
    fade: float = 0.99
    constant_run: int = 500

    @property
    def enough_judged_again(self) -> float:
        """Sum of the faded weights of ``fewest_judged_again`` items."""
        return (1 - self.fade**self.fewest_judged_again) / (1 - self.fade) * (1 - 1e-9)


@dataclass(slots=True)
class JudgingHistory:
    """How an agent has been judging, as far as the rules need it.

    Attributes:
        value: its last usefulness; None before the first item.
        run: number of items in a row that had this usefulness, [0, inf).
        judged_again: faded number of items that it had judged before, [0, inf).
        contradicted: faded number of these that contradicted, [0, judged_again].
    """

    value: float | None = None
    run: int = 0
    judged_again: float = 0.0
    contradicted: float = 0.0

    def judge(self, usefulness: float, earlier: tuple[float, float] | None, rules: QualityRules) -> Flag:
        """Add the agent's next item, and return why to keep it out of training.

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
