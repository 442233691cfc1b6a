"""Make the tables of an audit's utility study again, from its rows.

    python examples/studies/utility_tables.py docs/studies/fair-rag/utility.csv -k 5

Read the rows of a report, one for each query, system and α, compute intervals, curves, areas and levels of
fairness with today's statistics, and write the tables beside the rows. Nothing is generated or measured.
"""

import argparse
import csv
from pathlib import Path

from evenmesh_lab.reports.files import write_csv
from evenmesh_lab.studies.utility import UtilityRow, study_of


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path, help="MODEL-utility.csv of a report")
    parser.add_argument("-k", type=int, required=True, help="passages that the generator was given")
    given = parser.parse_args()
    with given.rows.open(encoding="utf-8", newline="") as stream:
        rows = [_row(one) for one in csv.DictReader(stream)]
    study = study_of(rows, k=given.k, longest=given.k)
    for path in write_csv(study.tables(), given.rows):
        print(path)


def _row(one: dict[str, str]) -> UtilityRow:
    def number(name: str) -> float:
        return float(one[name]) if one[name] else float("nan")

    return UtilityRow(
        query_id=one["query_id"],
        system=one["system"],
        alpha=float(one["alpha"]) if one["alpha"] else None,
        num_rankings=int(one["rankings"]),
        num_unanswered=int(one["unanswered"]),
        eu=number("eu"),
        u_max=number("u_max"),
        eu_norm=number("eu_norm"),
        ee_d_norm=number("ee_d_norm"),
        ee_r_norm=number("ee_r_norm"),
    )


if __name__ == "__main__":
    main()
