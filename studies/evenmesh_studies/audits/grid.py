"""Tables of retrievers by models, as tables 1 and 3 to 5 of Kim & Diaz."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from evenmesh_lab.studies import UtilityStudy
from evenmesh_lab.studies.curves import Curve
from evenmesh_lab.studies.tables import Cell, Column, Table, text

_CURVES: Final = {
    "disparity-quality": ("EE-R over EE-D", "higher is a stronger tradeoff of fairness and ranking quality"),
    "quality-utility": ("EU over EE-R", "higher is a stronger relation of ranking quality and utility"),
    "disparity-utility": ("EU over EE-D", "higher is a stronger tradeoff of fairness and utility"),
}


def grid(studies: Sequence[tuple[str, UtilityStudy]]) -> Iterator[Table]:
    """Yield tables of retrievers by models: levels of fairness, then slope and area of each curve.

    Args:
        studies: names of models, and the study of each.

    Yields:
        Tables, without empty ones.
    """
    for level in ("fairness-paired", "fairness"):
        found = [
            (model, table) for model, study in studies for table in study.tables() if table.name == level
        ]
        if found:
            like = found[0][1]
            rows = tuple((model, *row) for model, table in found for row in table.rows)
            columns = (text("model", "model"), *like.columns)
            yield Table(level, f"{like.title}, by model", columns, rows, like.note)
    for name, (title, meaning) in _CURVES.items():
        by_model = {
            # A system with one α, as the oracle, trades nothing off.
            model: {one.system: one for one in study.curves if one.name == name and len(one.points) > 1}
            for model, study in studies
        }
        systems = list(dict.fromkeys(system for curves in by_model.values() for system in curves))
        if systems:
            yield Table(
                name,
                f"{title}: slope and area, by retriever and model",
                (text("system", "system"), *(column for model in by_model for column in _columns(model))),
                tuple(
                    (system, *(cell for curves in by_model.values() for cell in _cells(curves.get(system))))
                    for system in systems
                ),
                f"Slope: {meaning}. Each model's utility is of its own maximum.",
            )


def _columns(model: str) -> tuple[Column, Column]:
    return Column(f"{model} slope", f"{model}, slope"), Column(f"{model} auc", f"{model}, AUC")


def _cells(curve: Curve | None) -> tuple[Cell, Cell]:
    return (None, None) if curve is None else (curve.tradeoff.slope, curve.tradeoff.auc)
