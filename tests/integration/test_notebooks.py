"""A notebook runs on the real mesh, and says what it is stored with."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import RunningMesh

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(900)]
nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")

NOTEBOOKS = Path(__file__).parents[2] / "examples/notebooks"


def kinds(notebook: Any) -> list[list[tuple[str, list[str]]]]:
    """The kinds of the outputs of each cell of code."""
    return [
        [(one.output_type, sorted(one.get("data", {}))) for one in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


# The others train models, or ask as much again: `make notebooks` executes all five.
@pytest.mark.parametrize("name", ["conversation"])
def test_a_notebook_runs_as_it_is_stored(
    mesh: RunningMesh, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENMESH_HOME", str(mesh.home))
    monkeypatch.syspath_prepend(str(NOTEBOOKS))
    from execute import executed

    path = NOTEBOOKS / f"{name}.ipynb"
    assert kinds(executed(path)) == kinds(nbformat.read(path, as_version=4))
    sys.modules.pop("execute", None)
