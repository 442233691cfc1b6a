"""What a harvest found, from its transcripts as they are now: those a person corrected count as corrected."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragcore.group_fairness import Attribute, Transcript
from raglab import figures, reports
from raglab.figures.outcomes import draw_outcomes
from raglab.files import FileError, read_conversations, read_marks
from raglab.reports.markdown import as_markdown
from raglab.studies import Bootstrap, ConversationStudy, conversation, stability
from raglab.studies.stability import Judged, Marks, StabilityStudy
from ragmesh.conversation import GroupTarget
from ragmesh.harvest.driver import RECORDS
from ragmesh.harvest.plan import HarvestPlan

TRANSCRIPTS = "transcripts"
"""Folder of the annotated transcripts, a file for each system and trial."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What the transcripts say; ``fairness`` is None where there are no targets, or something to judge."""

    stability: StabilityStudy
    fairness: ConversationStudy | None
    unjudged: tuple[FileError, ...]
    """Files that cannot be measured yet, and why."""


def write_transcripts(folder: Path, plan: HarvestPlan) -> tuple[list[Path], list[Path]]:
    """Writes the transcripts that are not there yet.

    Args:
        folder: of the harvest.
        plan: what was held.

    Returns:
        All transcripts, and those of them that differ from what was held: somebody corrected them.
    """
    texts: dict[Path, list[str]] = {_path(folder, *key): [] for key in _keys(plan)}
    for line in (folder / RECORDS).read_text(encoding="utf-8").split("\n"):
        if line:
            record: Any = json.loads(line)
            texts[_path(folder, record["system"], record["trial"])].extend(record["transcript"])
    (folder / TRANSCRIPTS).mkdir(exist_ok=True)
    corrected = []
    for path, lines in texts.items():
        text = "".join(f"{line}\n" for line in lines).encode()
        if not path.exists():
            path.write_bytes(text)
        elif path.read_bytes() != text:
            corrected.append(path)
    return list(texts), corrected


def measure(folder: Path, plan: HarvestPlan, *, bootstrap: Bootstrap | None = None) -> Findings:
    """Measures the transcripts of a harvest.

    Args:
        folder: of the harvest.
        plan: what was held.
        bootstrap: how intervals are computed.

    Raises:
        FileError: a transcript is not there, or is none.
    """
    settings = bootstrap or Bootstrap()
    patterns: dict[str, dict[int, dict[str, Marks]]] = {}
    transcripts: dict[tuple[str, int], list[Transcript]] = {}
    unjudged: list[FileError] = []
    for system, trial in _keys(plan):
        path = _path(folder, system, trial)
        patterns.setdefault(system, {})[trial] = {one.topic: one.useful for one in read_marks(path)}
        if plan.targets:
            try:
                transcripts[system, trial] = read_conversations(path)
            except FileError as error:
                unjudged.append(error)
    fairness, judged = None, {}
    if transcripts and not unjudged:
        attributes = {one.attribute: attribute_of(one) for one in plan.targets}
        by_system: dict[str, list[Transcript]] = {}
        for (system, _), found in transcripts.items():
            by_system.setdefault(system, []).extend(found)
        how = plan.conversation
        fairness = conversation.measure(
            by_system,
            attributes,
            patience=how.get("patience") or 1250,
            method="cumulative" if how.get("cumulative") else "independent",
            irrelevant_turns="uniform" if how.get("uniform_turns") else "ignore",
            alpha=0.5 if (weight := how.get("relevance_weight")) is None else weight,
            bootstrap=settings,
        )
        scores = {(row.system, row.trial, row.topic): row for row in fairness.rows}
        for (system, trial), found in transcripts.items():
            for one in found:
                row = scores[system, trial, one.topic]
                judged[system, trial, one.topic] = Judged(_entities(one), row.relevance, row.group_fairness)
    planned = {topic.name: topic.num_turns for topic in plan.topics.topics}
    return Findings(
        stability.measure(patterns, judged, planned=planned, bootstrap=settings), fairness, tuple(unjudged)
    )


def attribute_of(target: GroupTarget) -> Attribute:
    """A target as conversations are measured against it."""
    shares = target.shares or (1 / len(target.groups),) * len(target.groups)
    return Attribute(shares, target.divergence)


def write(found: Findings, facts: Sequence[tuple[str, str]], folder: Path) -> list[Path]:
    """Writes tables as CSV, figures as SVG and PNG, and everything as Markdown and as one page.

    Args:
        found: of the transcripts.
        facts: what the report says it is about: names and values.
        folder: where to; made if it is not there.

    Returns:
        The files, the page first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    statement = "; ".join(f"{name}: {value}" for name, value in facts if name != "intervals")
    drawn = {"outcomes": figures.state(draw_outcomes(found.stability), statement)}
    sections = [("Turns", "outcomes", found.stability.tables(), drawn)]
    if found.fairness is not None:
        sections.append(
            (
                "Relevance and group fairness",
                "fairness",
                found.fairness.tables(),
                dict(figures.of(found.fairness, stated=statement)),
            )
        )
    written: list[Path] = []
    text = ["# Harvest", "", *(f"- {name}: {value}" for name, value in facts), ""]
    for title, stem, tables, plots in sections:
        written.extend(reports.write_csv(tables, folder / f"{stem}.csv"))
        text += [f"## {title}", ""]
        for name, figure in plots.items():
            for ending in ("svg", "png"):
                target = folder / f"{name}.{ending}"
                figures.save(figure, target)
                written.append(target)
            text += [f"![{name}]({name}.png)", ""]
        text.append(as_markdown(tables[:-1] or tables, level=3))
    if found.unjudged:
        text += ["## Still to be judged", "", *(f"- {one}" for one in found.unjudged), ""]
    markdown, page = folder / "report.md", folder / "report.html"
    markdown.write_text("\n".join(text), encoding="utf-8")
    made = [
        reports.Section(title, tables[:-1] or tables, plots, [str(one) for one in found.unjudged])
        for title, _, tables, plots in sections
    ]
    page.write_text(reports.page(reports.Report("Harvest", facts, made)), encoding="utf-8")
    return [page, markdown, *written]


def _keys(plan: HarvestPlan) -> list[tuple[str, int]]:
    return [(system.name, trial) for system in plan.systems for trial in range(1, plan.repeats(system) + 1)]


def _path(folder: Path, system: str, trial: int) -> Path:
    stem = re.sub(r"[^\w.=-]", "_", system).lstrip(".") or "system"
    return folder / TRANSCRIPTS / f"{stem}-trial{trial}.txt"


def _entities(transcript: Transcript) -> frozenset[str]:
    return frozenset(
        one.entity
        for turn in transcript.turns
        for one in turn.annotations
        if one.entity is not None and one.level > 0
    )
