"""How the bundled cross-encoder reads questions among other sentences: a table in docs/guides/reranking.md.

``python -m benchmarks.question_rankings`` scores the passages of the cases of
:mod:`benchmarks.question_stories` for a query as it stands, which is what the mesh does, for the sentences
that ask alone, and by the mean of both log-odds. It writes how often the passage that answers has the highest
score into the page.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np
import torch

from benchmarks import command
from benchmarks.history_turns import shown
from benchmarks.page import fill, table
from benchmarks.question_stories import AS_IT_STANDS, Case, cases
from evenmesh_core.arrays import FloatArray
from evenmesh_core.asking import asking_alone
from evenmesh_core.fusion import fused_log_odds
from evenmesh_kit.compute.conversions import Conversions
from evenmesh_lab.studies import Bootstrap
from evenmesh_reranker import bundled
from evenmesh_reranker.backends.loading import loader
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.models import pairs
from evenmesh_reranker.ports import LoadedModel

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "guides" / "reranking.md"
ASKING: Final = "what asks"
MEAN: Final = "mean of both"


def main() -> None:
    """Rank, and write the table into the page."""
    parser = command.parser("question_rankings", __doc__)
    parser.add_argument("--questions", type=int, default=200, help="of SQuAD; drawn")
    parser.add_argument("--home", type=Path, default=Path("build/question-rankings"), help="for the model")
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = loader(
        "cpu",
        "auto",
        engine="auto",
        threads=1,
        parallel=1,
        conversions=Conversions(given.home / "conversions"),
    ).full(bundled.assemble(given.home), "study", provenance="study", created_at=datetime.now(UTC))
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for case in cases(given.questions):
        for name, log_odds in readings(model, case).items():
            found[case.kind][name].append(float(np.argmax(log_odds) == 0))
    cells = [
        row(kind, {name: np.array(values) for name, values in of_kind.items()})
        for kind, of_kind in found.items()
    ]
    fill(PAGE, {"question rankings": f"{table(cells)}\n\nMeasured on {datetime.now(UTC):%Y-%m-%d}."})


def readings(model: LoadedModel, case: Case) -> dict[str, FloatArray]:
    """Return the log-odds of a case's passages by each reading; all are one if only questions are asked."""
    stands = _log_odds(model, case.question, case)
    alone = asking_alone(case.question)
    asks = stands if alone == case.question else _log_odds(model, alone, case)
    return {AS_IT_STANDS: stands, ASKING: asks, MEAN: (stands + asks) / 2}


def _log_odds(model: LoadedModel, query: str, case: Case) -> FloatArray:
    texts = [pairs.passage_text(title, text) for title, text in case.passages]
    read = model.rows(query, texts, Agent())
    scores = np.array(pairs.probabilities(model, read, [None] * len(read)))
    return fused_log_odds(scores, np.zeros(len(scores)), 0.0)


def row(kind: str, found: Mapping[str, FloatArray]) -> dict[str, str]:
    """Return a row of the table: the share of each reading, and the differences to the first."""
    cells = {"": kind, "questions": str(len(found[AS_IT_STANDS]))}
    cells |= {name: f"{found[name].mean():.3f}" for name in (AS_IT_STANDS, ASKING, MEAN)}
    for name in (ASKING, MEAN):
        gap = Bootstrap().paired(f"{kind} {name}", found[name], found[AS_IT_STANDS]).difference
        cells[f"{name} − {AS_IT_STANDS}"] = shown(gap)
    return cells


if __name__ == "__main__":
    main()
