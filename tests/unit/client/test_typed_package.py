"""What type checkers need of the package, stubs included."""

from __future__ import annotations

from pathlib import Path

import evenmesh

PACKAGE = Path(evenmesh.__file__).parent


def test_every_folder_is_a_package() -> None:
    """Of a folder without ``__init__.py`` pyright reports in its strict mode that it has no stubs."""
    assert (PACKAGE / "py.typed").is_file()
    folders = {file.parent for file in PACKAGE.rglob("*.py")}
    assert PACKAGE / "orchestrator" / "v1" in folders
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []
