"""Files written as a test says them."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

Write = Callable[..., Path]
EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "eval"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file of lines (or bytes) and gives its path."""

    def written(name: str, *lines: str, content: bytes | None = None) -> Path:
        path = tmp_path / name
        data = content if content is not None else "".join(f"{line}\n" for line in lines).encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return written


@pytest.fixture
def examples() -> Path:
    """The example files that the documentation uses."""
    return EXAMPLES
