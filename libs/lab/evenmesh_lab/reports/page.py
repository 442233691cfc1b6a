"""One page that holds everything: tables and figures of a report, in HTML that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from evenmesh_core.intervals import BootstrapInterval
from evenmesh_lab.reports.formats import interval_shown, shown
from evenmesh_lab.studies.tables import Cell, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ROWS: Final = 500
"""Longest table on a page; files hold the rest."""

CAPTIONS: Final[Mapping[str, str]] = {
    "agents": "Mean utility of each agent under each way of ranking, with intervals; the last row is the "
    "mean over agents.",
    "rounds": "The mean over agents after each round of offline training, with intervals.",
    "batches": "The mean over agents by the number of queries between two online updates, with intervals.",
    "stream": "What learning online adds in each third of the stream, with intervals: the mean over agents, "
    "and each agent.",
    "tau": "Kendall's τ between the lists of two agents for the same query, averaged.",
    "jaccard": "Jaccard's similarity between the lists of two agents for the same query, averaged.",
    "disparity-quality": "Disparity against ranking quality: the means of each α, with their intervals. "
    "Up and to the left is fairer and better.",
    "disparity-utility": "Disparity against the utility of answers: the means of each α, with their "
    "intervals.",
    "quality-utility": "Ranking quality against the utility of answers: the means of each α, with their "
    "intervals.",
    "answers": "Mean of each measure of the answers, with its interval.",
    "answer-recall": "How often one of the first passages holds a right answer, with intervals; dashed "
    "without reranking.",
    "answers-time": "Right answers against the time that ranking and generating take together.",
    "exposure-groups": "Exposure of each group; the black mark is its target.",
    "exposure-passages": "Exposure of the most exposed passages; the black mark is its target.",
    "exposure-providers": "Exposure of each provider; the black mark is its target.",
    "outcomes": "Outcomes of the system turns, topic by topic.",
    "relevance-fairness": "Relevance against group fairness of conversations; a cross is a system's mean.",
    "dial-disparity": "How EE-D of queries is spread at each α.",
    "dial-quality": "How EE-R of queries is spread at each α.",
    "dial-utility": "How the utility of queries' answers is spread at each α.",
    "lose-ratios": "How often another retriever is right where one is wrong: each box is of all retrievers.",
    "accuracy": "Accuracy of each retriever and of the ensemble, with intervals.",
    "upper-bounds": "Accuracy of votes that find the right answer whenever one retriever has it: each box is "
    "of all pools of that size.",
    "weights": "Learned weights: larger and darker circles weigh more; a cross cannot win.",
    "win-ratios": "How often the row's retriever is right where the column's is wrong.",
    "win-ratios-retriever-error": "How often the row's retriever finds what the column's does not.",
    "win-ratios-hallucination-error": "How often the row avoids a hallucination of the column.",
    "win-ratios-extraction-error": "How often the row avoids an extraction error of the column.",
    "win-ratios-lucky-guess": "How often the row avoids a lucky guess of the column.",
}

_INK: Final = "#1b1f24"
_FAINT: Final = "#d9dde2"
_SECOND: Final = "#5d6670"
_ID: Final = re.compile(r'(\bid="|(?:xlink:)?href="#|url\(#)')
_HEAD: Final = re.compile(r"(?s)^.*?(?=<svg\b)")
_METADATA: Final = re.compile(r"(?s)\s*<metadata>.*?</metadata>")


@dataclass(frozen=True)
class Section:
    """A part of a report."""

    title: str
    tables: Sequence[Table] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    """By name; names with a caption are those of :data:`CAPTIONS`."""
    notes: Sequence[str] = ()
    drawn: Mapping[str, bytes] = field(default_factory=dict)
    """SVG files of figures by their name, as far as somebody has drawn them already."""


@dataclass(frozen=True)
class Report:
    """The content of a page."""

    title: str
    facts: Sequence[tuple[str, str]]
    """Its subject: names and values."""
    sections: Sequence[Section]


def page(report: Report) -> str:
    """Return a report as one HTML page: no scripts, nothing loaded, light or dark as the reader prefers.

    Text from elsewhere is escaped.
    """
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("evenmesh_lab.reports", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        report=report,
        sections=[
            {
                "title": section.title,
                "notes": section.notes,
                "tables": [_table(table) for table in section.tables],
                "figures": [
                    {
                        "name": name,
                        "caption": caption(name),
                        "svg": svg(section.drawn.get(name) or _drawn(figure), f"s{place}-{name}-"),
                    }
                    for name, figure in section.figures.items()
                ],
            }
            for place, section in enumerate(report.sections)
        ],
    )


def caption(name: str) -> str:
    """Return a figure's caption by its name; ``NAME-PART`` gets the caption of the whole after its part."""
    if name in CAPTIONS:
        return CAPTIONS[name]
    for known in sorted(CAPTIONS, key=len, reverse=True):
        if name.startswith(f"{known}-"):
            return f"{name.removeprefix(f'{known}-')}: {CAPTIONS[known]}"
    return name


def _drawn(figure: Figure) -> bytes:
    from evenmesh_lab.figures.style import to_bytes

    return to_bytes(figure, "svg")


def svg(drawn: bytes, prefix: str) -> str:
    """Return a figure for a page: with ids of its own, and text and grid in the page's colours.

    Args:
        drawn: the figure as an SVG file.
        prefix: goes before every id.
    """
    from markupsafe import Markup

    text = _METADATA.sub("", _HEAD.sub("", drawn.decode(), count=1))
    text = _ID.sub(lambda found: found.group(1) + prefix, text)
    for colour, variable in ((_INK, "--ink"), (_FAINT, "--line"), (_SECOND, "--second")):
        text = text.replace(f"fill: {colour}", f"fill: var({variable})")
        text = text.replace(f"stroke: {colour}", f"stroke: var({variable})")
    text = text.replace("fill: #ffffff", "fill: var(--paper)")
    # Drawn by matplotlib from numbers and escaped text, and shapes the page could not have otherwise.
    return Markup(text.replace("<svg ", '<svg role="img" focusable="false" ', 1))  # noqa: S704


def _table(table: Table) -> dict[str, object]:
    return {
        "name": table.name,
        "title": table.title,
        "note": table.note,
        "columns": table.columns,
        "left_out": max(0, len(table.rows) - MOST_ROWS),
        "rows": [[_cell(cell) for cell in row] for row in table.rows[:MOST_ROWS]],
        "folded": len(table.rows) > 40,
    }


def _cell(cell: Cell) -> tuple[str, str]:
    """Return an entry, and the small text next to it."""
    if isinstance(cell, BootstrapInterval):
        return shown(cell.value), interval_shown(cell)
    return shown(cell), ""
