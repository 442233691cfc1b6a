"""Score intervals and adjusted p-values of stored tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.study_pages.cells import read, write
from benchmarks.study_pages.scores import score
from evenmesh_lab.studies.agents import MACRO


def test_the_mean_of_agents_keeps_its_interval_and_its_paired_p(tmp_path: Path) -> None:
    ends = {"difference_low": "-0.2", "difference_high": "0.4"}
    counts = {"queries": "100", "difference": "0.1", "only_first": "12", "only_second": "2"}
    row = (
        {"first": "a", "second": "b"}
        | counts
        | ends
        | {"p_value": "0.3", "mcnemar_p": "0.012939453125", "p_holm": ""}
    )
    path = tmp_path / "comparisons.csv"
    write(path, [{"agent": "qa/fid"} | row, {"agent": MACRO} | row])
    score(path, family=("agent",))
    alone, together = read(path)
    assert float(alone["p_holm"]) == pytest.approx(0.012939453125)
    assert 0 < float(alone["difference_low"]) < 0.1 < float(alone["difference_high"])
    assert (together["difference_low"], together["difference_high"]) == ("-0.2", "0.4")
    assert float(together["p_holm"]) == pytest.approx(0.3)


def test_a_mean_of_agents_has_no_interval_where_few_answers_differ(tmp_path: Path) -> None:
    ends = {
        "difference_low": "0.0",
        "difference_high": "0.01",
        "p_value": "0.5",
        "mcnemar_p": "1.0",
        "p_holm": "",
    }
    path = tmp_path / "comparisons.csv"
    counts = [("1", "0"), ("0", "0"), ("6", "6")]
    write(
        path,
        [
            {"agent": MACRO, "queries": "100", "difference": "0.002", "only_first": one, "only_second": other}
            | ends
            | {"verdict": "not significant"}
            for one, other in counts
        ],
    )
    score(path, family=("agent",))
    few, none, enough = read(path)
    assert (few["difference_low"], few["difference_high"], few["p_value"], few["p_holm"]) == ("", "", "", "")
    assert few["verdict"] == "too few queries to tell"
    assert (none["difference_low"], none["p_value"], none["verdict"]) == ("", "1.0", "not significant")
    # Two p-values are left to adjust, of which 0.5 is the lower one.
    assert (enough["difference_low"], enough["p_value"], enough["p_holm"]) == ("0.0", "0.5", "1.0")
