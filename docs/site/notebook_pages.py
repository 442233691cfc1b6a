"""Pages of the executed notebooks: their text, their code, and the outputs that they are stored with."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import nbformat

FOLDER = "notebooks"

_STYLE = re.compile(r"<style.*?</style>", re.DOTALL)
_FRAME = re.compile(r"\s*<div>|</div>\s*")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def pages(root: Path) -> dict[Path, tuple[str, str, dict[str, bytes]]]:
    """Return page, text and pictures of each notebook."""
    return {path: _page(path) for path in sorted((root / "examples/notebooks").glob("*.ipynb"))}


def page_of(notebook: Path) -> str:
    """Return the page of a notebook."""
    return f"{FOLDER}/{notebook.stem.replace('_', '-')}.md"


def _page(path: Path) -> tuple[str, str, dict[str, bytes]]:
    name = path.stem.replace("_", "-")
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            parts.append(_shown(output, f"{name}-{len(pictures) + 1}", pictures))
    source = f"This page is the notebook `examples/notebooks/{path.name}`, as `make notebooks` executed it."
    first, _, rest = "\n\n".join(part for part in parts if part).partition("\n")
    return page_of(path), f"{first}\n\n*{source}*\n{rest}\n", pictures


def _shown(output: Any, picture: str, pictures: dict[str, bytes]) -> str:
    """Return an output as Markdown; put its picture into ``pictures``."""
    if output.output_type == "stream":
        return _plain(output.text)
    if output.output_type == "error":
        raise ValueError(f"a stored output is an error: {output.ename}: {output.evalue}")
    data = output.data
    if "image/svg+xml" in data:
        pictures[f"{picture}.svg"] = data["image/svg+xml"].encode()
        return f"![Figure of the cell above.]({picture}.svg)"
    if "image/png" in data:
        pictures[f"{picture}.png"] = base64.b64decode(data["image/png"])
        return f"![Figure of the cell above.]({picture}.png)"
    if "text/html" in data:
        return _table(data["text/html"])
    return _plain(data.get("text/plain", ""))


def _plain(text: str) -> str:
    text = _COLOUR.sub("", text).rstrip("\n")
    return f"```text\n{text}\n```" if text else ""


def _table(html: str) -> str:
    """Return a table of pandas as raw HTML in one piece, its styles on the page."""
    styles = "".join(_STYLE.findall(html)) if "<style scoped" not in html else ""
    table = _FRAME.sub("", _STYLE.sub("", html))
    table = re.sub(r'(<table) border="1" class="dataframe"', r"\1", table)
    return re.sub(r"\n\s*", " ", f'<div class="output" markdown="0">{styles}{table}</div>')
