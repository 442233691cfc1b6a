"""How figures look: legible at the width of a paper's column, in colours that everybody can tell apart.

No state of :mod:`matplotlib.pyplot` is touched; equal figures give equal bytes.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

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
    "svg.hashsalt": "ragmesh",  # ids by content, so that equal figures are equal bytes
    "pdf.fonttype": 42,
    "axes.unicode_minus": True,
}


@contextmanager
def styled() -> Iterator[None]:
    """Within it, figures are made and drawn in this style."""
    with matplotlib.rc_context(_SETTINGS):
        yield


def figure(width: float = COLUMN_INCHES, height: float = 2.5) -> tuple[Figure, Axes]:
    """An empty figure with one pair of axes; sizes in inches. Call it within :func:`styled`."""
    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made, made.add_subplot()


def to_bytes(made: Figure, kind: Literal["svg", "png", "pdf"]) -> bytes:
    """A figure as a file's content; no date, nothing random."""
    buffer = io.BytesIO()
    with styled():
        if kind == "png":
            made.savefig(buffer, format="png", dpi=PNG_DPI, facecolor="white", metadata={"Software": None})
        else:
            made.savefig(
                buffer, format=kind, metadata={"Date": None} if kind == "svg" else {"CreationDate": None}
            )
    return buffer.getvalue()


def save(made: Figure, path: Path) -> None:
    """Writes a figure; the name's ending, ``.png``, ``.svg`` or ``.pdf``, says how.

    Raises:
        ValueError: another ending.
    """
    kinds: dict[str, Literal["svg", "png", "pdf"]] = {".svg": "svg", ".png": "png", ".pdf": "pdf"}
    kind = kinds.get(path.suffix.lower())
    if kind is None:
        raise ValueError(f"{path}: figures are .png, .svg or .pdf")
    path.write_bytes(to_bytes(made, kind))


def state(made: Figure, text: str) -> Figure:
    """Writes what a figure's numbers stand on into a strip below it, which is added to its height: how many
    queries, seeds, models, versions, intervals. Call it last.

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
    # The layout makes no room for a legend that is anchored, as those below have to be.
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
    """Colour and marker of the n-th series; colours repeat before markers do."""
    return COLOURS[place % len(COLOURS)], MARKERS[(place + place // len(COLOURS)) % len(MARKERS)]


def shortened(label: str, length: int = 22) -> str:
    """A label that fits beside an axis."""
    return label if len(label) <= length else f"{label[: length - 1]}…"


def plain_numbers() -> FuncFormatter:
    """Ticks without needless zeros."""
    return FuncFormatter(lambda value, _: f"{value:.10g}")


def legend_below(made: Figure, axes: Axes, columns: int = 3) -> None:
    """The series' names below the axes, where they hide nothing; none for a single series without a name."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1 or (labels and labels[0]):
        made.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)))
