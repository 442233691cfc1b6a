"""The agents' queries, each with an ask's candidates and what is known of them before anything is learned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.rerank_table import judged_sets
from benchmarks.rerank_table.scoring import FirstStages, standardized
from evenmesh_reranker.backends.encoder import Encoder
from evenmesh_reranker.domain import Agent, Passage
from evenmesh_training.online.replay import Query

AGENTS: Final = ("nfcorpus", "cranfield", "bioasq", "doc2dial")
"""An agent for each data set of which the model that ships was trained on no question."""
MOST: Final = 320
"""Queries of an agent."""
CANDIDATES: Final = 20
"""Passages that an ask without options reranks."""


@dataclass(frozen=True)
class Asked:
    """A query of an agent.

    Attributes:
        id: of the query in its data set.
        query: with candidates, first-stage scores and usefulness.
        scores: what the model that ships scores each candidate, [0, 1].
    """

    id: str
    query: Query
    scores: tuple[float, ...]


def score(agent: str, model: Encoder, home: Path) -> None:
    """Find an agent's queries' candidates, and score them; those in the file are kept."""
    judged = judged_sets.load(agent, MOST)
    known = {one.id for one in read(agent, home)}
    missing = [one for one in judged.queries if one not in known]
    if not missing:
        return
    searched = FirstStages(judged, home)
    with _path(agent, home).open("a", encoding="utf-8") as lines:
        for id_ in missing:
            row = searched.found(id_)
            scores = standardized(row.bm25, row.dense)
            best = sorted(scores, key=lambda one: (-scores[one], one))[:CANDIDATES]
            found = [searched.passages[one] for one in best]
            passages = [Passage(one.id, one.title, one.text) for one in found]
            line = {
                "id": id_,
                "query": judged.queries[id_],
                "passages": [[one.id, one.title, one.text] for one in passages],
                "first": [scores[one] for one in best],
                "usefulness": [float(judged.judgements[id_].get(one, 0) > 0) for one in best],
                "scores": model.scores(judged.queries[id_], passages, Agent()),
            }
            lines.write(json.dumps(line, ensure_ascii=False) + "\n")
            lines.flush()


def read(agent: str, home: Path) -> list[Asked]:
    """Return an agent's queries that are in the file."""
    path = _path(agent, home)
    return list(_read(path)) if path.is_file() else []


def _path(agent: str, home: Path) -> Path:
    return home / f"{agent}.jsonl"


def _read(path: Path) -> Iterator[Asked]:
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            break  # the last line of a run that was stopped
        passages = tuple(Passage(*one) for one in row["passages"])
        query = Query(row["query"], passages, tuple(row["first"]), tuple(row["usefulness"]))
        yield Asked(row["id"], query, tuple(row["scores"]))
