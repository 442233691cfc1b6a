"""Numbers of stored rows as a page shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evenmesh_core.significance import holm


def interval(row: Mapping[str, str], prefix: str = "") -> str:
    """Return a difference with its interval, or alone where it has none."""
    difference, low, high = (row[f"{prefix}{name}"] for name in ("difference", "low", "high"))
    return signed(difference) if low == "nan" else f"{signed(difference)} [{signed(low)}, {signed(high)}]"


def p_value(value: float) -> str:
    """Return a p-value with three decimals; the smaller ones as below 0.001."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def adjusted(rows: Sequence[Mapping[str, str]]) -> list[tuple[Mapping[str, str], float]]:
    """Return rows with their p-values adjusted for all of them, by Holm's method."""
    return list(zip(rows, holm([float(row["p"]) for row in rows]).tolist(), strict=True)) if rows else []


def two(value: str) -> str:
    """Return a number with two decimals."""
    return f"{float(value):.2f}"


def three(value: str) -> str:
    """Return a number with three decimals."""
    return f"{float(value):.3f}"


def signed(value: str) -> str:
    """Return a number with three decimals and a true minus; 0 has no sign."""
    return three(value).replace("-", "−").replace("−0.000", "0.000")
