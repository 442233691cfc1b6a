"""Score intervals and adjusted p-values of stored tables, from the counts that they hold.

A row with a p-value of McNemar's test gets Tango's score interval of its difference, from the counts of
pairs that one system alone gets right; where the table has only the difference, they follow from it and the
p-value. The mean of agents keeps its interval, and its paired p-value counts; it has neither where fewer
answers differ than a study needs. P-values are adjusted by Holm's method for the rows of a family. A share
that is a whole number of questions gets Wilson's score interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from benchmarks.study_pages.cells import Row, read, write
from evenmesh_core.proportions import paired_difference_interval, wilson_interval
from evenmesh_core.significance import holm, mcnemar
from evenmesh_core.sparse_means import LEAST_DIFFERING
from evenmesh_lab.studies.agents import MACRO


def score(
    path: Path,
    *,
    shares: Sequence[str] = (),
    sizes: Mapping[str, int] | None = None,
    family: Sequence[str] = (),
) -> None:
    """Change a stored table in place.

    Args:
        path: the table.
        shares: columns of shares of right answers.
        sizes: questions of rows with a value, where no column counts them.
        family: columns that make families of comparisons.

    Raises:
        ValueError: no counts of pairs have a row's difference and p-value.
    """
    rows = read(path)
    for row in rows:
        size = _size(row, sizes or {})
        if row.get("mcnemar_p") and row.get("agent") != MACRO:
            _compare(row, size)
        elif row.get("mcnemar_p"):
            _compare_means(row)
        for name in shares:
            if row.get(name) and f"{name}_low" in row:
                _share(row, name, size)
    if "mcnemar_p" in rows[0]:
        _adjust(rows, family)
    write(path, rows)


def _size(row: Row, sizes: Mapping[str, int]) -> int:
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


def _compare_means(row: Row) -> None:
    differing = int(row["only_first"]) + int(row["only_second"])
    if differing < LEAST_DIFFERING:
        row["difference_low"] = row["difference_high"] = ""
        row["p_value"] = "" if differing else "1.0"
        row["verdict"] = "too few queries to tell" if differing else "not significant"


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
    raise ValueError(f"no counts have the difference {gained} and p = {p_value}")


def _share(row: Row, name: str, size: int) -> None:
    right = float(row[name]) * size
    if abs(right - round(right)) < 1e-6:
        low, high = wilson_interval(round(right), size)
        row[f"{name}_low"], row[f"{name}_high"] = str(low), str(high)


def _deciding(row: Row) -> str:
    pooled = row.get("agent") == MACRO  # its test takes agents' answers to one query for independent
    return row["p_value"] if pooled else row["mcnemar_p"] or row["p_value"]


def _adjust(rows: list[Row], family: Sequence[str]) -> None:
    def key(row: Row) -> list[str]:
        return [row[name] for name in family]

    for _, mine in groupby(sorted(rows, key=key), key):
        members = list(mine)
        p_values = holm([float(_deciding(one) or "nan") for one in members])
        for one, p_value in zip(members, p_values.tolist(), strict=True):
            one["p_holm"] = "" if p_value != p_value else str(p_value)
