"""The card says what was measured, and leaves no blank."""

from __future__ import annotations

from typing import Any

from evenmesh_lab.files.agent_runs import AgentRunRecord
from evenmesh_training.bundled.reranker_card import card

WARM: dict[str, Any] = {
    "steps": 1200,
    "batch_size": 16,
    "negatives": 2,
    "articles_left_out": 48,
    "learning_rate": 8e-5,
    "max_length": 144,
    "seed": 23,
}
MEASURED: dict[str, Any] = {
    "questions": 1000,
    "depth": 20,
    "bm25 ndcg@10": [0.8, 0.7, 0.9],
    "bm25 recall@5": [0.9, 0.85, 0.95],
    "reranked ndcg@10": [0.85, 0.8, 0.9],
    "reranked recall@5": [0.95, 0.9, 0.99],
}


def test_numbers_are_where_they_belong() -> None:
    def run(model_id: str, system: str, utility: float | None) -> AgentRunRecord:
        return AgentRunRecord(
            task_id="qa", model_id=model_id, query_id="q", system=system, ranking=["p"], utility=utility
        )

    runs = [run("a", "bm25", 1.0), run("b", "bm25", 0.0), run("a", "urag", 1.0), run("b", "urag", None)]
    text = card(14_500_000, 192, WARM, runs, [MEASURED, MEASURED | {"depth": 100, "kendall_tau": 0.99125}])
    assert "(14.5 MB)" in text
    assert "| 1,000 | 20 | reranked | 0.850 (0.800 to 0.900) | 0.950 (0.900 to 0.990) |" in text
    assert "float32, 100 candidates: 0.9912." in text or "float32, 100 candidates: 0.9913." in text
    assert "| bm25 | – | 1.000 | 0.000 | 0.500 |" in text
    assert "| urag | – | 1.000 | – | 1.000 |" in text
    assert "1,200 steps of 16 pairs" in text
    assert "at most 192 tokens" in text
    assert "reader" not in text
    assert "qa-span" in card(14_500_000, 192, WARM | {"reader_sha256": "6b82"}, runs, [MEASURED])
    assert "$" not in text
