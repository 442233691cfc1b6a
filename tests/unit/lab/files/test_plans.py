"""Plans of studies: what is written is read, what is no plan is refused, and a page says what was asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenmesh_lab.files.failure import FileError
from evenmesh_lab.files.plans import described, read_plan

PLAN = """
title = "T"
question = "Is it so?"
registered = 2026-01-02
design = ["Two systems | one table."]
analysis = ["Student's intervals."]
[power]
measure = "F1"
difference = 0.5
deviation = 1.0
basis = "a guess"
[[data]]
name = "a"
queries = 34
which = "all"
[[data]]
name = "b"
queries = 5
which = "the first"
[[hypotheses]]
name = "H1"
claim = "It is so."
source = "ours"
decided = "By its p-value."
"""


def _written(folder: Path, text: str) -> Path:
    path = folder / "plan.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_page_says_what_was_planned_and_what_was_asked(tmp_path: Path) -> None:
    plan = read_plan(_written(tmp_path, PLAN))
    said = described(plan, {"a": 34, "b": 1})
    assert "takes 34 queries" in said
    assert "± 0.5 it takes 18" in said  # 2.1098 / √18 = 0.497; 2.1199 / √17 = 0.514
    assert "| a | 34 | 34 | 0.81 | all |" in said
    assert "| b | 5 | 1 | none | the first |" in said
    assert "- Two systems \\| one table." in said
    assert said.endswith("**Deviations from the plan.** None.")


def test_deviations_are_listed(tmp_path: Path) -> None:
    more = PLAN + '[[deviations]]\non = 2026-02-03\nwhat = "Only half was asked."\n'
    said = described(read_plan(_written(tmp_path, more)), {})
    assert said.endswith(
        "**Deviations from the plan.**\n\n- 2026-02-03: Only half was asked."
    )  # Markdown needs the line


def test_a_plan_that_was_written_afterwards_says_so(tmp_path: Path) -> None:
    text = PLAN.replace("registered = 2026-01-02", "registered = 2026-01-02\nafterwards = true")
    said = described(read_plan(_written(tmp_path, text)), {"a": 34, "b": 1})
    assert "Written on 2026-01-02, after the study: nothing of it was registered." in said
    assert "before anything was asked" not in said
    assert "Deviations" not in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("title = ", "is not TOML"),
        ("x = " + "[" * 5_000, "is not TOML"),
        (PLAN.replace('question = "Is it so?"\n', ""), "question: Field required"),
        (PLAN.replace("queries = 34", "queries = 0"), "data.0.queries: .*greater than or equal to 1"),
        (PLAN.replace('name = "b"', 'name = "a"'), "'a' is there twice"),
        (PLAN.replace("deviation = 1.0", "deviation = nan"), "power.deviation: .*finite number"),
        (PLAN.replace("difference = 0.5", "difference = 1e-9"), "power: .*more than 10000000"),
        (PLAN.replace("[power]", "[power]\nunknown = 1"), "power.unknown: Extra inputs"),
        (PLAN + '[[deviations]]\non = 2025-02-03\nwhat = "x"\n', "before the plan of 2026-01-02"),
        ("#" * 100_001, "has 100002 characters"),
    ],
)
def test_what_is_no_plan_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(FileError, match=said):
        read_plan(_written(tmp_path, text))


def test_a_missing_plan_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        read_plan(tmp_path / "none.toml")
