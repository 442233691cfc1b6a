"""Names that others choose neither break a figure nor become formulas of a spreadsheet."""

import re
from pathlib import Path

import pytest

from evenmesh_lab.figures import style
from evenmesh_lab.files.cells import inert


def test_a_name_with_dollars_is_drawn_as_it_is() -> None:
    with style.styled():
        made, axes = style.figure()
        axes.set_title("$x^{$")
        assert style.to_bytes(made, "svg")


@pytest.mark.parametrize("cell", ["=1+1", "+A1", "-A1", "@SUM(A1)", "\tx", "\rx", "\nx"])
def test_a_text_that_begins_like_a_formula_is_written_as_text(cell: str) -> None:
    assert inert(cell) == f"'{cell}"


@pytest.mark.parametrize("cell", ["-1.5", -1.5, 3, "", "Rhine"])
def test_numbers_and_other_texts_stay(cell: object) -> None:
    assert inert(cell) == cell  # type: ignore[arg-type]


def test_whatever_writes_csv_makes_its_cells_inert() -> None:
    """Each call that writes rows maps texts with ``inert``, or writes rows that were read from a file."""
    root = Path(__file__).parents[4]
    found = []
    for room in ("clients", "libs", "mesh", "models", "orchestrator", "services", "studies", "training"):
        for path in (root / room).rglob("evenmesh*/**/*.py"):
            text = path.read_text(encoding="utf-8")
            if "csv.writer(" in text or "DictWriter(" in text:
                found.append(path.name)
                assert "import inert" in text, path
                assert re.search(r"writerow\(.*\binert\b", text), path
    assert "files.py" in found
    assert "record.py" in found
