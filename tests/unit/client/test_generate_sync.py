"""The sync SDK is generated from the async one, and a difference is found."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "clients" / "python" / "generate_sync.py"

ASYNC = '''"""Ask with an event loop. ``_sync`` is generated from it: ``make sdk``."""

from collections.abc import AsyncIterator

from evenmesh._async.adapter import call


class AsyncAsker:
    """Asks; see :meth:`evenmesh.AsyncClient.ask`."""

    async def parts(self) -> AsyncIterator[str]:
        """Yield the parts of an answer."""
        async for part in call(self):
            yield part

    async def all(self) -> list[str]:
        """Return all of them."""
        async with AsyncAsker() as other:
            return [part async for part in other.parts()]
'''
SYNC = '''# Generated from _async by generate_sync.py (make sdk). Do not edit.
"""Ask without an event loop."""

from collections.abc import Iterator

from evenmesh._sync.adapter import call


class Asker:
    """Asks; see :meth:`evenmesh.Client.ask`."""

    def parts(self) -> Iterator[str]:
        """Yield the parts of an answer."""
        yield from call(self)

    def all(self) -> list[str]:
        """Return all of them."""
        with Asker() as other:
            return list(other.parts())
'''


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script over a package of its own, with one module to generate and one by hand."""
    spec = importlib.util.spec_from_file_location("generate_sync", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PACKAGE", tmp_path)
    for side in ("_async", "_sync"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "adapter.py").write_text(f"# by hand: {side}\n")
    (tmp_path / "_async" / "asking.py").write_text(ASYNC)
    return module


def test_async_words_become_sync_ones(script: ModuleType, tmp_path: Path) -> None:
    assert script.main(check=False) == 0
    assert (tmp_path / "_sync" / "asking.py").read_text() == SYNC
    assert script.main(check=True) == 0


def test_what_is_written_by_hand_stays(script: ModuleType, tmp_path: Path) -> None:
    script.main(check=False)
    assert (tmp_path / "_sync" / "adapter.py").read_text() == "# by hand: _sync\n"


def test_a_check_names_what_is_missing_or_changed_and_writes_nothing(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(check=True) == 1
    assert "asking.py out of date: make sdk" in capsys.readouterr().err
    assert not (tmp_path / "_sync" / "asking.py").exists()
    script.main(check=False)
    (tmp_path / "_sync" / "asking.py").write_text(SYNC.replace("Asker", "Other"))
    assert script.main(check=True) == 1
    assert "asking.py out of date" in capsys.readouterr().err


def test_a_module_that_is_gone_is_found_and_removed(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "_sync" / "gone.py").write_text("")
    assert script.main(check=True) == 1
    assert "asking.py, gone.py out of date" in capsys.readouterr().err
    script.main(check=False)
    assert sorted(path.name for path in tmp_path.rglob("*.py") if path.parent.name == "_sync") == [
        "adapter.py",
        "asking.py",
    ]


def test_a_run_leaves_no_other_files(script: ModuleType, tmp_path: Path) -> None:
    script.main(check=True)
    assert {path.name for path in tmp_path.iterdir()} == {"_async", "_sync"}
