"""``python -m benchmarks.rerank_table.gate``: write the questions of the gate for promotions."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.rerank_table import judged_sets, table
from benchmarks.rerank_table.scoring import score, standardized
from evenmesh_core.fusion import standardized as brought

_OUT: Final = Path(__file__).resolve().parents[2] / "training" / "evenmesh_training" / "ium" / "gate.json.gz"
_CHARACTERS: Final = 1200
"""More than the bundled model reads of a passage."""


def main() -> int:
    """Write the file; print its size."""
    judged = judged_sets.load("own-docs", 1000)
    texts = {one.id: one for one in judged.passages}
    passages: dict[str, list[str]] = {}
    questions: list[dict[str, Any]] = []
    for query, row in score(judged, Path("build/rerank-table")).items():
        first = standardized(row.bm25, row.dense)
        best = sorted(first, key=lambda one: (-first[one], one))[: table.ASKED]
        scores = np.array([first[one] for one in best])
        for id_ in best:
            passages.setdefault(id_, [id_, texts[id_].title, texts[id_].text[:_CHARACTERS]])
        places = list(passages)
        questions.append(
            {
                "query": judged.queries[query],
                "candidates": [places.index(one) for one in best],
                "first": [round(one, 4) for one in brought(scores, scores).tolist()],
                "relevant": sorted(judged.judgements[query]),
            }
        )
    data = json.dumps({"passages": list(passages.values()), "questions": questions}, ensure_ascii=False)
    _OUT.write_bytes(gzip.compress(data.encode(), mtime=0))
    sys.stdout.write(f"{len(questions)} questions, {len(passages)} passages, {_OUT.stat().st_size:,} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
