"""Names of a package are loaded when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenmesh.lazy_names import lazy_names


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package of two modules whose stub names three things."""
    folder = tmp_path / "lazy_example"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from evenmesh.lazy_names import lazy_names\n__getattr__, __all__ = lazy_names(__name__)\n"
    )
    (folder / "__init__.pyi").write_text(
        "import os\n"
        "from lazy_example.cheap import Small as Small\n"
        "from lazy_example.dear import Large as Large, second as second\n"
    )
    (folder / "cheap.py").write_text("class Small: ...\n")
    (folder / "dear.py").write_text("class Large: ...\n\n\ndef second() -> int:\n    return 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "lazy_example"
    for name in [name for name in sys.modules if name.partition(".")[0] == "lazy_example"]:
        del sys.modules[name]


def test_a_module_is_imported_when_a_name_of_it_is_used(package: str) -> None:
    import lazy_example  # type: ignore[import-not-found]

    assert not {"lazy_example.cheap", "lazy_example.dear"} & set(sys.modules)
    assert lazy_example.Small.__module__ == "lazy_example.cheap"
    assert "lazy_example.dear" not in sys.modules
    assert lazy_example.second() == 2
    from lazy_example import Large

    assert Large is sys.modules["lazy_example.dear"].Large


def test_all_are_the_names_that_the_stub_imports_from_modules_in_order(package: str) -> None:
    load, names = lazy_names(package)
    assert names == ["Large", "Small", "second"]
    assert [load(name).__name__ for name in names] == names  # type: ignore[attr-defined]


def test_an_unknown_name_is_an_attribute_error_that_names_the_package(package: str) -> None:
    load, _ = lazy_names(package)
    with pytest.raises(AttributeError, match="module 'lazy_example' has no attribute 'os'"):
        load("os")
    import lazy_example

    assert not hasattr(lazy_example, "other")


def test_every_public_name_of_the_client_can_be_loaded() -> None:
    load, names = lazy_names("evenmesh")
    assert names
    assert all(load(one) is not None for one in names)
