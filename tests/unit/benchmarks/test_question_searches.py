"""Rows of the table of questions among other sentences."""

from __future__ import annotations

import numpy as np

from benchmarks.question_searches import REPEATED, row
from benchmarks.question_stories import AS_IT_STANDS


def test_a_row_has_both_texts_and_what_the_mesh_gains() -> None:
    """By hand: a half more in 20 of 40 questions is a quarter more in the mean."""
    whole = np.full(40, 0.25)
    ndcg = {AS_IT_STANDS: whole, REPEATED: whole + np.where(np.arange(40) < 20, 0.5, 0.0)}
    cells = row("after a courtesy", ndcg, {AS_IT_STANDS: 0.5, REPEATED: 0.75})
    assert (cells[""], cells["questions"]) == ("after a courtesy", "40")
    assert cells["nDCG@10, as it stands"] == "0.250"
    assert cells["nDCG@10, what asks repeated"] == "0.500"
    assert cells["difference"].startswith("+0.250 [+0.")
    assert cells["among the best 20, what asks repeated"] == "0.750"
