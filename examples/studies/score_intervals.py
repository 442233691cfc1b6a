"""Put score intervals and adjusted p-values in the tables of a report, from the counts that they hold.

    python examples/studies/score_intervals.py FILE.csv … [--share NAME …] [--size VALUE=N …]

Change tables in place. A row with a p-value of McNemar's test gets Tango's score interval of its difference,
from the counts of pairs that one system alone gets right (where the table has only the difference, they
follow from it and the p-value), and the p-value of each row is adjusted by Holm's method for all rows of the
same family (``--family``, columns). A share named by ``--share`` that is a whole number of questions gets
Wilson's score interval; the questions are counted in the row, or by ``--size`` for rows with that value.
"""

import argparse
import csv
from itertools import groupby
from pathlib import Path

from evenmesh_core.proportions import paired_difference_interval, wilson_interval
from evenmesh_core.significance import holm, mcnemar

Row = dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--share", nargs="*", default=[], help="columns of shares of right answers")
    parser.add_argument("--size", nargs="*", default=[], metavar="VALUE=N", help="questions of rows")
    parser.add_argument("--family", nargs="*", default=[], help="columns that make families of comparisons")
    given = parser.parse_args()
    sizes = {value: int(size) for value, _, size in (one.rpartition("=") for one in given.size)}
    for path in given.tables:
        with path.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        for row in rows:
            size = _size(row, sizes)
            if row.get("mcnemar_p"):
                _compare(row, size)
            for name in given.share:
                if row.get(name) and f"{name}_low" in row:
                    _share(row, name, size)
        if "mcnemar_p" in rows[0]:
            _adjust(rows, given.family)
        with path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        print(path)


def _size(row: Row, sizes: dict[str, int]) -> int:
    for name in ("questions", "queries"):
        if row.get(name):
            return int(row[name])
    return next(size for value, size in sizes.items() if value in row.values())


def _compare(row: Row, pairs: int) -> None:
    difference = float(row["difference"])
    gained = round(difference * pairs)
    if abs(difference * pairs - gained) > 1e-6:
        return  # a mean over agents, not a difference of two shares
    if row.get("only_first"):
        first, second = int(row["only_first"]), int(row["only_second"])
    else:
        first, second = _counts(gained, float(row["mcnemar_p"]), pairs)
    if first - second != gained:
        return
    low, high = paired_difference_interval(first, second, pairs)
    row["difference_low"], row["difference_high"] = str(low), str(high)


def _counts(gained: int, p_value: float, pairs: int) -> tuple[int, int]:
    """Return the counts whose difference and exact p-value these are."""
    for fewer in range(pairs):
        more = fewer + abs(gained)
        if more + fewer > pairs:
            break
        first = [1] * more + [0] * (pairs - more)
        second = [0] * more + [1] * fewer + [0] * (pairs - more - fewer)
        if abs(mcnemar(first, second).p_value - p_value) < 1e-9:
            return (more, fewer) if gained >= 0 else (fewer, more)
    raise SystemExit(f"no counts have the difference {gained} and p = {p_value}")


def _share(row: Row, name: str, size: int) -> None:
    right = float(row[name]) * size
    if abs(right - round(right)) < 1e-6:
        low, high = wilson_interval(round(right), size)
        row[f"{name}_low"], row[f"{name}_high"] = str(low), str(high)


def _adjust(rows: list[Row], family: list[str]) -> None:
    def key(row: Row) -> list[str]:
        return [row[name] for name in family]

    for _, mine in groupby(sorted(rows, key=key), key):
        members = list(mine)
        p_values = holm([float(one["mcnemar_p"] or one["p_value"] or "nan") for one in members])
        for one, p_value in zip(members, p_values.tolist(), strict=True):
            one["p_holm"] = "" if p_value != p_value else str(p_value)


if __name__ == "__main__":
    main()
