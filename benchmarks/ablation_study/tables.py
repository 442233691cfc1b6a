"""The tables of docs/studies/ablations.md, from its plan and the stored records; a test compares them.

``python -m benchmarks.ablation_study.tables`` computes the CSV files from the records and writes the tables
into the page; some seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import csv_rows
from benchmarks.ablation_study import records
from benchmarks.ablation_study.measures import (
    BESIDE,
    BM25,
    CLAIMS,
    EXACT,
    F1,
    OWN,
    RECALL,
    Claim,
    compared,
    share,
    verdict,
)
from benchmarks.ablation_study.records import OUT
from benchmarks.ablation_study.sets import SETS
from benchmarks.ablation_study.variants import SEEDS, VARIANTS
from benchmarks.page import fill, table
from benchmarks.shown import interval, signed
from evenmesh_lab.files.plans import described, read_plan

FILES: Final = ("shares", "claims", "beside")
_ORDERS: Final = {"its own": OWN, "BM25's": BM25}
_MEAN: Final = "mean"


def asked() -> dict[str, dict[int, list[dict[str, Any]]]]:
    """Return the stored records by variant and seed; those that are there."""
    found: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(dict)
    for name in VARIANTS:
        for seed in SEEDS:
            if rows := records.read(name, seed):
                found[name][seed] = rows
    return found


def summarize(to: Path = OUT) -> None:
    """Compute the CSV files from the records, and write them into a folder."""
    known = asked()
    shares: list[dict[str, Any]] = []
    for name, rows in known.items():
        for order, measures in _ORDERS.items():
            for measure, of_row in measures.items():
                if measure != RECALL and not VARIANTS[name].reads:
                    continue
                of_set = share(rows, of_row)
                row = {"model": name, "order": order, "measure": measure, "seeds": len(rows)}
                of_seed = (_mean(share({seed: some}, of_row)) for seed, some in rows.items())
                by_seed = " ".join(f"{one:.4f}" for one in of_seed)
                shares.append(row | of_set | {_MEAN: _mean(of_set), "by_seed": by_seed})
    claims = [
        row | {"verdict": verdict(claim, row) if row["data"] == _MEAN else ""}
        for claim in CLAIMS
        for row in compared(known, claim)
    ]
    csv_rows.write(to / "shares.csv", shares)
    csv_rows.write(to / "claims.csv", claims)
    beside = [row for claim in BESIDE for row in compared(known, claim) if row["data"] == _MEAN]
    csv_rows.write(to / "beside.csv", beside)


def _mean(of_set: Mapping[str, float]) -> float:
    return sum(of_set.values()) / len(of_set)


def tables(folder: Path = OUT) -> dict[str, str]:
    """Return every table of the page by its name there."""
    shares, claims, beside = (csv_rows.read(folder / f"{name}.csv") for name in FILES)
    return {
        "plan": described(read_plan(OUT / "plan.toml"), _questions(claims)),
        "ranking": table(_shares(shares, RECALL)),
        "answers": table(_shares(shares, EXACT)),
        "F1": table(_shares(shares, F1)),
        "claims": table(_claims(claims)),
        "sets": table(_by_set(claims)),
        "beside": table(_beside(beside)),
    }


def _questions(claims: Sequence[Mapping[str, str]]) -> dict[str, int]:
    return {row["data"]: int(row["questions"]) for row in claims if row["data"] != _MEAN}


def _shares(rows: Sequence[Mapping[str, str]], measure: str) -> list[dict[str, str]]:
    """Return a row for each model and order; BM25's recall, which no model changes, once."""
    found, seen = [], False
    for row in rows:
        if row["measure"] != measure:
            continue
        ranks = measure == RECALL
        of_bm25 = ranks and row["order"] == "BM25's"
        if of_bm25 and seen:
            continue
        seen |= of_bm25
        found.append(
            {
                "model": "BM25" if of_bm25 else f"`{row['model']}`",
                **({} if ranks else {"five passages": row["order"]}),
                "seeds": "" if of_bm25 else row["seeds"],
                **{name: _per_cent(row[name]) for name in (*SETS, _MEAN)},
                **({"by seed": "" if of_bm25 else _per_cents(row["by_seed"])} if ranks else {}),
            }
        )
    return sorted(found, key=lambda row: row["model"] != "BM25")


def _per_cent(value: str) -> str:
    return f"{100 * float(value):.1f}"


def _per_cents(values: str) -> str:
    return " ".join(map(_per_cent, values.split()))


def _claims(rows: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    plan = {one.name: one for one in read_plan(OUT / "plan.toml").hypotheses}
    known = {row["claim"]: row for row in rows if row["data"] == _MEAN}
    found = []
    for name, one in plan.items():
        row = known.get(name)
        found.append(
            {
                "": name,
                "claim": one.claim.split(":", 1)[0],
                "seeds": row["seeds"] if row else "0",
                "difference": interval(row) if row else "",
                "by seed": " ".join(signed(value) for value in row["by_seed"].split()) if row else "",
                "verdict": row["verdict"] if row else "not asked yet",
            }
        )
    return found


def _beside(rows: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    known = {row["claim"]: row for row in rows}
    return [
        {
            "": one.name,
            "measure": one.measure if one.measure == RECALL else "answers",
            "the five passages of": f"{_named(one, one.one)}, against {_named(one, one.other)}",
            "seeds": known[one.name]["seeds"],
            "difference": interval(known[one.name]),
        }
        for one in BESIDE
        if one.name in known
    ]


def _named(claim: Claim, side: tuple[str, bool]) -> str:
    name, own = side
    answered = "" if claim.measure == RECALL else f", answered by `{name}`"
    return f"`{name}`'s own ranking" if own else f"BM25{answered}"


def _by_set(rows: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    of_claim: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        if row["data"] != _MEAN:
            of_claim[row["claim"]][row["data"]] = interval(row)
    return [{"": name, **{data: some[data] for data in SETS}} for name, some in of_claim.items()]


def main() -> None:
    """Compute the numbers, and write the tables into the page."""
    summarize()
    fill(OUT.with_suffix(".md"), tables())


if __name__ == "__main__":
    main()
