"""Style of figures: legible at the width of a paper's column, in colours for every kind of colour vision.

The module changes no state of :mod:`matplotlib.pyplot`; equal figures give equal bytes.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from evenmesh_core.arrays import FloatArray
from evenmesh_core.intervals import BootstrapInterval

COLUMN_INCHES: Final = 3.4
"""Width of one column of a two-column page."""
INK: Final = "#1b1f24"
"""Text and axes."""
FAINT: Final = "#d9dde2"
"""Grid lines."""
SECOND: Final = "#5d6670"
"""Secondary text, references."""
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
"""Okabe and Ito's palette, the pale yellow replaced by grey."""
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
"""A second sign beside the colour."""
PNG_DPI: Final = 300
_STATED_POINTS: Final = 5.0
_STATED_INCHES: Final = 0.088
_CHARACTERS_PER_INCH: Final = 27

_SETTINGS: Final[Any] = {
    "text.parse_math": False,  # names of providers and runs may hold dollars
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same on every machine
    "font.size": 7.5,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.8,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "auto",
    "svg.fonttype": "path",  # outlines: no viewer lacks the font
    "svg.hashsalt": "evenmesh",  # ids by content, so that equal figures are equal bytes
    "pdf.fonttype": 42,
    "axes.unicode_minus": True,
    "figure.autolayout": False,  # figure() names its layout, and _lay_out() leaves a figure without one
    "figure.constrained_layout.use": False,
}


@contextmanager
def styled() -> Iterator[None]:
    """Make and draw figures in this style within the block."""
    with matplotlib.rc_context(_SETTINGS):
        yield


def figure(width: float = COLUMN_INCHES, height: float = 2.5) -> tuple[Figure, Axes]:
    """Return an empty figure with one pair of axes; sizes in inches. Call it within :func:`styled`."""
    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made, made.add_subplot()


def to_bytes(made: Figure, kind: Literal["svg", "png", "pdf"]) -> bytes:
    """Return a figure as a file's content, without a date or anything random.

    The first call fixes the layout: what is added to the figure later gets no room of its own.
    """
    buffer = io.BytesIO()
    with styled():
        _lay_out(made)
        if kind == "png":
            made.savefig(buffer, format="png", dpi=PNG_DPI, facecolor="white", metadata={"Software": None})
        else:
            made.savefig(
                buffer, format=kind, metadata={"Date": None} if kind == "svg" else {"CreationDate": None}
            )
    return buffer.getvalue()


def _lay_out(made: Figure) -> None:
    """Place axes and legends once; else each file would draw the figure once more to place them again."""
    engine = made.get_layout_engine()
    if engine is not None:
        engine.execute(made)
        made.set_layout_engine(None)


def save(made: Figure, path: Path) -> None:
    """Write a figure in the format of the name's ending: ``.png``, ``.svg`` or ``.pdf``.

    Raises:
        ValueError: another ending.
    """
    kinds: dict[str, Literal["svg", "png", "pdf"]] = {".svg": "svg", ".png": "png", ".pdf": "pdf"}
    kind = kinds.get(path.suffix.lower())
    if kind is None:
        raise ValueError(f"{path}: figures are .png, .svg or .pdf")
    path.write_bytes(to_bytes(made, kind))


def state(made: Figure, text: str) -> Figure:
    """Write the basis of a figure's numbers (queries, seeds, models) below it, adding to its height.

    Call it last.

    Returns:
        The figure.
    """
    width, height = made.get_size_inches()
    lines = textwrap.wrap(text, max(int(width * _CHARACTERS_PER_INCH), 20))
    engine = made.get_layout_engine()
    if not lines or engine is None:
        return made
    strip = _STATED_INCHES * len(lines) + 0.06
    share = strip / (height + strip)
    # The layout makes no room for an anchored legend, as those below are.
    made.draw_without_rendering()
    legends = max((one.get_window_extent().height / made.dpi + 0.08 for one in made.legends), default=0.0)
    made.set_size_inches(width, height + strip)
    below = (strip + legends) / (height + strip)
    engine.set(rect=(0, below, 1, 1 - below))  # type: ignore[call-arg]
    for legend in made.legends:
        legend.set_bbox_to_anchor((0, share, 1, 1 - share), transform=made.transFigure)
    made.text(
        0.06 / width,
        0.04 / (height + strip),
        "\n".join(lines),
        fontsize=_STATED_POINTS,
        color=SECOND,
        ha="left",
        va="bottom",
        linespacing=1.25,
        in_layout=False,
    )
    return made


def series(place: int) -> tuple[str, str]:
    """Return colour and marker of the n-th series; colours repeat before markers do."""
    return COLOURS[place % len(COLOURS)], MARKERS[(place + place // len(COLOURS)) % len(MARKERS)]


def shortened(label: str, length: int = 22) -> str:
    """Return a label cut to ``length`` characters."""
    return label if len(label) <= length else f"{label[: length - 1]}…"


def legend_below(made: Figure, axes: Axes, columns: int = 3) -> None:
    """Draw the series' names below the axes; none for a single series without a name."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1 or (labels and labels[0]):
        made.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)))


def finish(
    made: Figure, axes: Axes, *, x: str = "", y: str = "", numbers: str, grid: str = "", columns: int = 3
) -> None:
    """Label the axes; draw plain numbers, a grid and the names of the series, which are drawn already.

    Args:
        made: the figure.
        axes: its axes.
        x: label of the horizontal axis.
        y: label of the vertical axis.
        numbers: axes whose ticks are numbers, to be without trailing zeros: "x", "y" or "xy".
        grid: axes with lines across; those with numbers by default.
        columns: most names of series side by side.
    """
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    for name, one in (("x", axes.xaxis), ("y", axes.yaxis)):
        if name in numbers:
            one.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.10g}"))
        if name in (grid or numbers):
            one.grid(visible=True)
    legend_below(made, axes, columns)


def slant(axes: Axes) -> None:
    """Slant the labels of the horizontal axis, which would overlap otherwise."""
    for tick in axes.get_xticklabels():
        tick.set(rotation=40, ha="right", rotation_mode="anchor")


def colour_bar(made: Figure, axes: Axes, drawn: ScalarMappable, label: str, *, pad: float = 0.03) -> None:
    """Draw the scale of the colours next to the axes."""
    bar = made.colorbar(drawn, ax=axes, fraction=0.05, pad=pad)
    bar.set_label(label, fontsize=7, color=SECOND)
    bar.outline.set_visible(False)


def ends(intervals: Sequence[BootstrapInterval]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return values, lower and upper ends; a value without an interval is its own ends."""
    values, low, high = (
        np.array([getattr(one, end) for one in intervals]) for end in ("value", "low", "high")
    )
    return values, np.where(np.isnan(low), values, low), np.where(np.isnan(high), values, high)


def spread(intervals: Sequence[BootstrapInterval]) -> FloatArray:
    """Return the distances to the ends, [2, P], from 0: a BCa interval need not hold its value."""
    values, low, high = ends(intervals)
    distances: FloatArray = np.nan_to_num(np.maximum(np.stack([values - low, high - values]), 0.0))
    return distances
