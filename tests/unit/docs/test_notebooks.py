"""The notebooks are stored as they were executed, and their pages have all of it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")

ROOT = Path(__file__).parents[3]
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))
FIVE = ["conversation", "ensemble", "first_audit", "learning_from_agents", "training_rankrag"]


def test_there_are_five() -> None:
    assert [path.stem for path in NOTEBOOKS] == FIVE


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_was_executed_from_the_first_cell_to_the_last(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [one for cell in code for one in cell.outputs]
    assert {one.output_type for one in outputs} <= {"execute_result", "display_data", "stream"}
    assert any("image/svg+xml" in one.get("data", {}) for one in outputs)
    text = path.read_text(encoding="utf-8")
    assert tempfile.gettempdir() not in text
    assert len(text) < 400_000


def test_a_page_has_the_cells_and_their_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs/site"))
    import notebook_pages

    path = ROOT / "examples/notebooks/first_audit.ipynb"
    page, text, pictures = notebook_pages.pages(ROOT)[path]
    assert page == "notebooks/first-audit.md"
    assert text.startswith("# A first audit\n")
    for cell in nbformat.read(path, as_version=4).cells[1:]:
        assert cell.source in text
    assert pictures
    assert all(f"]({name})" in text for name in pictures)
    assert "<table" in text
    sys.modules.pop("notebook_pages", None)
