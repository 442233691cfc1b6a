"""Execute notebooks in place, in a folder of their own: ``python examples/notebooks/execute.py [NAME]...``.

They ask the mesh that runs on this machine (``evenmesh up``), which has the demo collection.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
SECONDS = 1_500
"""Longest cell."""


def executed(path: Path) -> Any:
    """Return a notebook with the outputs of a new kernel, without what changes from run to run.

    Raises:
        CellExecutionError: a cell fails; its text has the error.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory(prefix="evenmesh-") as folder:
        NotebookClient(
            notebook,
            timeout=SECONDS,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": folder}},
        ).execute()
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        # Progress of libraries is no result.
        cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    notebook.metadata = {
        "kernelspec": notebook.metadata["kernelspec"],
        "language_info": {"name": "python"},
    }
    return notebook


def main(names: list[str]) -> None:
    """Execute the notebooks of these names; all without any."""
    paths = [HERE / f"{name}.ipynb" for name in names] or sorted(HERE.glob("*.ipynb"))
    for path in paths:
        print(f"executing {path.name}", flush=True)
        nbformat.write(executed(path), path)


if __name__ == "__main__":
    main(sys.argv[1:])
