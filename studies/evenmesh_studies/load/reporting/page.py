"""Fill the measured parts of documentation pages, which stand between marks."""

import re
from pathlib import Path


def fill(path: Path, name: str, content: str) -> None:
    """Replace the text between ``<!-- NAME -->`` and ``<!-- /NAME -->``.

    Raises:
        ValueError: the page has no such marks.
        OSError: it cannot be read or written.
    """
    page = path.read_text(encoding="utf-8")
    marked = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)", re.DOTALL)
    if marked.search(page) is None:
        raise ValueError(f"{path} has no marks <!-- {name} --> and <!-- /{name} -->")
    new = marked.sub(lambda found: f"{found[1]}\n{content.strip()}\n\n{found[2]}", page, count=1)
    path.write_text(new, encoding="utf-8")
