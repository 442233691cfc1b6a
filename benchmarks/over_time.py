"""Simulate asks over time on shared data: the utility and the unfairness of dial, program and controller.

``python -m benchmarks.over_time`` writes ``docs/studies/over-time/``. Nothing is generated: the utility of a
context is the share of judged passages that it could have and has. Exposure is exact, not sampled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import bm25s
import numpy as np

from benchmarks.shared_data import folder, rows
from evenmesh_core.arrays import FloatArray
from evenmesh_core.exposure_balance import ExposureBalance, balanced_weights, merit_shares
from evenmesh_core.group_shares import ShareBound, shares_policy
from evenmesh_core.intervals import student_interval
from evenmesh_core.near_duplicates import near_duplicates
from evenmesh_core.plackett_luce import inclusion_probabilities, log_weights, normalize_scores
from evenmesh_lab.figures.style import figure, finish, save, series, styled

ASKS: Final = 5_000
DEPTH: Final = 20
K: Final = 5
STEP: Final = 1_000
_OUT: Final = Path(__file__).resolve().parents[1] / "docs" / "studies" / "over-time"
_DIALS: Final = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)
_SLACKS: Final = (0.0, 0.5, 1.0, 2.0, 4.0)
_STRENGTHS: Final = (0.01, 0.05, 0.25)
_CONTROLLED_DIAL: Final = 8.0


@dataclass(frozen=True)
class Pool:
    """Candidates of one question: scores, providers, 1 for judged ones, and what each deserves."""

    scores: FloatArray
    providers: Sequence[str]
    useful: FloatArray
    merit: FloatArray


@dataclass(frozen=True)
class Outcome:
    """What a policy did: its setting, utility with interval, unfairness after each 1,000 asks."""

    policy: str
    setting: float
    utility: float
    low: float
    high: float
    unfairness: Sequence[float]


_Set = tuple[list[dict[str, Any]], dict[str, str], dict[str, set[str]]]
"""Passages with a provider, questions by id, and the ids of their useful passages."""


def _judged(name: str, passages: str, queries: str, question: str, provider: str) -> _Set:
    data = folder(name)
    useful: dict[str, set[str]] = {}
    for row in rows(data / "qrels.jsonl.gz"):
        if int(row["relevance"]) > 0:
            useful.setdefault(row["query_id"], set()).add(row["doc_id"])
    found = [{**row, "provider": row[provider]} for row in rows(data / passages)]
    return found, {row["id"]: row[question] for row in rows(data / queries)}, useful


def _nq_passages() -> _Set:
    data = folder("nq-passages")
    found = [{**row, "provider": row["title"]} for row in rows(data / "passages.jsonl.gz")]
    questions = rows(data / "questions.jsonl.gz")
    return (
        found,
        {row["id"]: row["question"] for row in questions},
        {row["id"]: set(row["gold_passage_ids"]) for row in questions},
    )


SETS: Final[dict[str, tuple[str, Callable[[], _Set]]]] = {
    "climate-fever": (
        "Wikipedia article",
        lambda: _judged("climate-fever", "passages.jsonl.gz", "claims.jsonl.gz", "claim", "provider"),
    ),
    "grep-biasir": (
        "gender",
        lambda: _judged("grep-biasir", "documents.jsonl.gz", "queries.jsonl.gz", "query", "group"),
    ),
    "nq-passages": ("Wikipedia article", _nq_passages),
}
"""What the provider is, and how to read it."""


def pools(found: _Set) -> list[Pool]:
    """Return the best 20 passages by BM25 of each question that has a useful one among them."""
    passages, questions, useful = found
    index = bm25s.BM25()
    texts = [f"{one['title']} {one['text']}" for one in passages]
    index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
    made = []
    for id_, question in questions.items():
        tokens = bm25s.tokenize([question], show_progress=False)
        places, scores = index.retrieve(tokens, k=DEPTH, show_progress=False)
        some = [passages[place] for place in places[0].tolist()]
        marks = np.array([float(one["id"] in useful.get(id_, ())) for one in some])
        if not marks.any():
            continue
        merit = merit_shares(
            normalize_scores(scores[0]) - 1.0, near_duplicates([one["text"] for one in some])
        )
        made.append(Pool(scores[0].astype(np.float64), [one["provider"] for one in some], marks, merit))
    return made


class Ledger:
    """Utility and exposure of a policy, ask by ask."""

    def __init__(self) -> None:
        self.balance = ExposureBalance()
        self.utilities: list[float] = []
        self.unfairness: list[float] = []

    def add(self, pool: Pool, inclusion: FloatArray) -> None:
        """Count one ask."""
        best = min(K, float(pool.useful.sum()))
        self.utilities.append(float(inclusion @ pool.useful) / best)
        self.balance = self.balance.added(pool.providers, pool.merit, np.clip(inclusion / K, 0.0, None))
        if len(self.utilities) % STEP == 0:
            apart = float(np.abs(self.balance.owed).sum()) / 2 / len(self.utilities)
            self.unfairness.append(apart)

    def outcome(self, policy: str, setting: float) -> Outcome:
        """Return what came of it."""
        found = student_interval(self.utilities)
        return Outcome(policy, setting, found.value, found.low, found.high, self.unfairness)


def simulate(asked: Sequence[Pool]) -> list[Outcome]:
    """Return what each policy does on the same asks in the same order."""
    made = []
    for dial in _DIALS:
        known: dict[int, FloatArray] = {}
        ledger = Ledger()
        for pool in asked:
            if id(pool) not in known:
                known[id(pool)] = inclusion_probabilities(log_weights(pool.scores, dial), k=K)
            ledger.add(pool, known[id(pool)])
        made.append(ledger.outcome("dial", dial))
    for slack in _SLACKS:
        known, ledger = {}, Ledger()
        for pool in asked:
            if id(pool) not in known:
                known[id(pool)] = _program(pool, slack)
            ledger.add(pool, known[id(pool)])
        made.append(ledger.outcome("program", slack))
    for strength in _STRENGTHS:
        ledger = Ledger()
        for pool in asked:
            offsets = ledger.balance.offsets(strength=strength, limit=0.5)
            moved = [offsets.get(one, 0.0) for one in pool.providers]
            weights = balanced_weights(pool.scores, moved, _CONTROLLED_DIAL)
            ledger.add(pool, inclusion_probabilities(weights, k=K))
        made.append(ledger.outcome("controller", strength))
    return made


def _program(pool: Pool, slack: float) -> FloatArray:
    """Return the exposure of a linear program: no provider above (1 + slack) times what it deserves."""
    bounds = []
    for provider in dict.fromkeys(pool.providers):
        members = [one == provider for one in pool.providers]
        share = float(pool.merit[members].sum())
        bounds.append(ShareBound(members, at_most=min(1.0, (1 + slack) * share)))
    return shares_policy(normalize_scores(pool.scores) - 1.0, bounds, k=K).inclusion


def main() -> None:
    """Simulate every set, write the figures and the numbers, and print the tables."""
    _OUT.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {}
    for name, (provider, read) in SETS.items():
        found = pools(read())
        order = np.random.default_rng(26).integers(0, len(found), size=ASKS)
        outcomes = simulate([found[place] for place in order.tolist()])
        _draw(name, outcomes)
        report[name] = {
            "questions": len(found),
            "provider": provider,
            "providers": len({one for pool in found for one in pool.providers}),
            "outcomes": [asdict(one) for one in outcomes],
        }
        print(f"\n{name}: {len(found)} questions, {report[name]['providers']} providers ({provider})\n")
        print(f"| policy | setting | utility | unfairness after {STEP:,} | after {ASKS:,} |")
        print("|---|---|---|---|---|")
        for one in outcomes:
            interval = f"{one.utility:.3f} ({one.low:.3f} to {one.high:.3f})"
            ends = f"{one.unfairness[0]:.3f} | {one.unfairness[-1]:.3f}"
            print(f"| {one.policy} | {one.setting:g} | {interval} | {ends} |")
    (_OUT / "outcomes.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _draw(name: str, outcomes: Sequence[Outcome]) -> None:
    with styled():
        made, axes = figure()
        for place, policy in enumerate(dict.fromkeys(one.policy for one in outcomes)):
            some = [one for one in outcomes if one.policy == policy]
            colour, marker = series(place)
            x = [one.unfairness[-1] for one in some]
            y = [one.utility for one in some]
            spread = [[one.utility - one.low for one in some], [one.high - one.utility for one in some]]
            axes.errorbar(x, y, yerr=spread, color=colour, marker=marker, markersize=4, label=policy)
        axes.margins(0.06)
        finish(made, axes, x=f"unfairness after {ASKS:,} asks", y="utility", numbers="xy")
    save(made, _OUT / f"{name}.svg")


if __name__ == "__main__":
    main()
