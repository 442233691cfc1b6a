"""Figures of studies, for papers and pages. Needs ``evenmesh-lab[reports]``.

:func:`of` gives the figures of any study by name, :func:`save` writes one.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from matplotlib.figure import Figure

from evenmesh_lab.figures.bars import chosen, draw_exposure
from evenmesh_lab.figures.boxes import draw_boxes
from evenmesh_lab.figures.curves import draw_curves
from evenmesh_lab.figures.ensembles import draw_accuracies, draw_upper_bounds, eor_figures
from evenmesh_lab.figures.matrices import draw_win_ratios
from evenmesh_lab.figures.scatter import draw_conversations
from evenmesh_lab.figures.style import save, state, to_bytes
from evenmesh_lab.figures.weights import draw_weights
from evenmesh_lab.studies import (
    ConversationStudy,
    EorStudy,
    ExposureStudy,
    InconsistencyStudy,
    Study,
    UtilityStudy,
    statement,
)
from evenmesh_lab.studies.curves import Curve
from evenmesh_lab.studies.exposure import ExposureRow
from evenmesh_lab.studies.inconsistency import KIND_LABELS
from evenmesh_lab.studies.tables import by_configuration
from evenmesh_lab.studies.utility import UtilityRow

__all__ = [
    "draw_accuracies",
    "draw_boxes",
    "draw_conversations",
    "draw_curves",
    "draw_exposure",
    "draw_upper_bounds",
    "draw_weights",
    "draw_win_ratios",
    "of",
    "save",
    "state",
    "to_bytes",
]

DIALS: Final = {
    "ee_d_norm": ("disparity", "disparity: EE-D, of its bound"),
    "ee_r_norm": ("quality", "quality: EE-R, of its bound"),
    "eu_norm": ("utility", "utility: EU, of its maximum"),
}
"""By measure: the ending of the name of its figure by α, and the label of its axis."""


def of(study: Study, *, stated: str = "") -> Mapping[str, Figure]:
    """Return the figures of a study by name, most informative first; empty where there is nothing to draw.

    Each states its basis below: queries, samples, and the method of its intervals.

    Args:
        study: what was found.
        stated: more to state: models, versions, seeds.
    """
    text = "; ".join(part for part in (statement(study), stated) if part)
    return {name: state(figure, text) for name, figure in _drawn(study).items()}


def _drawn(study: Study) -> Mapping[str, Figure]:
    match study:
        case ExposureStudy():
            found = dict(_curves(study.curves))
            queries = len({row.query_id for row in study.rows})
            for name, bars in (
                ("exposure-groups", chosen(study.exposures, "groups")),
                ("exposure-passages", chosen(study.exposures, "passages")),
            ):
                drawn = draw_exposure(bars, num_queries=max(queries, 1))
                if drawn is not None:
                    found[name] = drawn
            return found | _dials(study.rows, ("ee_d_norm", "ee_r_norm"))
        case UtilityStudy():
            return _curves(study.curves) | _dials(study.rows, ("eu_norm",))
        case ConversationStudy():
            return {"relevance-fairness": draw_conversations(study.rows)}
        case InconsistencyStudy():
            found = {"win-ratios": draw_win_ratios(study.win_ratios.matrix, study.retrievers)}
            if study.error_win_ratios is not None:
                for kind in study.errors:
                    matrix = getattr(study.error_win_ratios, kind)
                    found[f"win-ratios-{kind.replace('_', '-')}"] = draw_win_ratios(
                        matrix, study.retrievers, error=KIND_LABELS[kind]
                    )
            return found
        case EorStudy():
            return eor_figures(study)
        case _:
            return {}


def _dials(rows: Sequence[ExposureRow] | Sequence[UtilityRow], measures: Sequence[str]) -> dict[str, Figure]:
    """Draw the spread of each measure over queries at each α, if there are several."""
    order = by_configuration([(row.system, row.alpha) for row in rows])
    if len({alpha for _, alpha in order if alpha is not None}) < 2:
        return {}
    found = {}
    for measure in measures:
        boxes: dict[str, dict[str, list[float]]] = {}
        for system, alpha in order:
            dial = "deterministic" if alpha is None else f"{alpha:g}"
            values = [getattr(row, measure) for row in rows if (row.system, row.alpha) == (system, alpha)]
            boxes.setdefault(system, {})[dial] = values
        found[f"dial-{DIALS[measure][0]}"] = draw_boxes(boxes, x_label="α", y_label=DIALS[measure][1])
    return found


def _curves(curves: tuple[Curve, ...]) -> dict[str, Figure]:
    # One α is a point and no curve.
    names = dict.fromkeys(curve.name for curve in curves if len(curve.points) > 1)
    return {name: draw_curves([curve for curve in curves if curve.name == name]) for name in names}
