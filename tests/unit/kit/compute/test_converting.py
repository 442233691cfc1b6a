"""Conversions by another process: made once for the same files and settings, and failing with a reason."""

import sys
from pathlib import Path

import pytest

from evenmesh_kit.compute import converting
from evenmesh_kit.compute.conversions import Conversions
from evenmesh_kit.compute.cpu_engine import EngineError

WRITES = """
import json, pathlib, sys
given = json.load(sys.stdin)
if given["word"] == "wrong":
    print("the word is wrong")
    sys.exit(1)
if given["word"] == "torn":
    raise SystemError("torn apart")
pathlib.Path(given["folder"], "word").write_text(given["word"])
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's folder, and on the path the module ``writes``."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "writes.py").write_text(WRITES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    # A package's version is part of a conversion's name, whether or not it is installed here.
    monkeypatch.setattr(converting, "_CONVERTED_BY", ("numpy",))
    (tmp_path / "model" / "inside").mkdir(parents=True)
    (tmp_path / "model" / "inside" / "weights").write_bytes(b"1")
    return tmp_path / "model"


def test_the_same_files_and_settings_are_converted_once(tmp_path: Path, source: Path) -> None:
    kept = Conversions(tmp_path / "kept")

    def made(word: str, version: str = "1") -> Path:
        return converting.conversion(kept, "writes", source, {"word": word}, version=version)

    first = made("a")
    assert (first / "word").read_text() == "a"
    before = (first / "word").stat().st_mtime_ns
    assert made("a") == first
    assert (first / "word").stat().st_mtime_ns == before
    others = [made("b"), made("a", "2")]
    (source / "inside" / "weights").write_bytes(b"2")
    others.append(made("a"))
    assert len({first, *others}) == 4


@pytest.mark.parametrize(("word", "why"), [("wrong", "^the word is wrong$"), ("torn", "torn apart$")])
def test_what_cannot_be_converted_says_why(tmp_path: Path, source: Path, word: str, why: str) -> None:
    with pytest.raises(EngineError, match=why):
        converting.conversion(Conversions(tmp_path / "kept"), "writes", source, {"word": word}, version="1")
    assert not list((tmp_path / "kept").iterdir())


def test_a_conversion_that_cannot_be_kept_says_so(tmp_path: Path, source: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(EngineError, match="its conversion cannot be kept"):
        converting.conversion(
            Conversions(tmp_path / "file" / "kept"), "writes", source, {"word": "a"}, version="1"
        )


def test_it_runs_with_this_python(tmp_path: Path, source: Path) -> None:
    (tmp_path / "modules" / "writes.py").write_text(
        "import json, sys\njson.load(sys.stdin)\nprint(sys.executable)\nsys.exit(3)\n"
    )
    with pytest.raises(EngineError, match=sys.executable):
        converting.convert("writes", {}, tmp_path)
