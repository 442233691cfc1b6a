"""Makes of squad-open (dev) and nq-passages (QED) what `evenmesh ingest` and `evenmesh eor` take.

python prepare.py SHARED OUT
"""

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a gzipped file of JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        yield from map(json.loads, stream)


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    """Objects as JSON lines."""
    text = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in lines)
    path.write_text(text, encoding="utf-8")


def main(shared: Path, out: Path) -> None:
    """Writes passages of each source and of both, and questions with answers; those of QED whose annotators
    found the answer wrong ("none") are left out."""
    out.mkdir(parents=True, exist_ok=True)
    sources = {
        "squad": ("squad-open/passages.dev.jsonl.gz", "squad-open/questions.dev.jsonl.gz"),
        "nq": ("nq-passages/passages.jsonl.gz", "nq-passages/questions.jsonl.gz"),
    }
    both: list[dict[str, Any]] = []
    for name, (passages, questions) in sources.items():
        mine = [
            {"id": one["id"], "title": one["title"], "text": one["text"]} for one in rows(shared / passages)
        ]
        write(out / f"{name}-passages.jsonl", mine)
        both += mine
        asked = [
            {"query_id": one["id"], "question": one["question"], "references": one["answers"]}
            for one in rows(shared / questions)
            if one["answers"] and one.get("explanation_type") != "none"
        ]
        write(out / f"{name}.jsonl", asked)
    write(out / "wiki-passages.jsonl", both)


main(Path(sys.argv[1]), Path(sys.argv[2]))
