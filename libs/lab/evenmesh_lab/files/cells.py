"""Cells of CSV files."""

from __future__ import annotations


def inert(cell: str | int | float) -> str | int | float:
    """Return a cell that no spreadsheet reads as a formula: an apostrophe goes before such a text (OWASP)."""
    if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")):
        try:
            float(cell)
        except ValueError:
            return f"'{cell}"
    return cell
