"""Files of utility labels."""

from pathlib import Path

import pytest

from evenmesh_core.intervals import BootstrapInterval
from evenmesh_lab.files import FileError, GainRecord, blank_ids, read_gains, write_qrels
from evenmesh_lab.studies import gains as study


def _gain(query: str, passage: str, utility: float | None, baseline: float = 0.25) -> GainRecord:
    return GainRecord(query_id=query, passage_id=passage, baseline=baseline, utility=utility)


def test_only_a_gain_above_nothing_is_useful() -> None:
    assert [_gain("q", "p", utility).useful for utility in (0.2, 0.25, 0.3, None)] == [
        False,
        False,
        True,
        None,
    ]


def test_a_passage_that_comes_twice_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "g.jsonl"
    path.write_text((_gain("q", "p", 1.0).model_dump_json(exclude_none=True) + "\n") * 2)
    with pytest.raises(FileError, match=":2: has 'p' for query 'q' again"):
        read_gains(path)


def test_blanks_cannot_stand_in_qrels(tmp_path: Path) -> None:
    gains = [_gain("q", "a page:1", 1.0), _gain("q", "p", 1.0), _gain("q 2", "p", 0.0)]
    assert blank_ids(gains) == ["a page:1", "q 2"]
    with pytest.raises(ValueError, match="white space"):
        write_qrels(gains, tmp_path / "l.qrels")
    assert list(tmp_path.iterdir()) == []


def test_the_table_counts_what_is_useful() -> None:
    gains = [_gain("q1", "a", 1.0), _gain("q1", "b", 0.5), _gain("q1", "c", None), _gain("q2", "a", 0.0)]
    (row,) = study.table({"m": gains}).rows
    model, queries, passages, useful, several, baseline, best, unknown = row
    assert (model, queries, several, unknown) == ("m", 2, 1, 1)
    assert (passages.value, useful.value) == ((3 + 1) / 2, (2 + 0) / 2)  # type: ignore[union-attr]
    assert (baseline.value, best.value) == (0.25, (1.0 + 0.0) / 2)  # type: ignore[union-attr]


def test_means_of_utilities_above_1_lie_in_their_intervals() -> None:
    """Those of LaMP-3 reach 4: the answers without passages have 2 or 3, the best 3 or 4."""
    gains = [_gain(f"q{at}", "a", 3.0 + at % 2, 2.0 + at % 2) for at in range(20)]
    ((*_, baseline, best, _),) = study.table({"m": gains}).rows
    for found, mean in ((baseline, 2.5), (best, 3.5)):
        assert isinstance(found, BootstrapInterval)
        assert found.low < found.value == mean < found.high
