"""The tables of docs/studies/votes.md, from its plan and the stored records; a test compares them.

``python -m benchmarks.vote_study.tables`` searches the weights, computes the CSV files from the records and
writes the tables into the page; half a minute.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import csv_rows
from benchmarks.page import fill, table
from benchmarks.shown import adjusted, p_value
from benchmarks.two_readers import READERS
from benchmarks.vote_study import measures
from benchmarks.vote_study.measures import EQUAL, LEARNED, PERFECT, Answered, Weights
from benchmarks.vote_study.records import OUT, read
from benchmarks.vote_study.sets import SETS
from evenmesh_core.proportions import wilson_interval
from evenmesh_lab.files.plans import described, read_plan

BOTH: Final = "both"
REFUTED: Final = 0.01
"""V1 and V4 are refuted where the upper end of the interval is below this."""
HEADROOM: Final = 0.03
"""Points that V2 asks of a perfect vote, as a share."""
CONSISTENT: Final = 0.9
"""Share of the pairs that V3 asks."""
CHANCE: Final = 0.05
RECOMMENDED, BEST, READER = "recommended", "best on test", "one reader"
METRIC, VOTER = "metric", "voter"

Row = Mapping[str, str]


Place = tuple[str, str]
"""A data set and a reader, or both."""


def summarize(to: Path = OUT, weights: Mapping[Place, Weights] | None = None) -> None:
    """Compute the CSV files from the records, and write them into a folder.

    Args:
        to: the folder.
        weights: learned weights by data set and reader, as :func:`stored`; None: they are searched.
    """
    learned = dict(weights or {})
    singles: list[dict[str, Any]] = []
    votes: list[dict[str, Any]] = []
    compared: list[dict[str, Any]] = []
    pools: list[dict[str, Any]] = []
    pairs: list[dict[str, Any]] = []
    lost: list[dict[str, Any]] = []
    for data in SETS:
        rows = {reader: some for reader in READERS if (some := read(data, reader))}
        of_reader: dict[str, measures.Voted] = {}
        for reader, some in rows.items():
            place = {"data": data, "reader": reader}
            found = Answered.of({reader: some})
            singles += [place | one for one in measures.single(found)]
            pairs.append(place | measures.inconsistency(data, found))
            lost.append(place | measures.outvoted(found, some))
            pools += [
                place | {"size": size, "accuracy": one} for size, one in enumerate(measures.bounds(found), 1)
            ]
            of_reader[reader] = _votes(place, found, votes, learned)
            compared += _against_singles(place, found, of_reader[reader])
        if len(rows) == len(READERS):
            place = {"data": data, "reader": BOTH}
            found = Answered.of(rows)
            together = _votes(place, found, votes, learned)
            better = max(READERS, key=lambda one: of_reader[one].trained)
            one, other = together.right, of_reader[better].right
            if len(one) == len(other):
                compared.append(place | {"against": READER, "name": better} | measures.against(one, other))
    for name, some_rows in (
        ("retrievers", singles),
        ("votes", votes),
        ("comparisons", compared),
        ("bounds", pools),
        ("pairs", pairs),
        ("outvoted", lost),
        ("weights", _rows(learned)),
    ):
        csv_rows.write(to / f"{name}.csv", some_rows)


def stored(folder: Path = OUT) -> dict[Place, Weights]:
    """Return the learned weights of a folder's ``weights.csv``, by data set and reader."""
    given: dict[Place, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in csv_rows.read(folder / "weights.csv"):
        given[row["data"], row["reader"]][row["of"]].append(float(row["weight"]))
    return {place: Weights(*(np.array(one[of]) for of in (METRIC, VOTER))) for place, one in given.items()}


def _rows(learned: Mapping[Place, Weights]) -> list[dict[str, Any]]:
    """Return a row for each weight, with all its digits."""
    return [
        {"data": data, "reader": reader, "of": of, "place": place, "weight": repr(weight)}
        for (data, reader), one in learned.items()
        for of, some in ((METRIC, one.metrics), (VOTER, one.voters))
        for place, weight in enumerate(some.tolist())
    ]


def _votes(
    place: Mapping[str, str], found: Answered, rows: list[dict[str, Any]], learned: dict[Place, Weights]
) -> measures.Voted:
    """Add a row for each kind of weights, learn those that are not known, and return the vote with them."""
    key = place["data"], place["reader"]
    if key not in learned:
        learned[key] = Weights.learned(found)
    outcomes = {
        name: measures.voted(found, weights)
        for name, weights in ((LEARNED, learned[key]), (EQUAL, Weights.equal(found)))
    }
    for weights, one in outcomes.items():
        rows.append(
            {
                **place,
                "weights": weights,
                "questions": len(one.right),
                "right": int(one.right.sum()),
                "exact": int(one.exact.sum()),
                "trained": one.trained,
            }
        )
    return outcomes[LEARNED]


def _against_singles(
    place: Mapping[str, str], found: Answered, outcome: measures.Voted
) -> list[dict[str, Any]]:
    right = found.right[found.test]
    chosen, best = measures.recommended(found), measures.best_on_test(found)
    return [
        {**place, "against": against, "name": found.names[one], "vote": vote}
        | measures.against(mine, right[:, one])
        for against, one, vote, mine in (
            (RECOMMENDED, chosen, LEARNED, outcome.right),
            (BEST, best, LEARNED, outcome.right),
            (BEST, best, PERFECT, np.any(right, axis=1)),
        )
    ]


def accuracy(
    retrievers: Sequence[Row], votes: Sequence[Row], compared: Sequence[Row]
) -> list[dict[str, str]]:
    """Return accuracies of the single retrievers that comparisons name, and of the votes."""
    chosen = {(row["data"], row["reader"], row["name"]): row["against"] for row in reversed(compared)}
    found = []
    for row in [*retrievers, *votes]:
        name = row.get("voter")
        which = chosen.get((row["data"], row["reader"], name or ""))
        if name is not None and which is None:
            continue
        found.append(
            {
                "data": row["data"],
                "reader": row["reader"],
                "answers": name or f"**vote, {row['weights']} weights**",
                "which is": which or "",
                "questions": row["questions"],
                "right": _share(row["right"], row["questions"]),
                "exact match": _share(row["exact"], row["questions"]),
                "mean lose ratio": _per_cent(row["mean_lose_ratio"]) if name else "",
            }
        )
    return sorted(found, key=lambda row: (row["data"], row["reader"]))


def gains(compared: Sequence[Row]) -> list[dict[str, str]]:
    """Return what votes gain over single retrievers, and over votes of one reader (V1 and V4)."""
    return [
        {
            "data": row["data"],
            "reader": row["reader"],
            "the vote against": f"{row['name']} ({row['against']})",
            "difference, points": _points(row),
            "right alone": f"{row['only_first']} / {row['only_second']}",
            "p, Holm": p_value(p),
            "": verdict(row, p) if row["against"] != BEST else "",
        }
        for row, p in _adjusted(compared)
    ]


def verdict(row: Row, p: float) -> str:
    """Return whether a vote is better: holds, refuted, or open."""
    if float(row["difference"]) > 0 and p < CHANCE:
        return "holds"
    return "refuted" if float(row["high"]) < REFUTED else "open"


def headroom(bounds: Sequence[Row], compared: Sequence[Row]) -> list[dict[str, str]]:
    """Return what a perfect vote would gain (V2)."""
    by_place: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in bounds:
        by_place[row["data"], row["reader"]].append(row)
    found = []
    for row in compared:
        if row.get("vote") != PERFECT:
            continue
        of_size = {one["size"]: _per_cent(one["accuracy"]) for one in by_place[row["data"], row["reader"]]}
        low, high = float(row["low"]), float(row["high"])
        found.append(
            {
                "data": row["data"],
                "reader": row["reader"],
                **{f"a perfect vote of {size}": of_size[size] for size in ("1", "2", "4", "8", "12")},
                "of all − best single, points": _points(row),
                "V2": "holds" if low > HEADROOM else "fails" if high < HEADROOM else "open",
            }
        )
    return found


def inconsistent(pairs: Sequence[Row]) -> list[dict[str, str]]:
    """Return how often one retriever is right where another is wrong (V3)."""
    return [
        {
            "data": row["data"],
            "reader": row["reader"],
            "ordered pairs": row["pairs"],
            "least": _per_cent(row["least"]),
            "middle": _per_cent(row["middle"]),
            "most": _per_cent(row["most"]),
            f"above {100 * measures.RARE:g} %": row["above"],
            "V3": "holds" if int(row["above"]) >= CONSISTENT * int(row["pairs"]) else "fails",
        }
        for row in pairs
    ]


def outvoted(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return how voters stand where the equal vote is wrong though one of them is right."""
    return [
        {
            "data": row["data"],
            "reader": row["reader"],
            "questions": row["outvoted"],
            "voters with the same wrong answer": f"{float(row['same_wrong']):g}",
            "voters that are right": f"{float(row['right']):g}",
            "the wrong ones are more": row["wrong_are_more"],
        }
        for row in rows
    ]


def tables(folder: Path = OUT) -> dict[str, str]:
    """Return every table of the page by its name there."""
    retrievers, votes, compared, bounds, pairs, lost = (
        csv_rows.read(folder / f"{name}.csv")
        for name in ("retrievers", "votes", "comparisons", "bounds", "pairs", "outvoted")
    )
    asked = {
        data: min((int(row["questions"]) for row in votes if row["data"] == data), default=0) for data in SETS
    }
    return {
        "plan": described(read_plan(OUT / "plan.toml"), asked),
        "accuracy": table(accuracy(retrievers, votes, compared)),
        "gains": table(gains(compared)),
        "headroom": table(headroom(bounds, compared)),
        "inconsistent": table(inconsistent(pairs)),
        "outvoted": table(outvoted(lost)),
    }


def main() -> None:
    """Compute the numbers, and write the tables into the page."""
    summarize()
    fill(OUT.with_suffix(".md"), tables())


def _share(right: str, questions: str) -> str:
    low, high = wilson_interval(int(right), int(questions))
    return f"{100 * int(right) / int(questions):.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _per_cent(value: str) -> str:
    return f"{100 * float(value):.1f}"


def _points(row: Row) -> str:
    value, low, high = (
        f"{100 * float(row[name]):.1f}".replace("-", "−") for name in ("difference", "low", "high")
    )
    return f"{value} [{low}, {high}]"


def _adjusted(rows: Sequence[Row]) -> list[tuple[Row, float]]:
    """Return the comparisons of learned votes, with p-values adjusted for all of the same claim."""
    found: list[tuple[Row, float]] = []
    for against in (RECOMMENDED, BEST, READER):
        found += adjusted([row for row in rows if row["against"] == against and row.get("vote") != PERFECT])
    return found


if __name__ == "__main__":
    main()
