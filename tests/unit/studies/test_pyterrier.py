"""Scores of rankings as trec_eval reads them."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyterrier", reason="PyTerrier is not installed: evenmesh-studies[pyterrier]")

from evenmesh_studies.pyterrier import MeshRetriever, falling


def test_scores_fall_in_single_precision_and_stay_what_they_were() -> None:
    scores = [7.25, 7.25, 7.25, 3.0000000001, 3.0, 0.0, 0.0, -1.0]
    made = np.asarray(falling(scores), dtype=np.float32)

    assert (np.diff(made) < 0).all()
    assert made.tolist() == pytest.approx(scores, rel=1e-6, abs=1e-6)
    assert falling([0.1, 0.05]) == pytest.approx([0.1, 0.05], rel=1e-7)
    assert falling([]) == []


def test_pyterrier_needs_no_java() -> None:
    import pyterrier as pt

    assert not pt.java.started()


def test_results_are_no_more_than_the_pool() -> None:
    client: Any = None
    assert MeshRetriever(client, "c").num_results == 100
    assert MeshRetriever(client, "c", depth=50).num_results == 50
    with pytest.raises(ValueError, match="num_results is 60; allowed: at most depth, which is 50"):
        MeshRetriever(client, "c", depth=50, num_results=60)
