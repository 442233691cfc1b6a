"""Score intervals and adjusted p-values of stored tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.study_pages.cells import read, write
from benchmarks.study_pages.scores import score
from evenmesh_lab.studies.agents import MACRO


def test_the_mean_of_agents_keeps_its_interval_and_its_paired_p(tmp_path: Path) -> None:
    ends = {"difference_low": "-0.2", "difference_high": "0.4"}
    counts = {"queries": "100", "difference": "0.1", "only_first": "10", "only_second": "0"}
    row = (
        {"first": "a", "second": "b"} | counts | ends | {"p_value": "0.3", "mcnemar_p": "0.002", "p_holm": ""}
    )
    path = tmp_path / "comparisons.csv"
    write(path, [{"agent": "qa/fid"} | row, {"agent": MACRO} | row])
    score(path, family=("agent",))
    alone, together = read(path)
    assert float(alone["p_holm"]) == pytest.approx(0.002)
    assert 0 < float(alone["difference_low"]) < 0.1 < float(alone["difference_high"])
    assert (together["difference_low"], together["difference_high"]) == ("-0.2", "0.4")
    assert float(together["p_holm"]) == pytest.approx(0.3)
