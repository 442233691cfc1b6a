"""Options of a conversation, besides how its turns are answered."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from evenmesh.evaluator.v1.evaluator_service_pb2 import AttributeTarget, EvaluateConversationRequest
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh_core.earlier_words import EARLIER_TURNS

_SEPARATOR: Final = ";"
_NONE: Final = Fraction(0)


@dataclass(frozen=True, slots=True)
class Target:
    """The fair distribution of one attribute: C ≥ 2 groups, with shares ≥ 0 that sum to 1.

    ``divergence`` says how the evaluator compares distributions.
    """

    attribute: str
    groups: tuple[str, ...]
    shares: tuple[float, ...]
    divergence: AttributeTarget.Divergence.ValueType

    def membership(self, value: str) -> tuple[Fraction, ...] | None:
        """Return the degree of membership of an attribute value in each group; None if it has no group.

        A value that is no group itself, but several separated by ``;``, belongs in equal parts to those that
        are groups.
        """
        named = {value} if value in self.groups else {part.strip() for part in value.split(_SEPARATOR)}
        known = named.intersection(self.groups)
        if not known:
            return None
        share = Fraction(1, len(known))
        return tuple(share if name in known else _NONE for name in self.groups)

    @property
    def everywhere(self) -> tuple[Fraction, ...]:
        """Equal membership in all groups, for passages without a group."""
        return (Fraction(1, len(self.groups)),) * len(self.groups)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a conversation; ``measure`` says how to measure it, without turns and targets."""

    history: pb.ConversationOptions.History.ValueType = pb.ConversationOptions.HISTORY_WORDS
    history_turns: int = EARLIER_TURNS
    template: str = ""
    targets: tuple[Target, ...] = ()
    entity_attribute: str = ""
    measure: EvaluateConversationRequest = field(default_factory=EvaluateConversationRequest)

    @property
    def num_bytes(self) -> int:
        """What they take in memory. Bytes."""
        texts = [self.template, self.entity_attribute]
        numbers = 0
        for target in self.targets:
            texts += (target.attribute, *target.groups)
            numbers += len(target.shares)
        return sum(map(sys.getsizeof, texts)) + numbers * sys.getsizeof(1.0)
