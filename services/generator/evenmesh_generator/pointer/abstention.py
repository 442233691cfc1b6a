"""The abstention: its words, when a model says them, and its bias."""

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np

ABSTENTION: Final = "not in the passages"
"""What a model says when no passage answers the question."""

WANTED_PRECISION: Final = 0.85
"""Precision required when the bias is chosen: above the 0.8 that must hold on other questions."""


def is_abstention(text: str) -> bool:
    """Return whether ``text`` says :data:`ABSTENTION`, whatever its case and final stop."""
    return " ".join(text.lower().split()).rstrip(".") == ABSTENTION


def for_development(question_id: str) -> bool:
    """Return whether a question is of the half, by SHA-256 of its id, on which the bias is chosen."""
    return hashlib.sha256(question_id.encode()).digest()[0] % 2 == 0


def choose_bias(
    margins: Sequence[float], unanswerable: Sequence[bool], *, precision: float = WANTED_PRECISION
) -> float:
    """Return the bias that abstains most often while ``precision`` of the questions it abstains on are
    unanswerable.

    Args:
        margins: by how much abstaining is more probable than the most probable other beginning of the
            answer, nats; the model abstains where ``margin + bias > 0``.
        unanswerable: whether abstaining is right.
        precision: in (0, 1].

    Raises:
        ValueError: no bias is as precise as that.
    """
    order = np.argsort(-np.asarray(margins, dtype=np.float64), kind="stable")
    ordered = np.asarray(margins, dtype=np.float64)[order]
    right = np.asarray(unanswerable, dtype=bool)[order].cumsum()
    share = right / np.arange(1, len(order) + 1)
    # no bias separates equal margins
    parts = np.append(ordered[:-1] > ordered[1:], True)
    precise = np.flatnonzero((share >= precision) & parts)
    if not len(precise):
        raise ValueError(
            f"no bias abstains with a precision of {precision}; the best is {share[parts].max():.3f}"
        )
    last = int(precise[-1])
    below = ordered[last + 1] if last + 1 < len(ordered) else ordered[last] - 1.0
    return -float(ordered[last] + below) / 2
