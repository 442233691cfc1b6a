"""Figures of studies, for papers and pages. Needs ``ragmesh[lab]``.

:func:`of` gives the figures of any study by name, :func:`save` writes one.
"""

from collections.abc import Mapping

from matplotlib.figure import Figure

from raglab.figures.bars import chosen, draw_exposure
from raglab.figures.curves import draw_curves
from raglab.figures.matrices import draw_win_ratios
from raglab.figures.scatter import draw_conversations
from raglab.figures.style import save, to_bytes
from raglab.studies import ConversationStudy, ExposureStudy, InconsistencyStudy, Study, UtilityStudy
from raglab.studies.curves import Curve
from raglab.studies.inconsistency import KIND_LABELS

__all__ = ["draw_conversations", "draw_curves", "draw_exposure", "draw_win_ratios", "of", "save", "to_bytes"]


def of(study: Study) -> Mapping[str, Figure]:
    """The figures of a study by name, the most telling first; empty where it has nothing to draw."""
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
            return found
        case UtilityStudy():
            return _curves(study.curves)
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
        case _:
            return {}


def _curves(curves: tuple[Curve, ...]) -> dict[str, Figure]:
    # One α is a point and no curve.
    names = dict.fromkeys(curve.name for curve in curves if len(curve.points) > 1)
    return {name: draw_curves([curve for curve in curves if curve.name == name]) for name in names}
