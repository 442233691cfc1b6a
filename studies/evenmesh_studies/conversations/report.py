"""Measure the transcripts of a study, with the corrections that people made, and write the report."""

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from evenmesh.types.conversation import GroupTarget
from evenmesh_core.group_fairness import Attribute, Transcript
from evenmesh_lab import figures
from evenmesh_lab.figures.outcomes import draw_outcomes
from evenmesh_lab.files import FileError, read_conversations, read_marks
from evenmesh_lab.files.records import replace_file
from evenmesh_lab.studies import Bootstrap, ConversationStudy, conversation, stability
from evenmesh_lab.studies.overlap import Overlap
from evenmesh_lab.studies.stability import ConversationJudgement, Marks, StabilityStudy
from evenmesh_lab.studies.tables import Table
from evenmesh_studies.conversations.plan import RECORDS, ConversationPlan
from evenmesh_studies.runner.report import ReportSection, overlap_section, write_report
from evenmesh_studies.runner.shards import records_file

TRANSCRIPTS = "transcripts"
"""Folder of the annotated transcripts, one file for each system and trial."""


@dataclass(frozen=True, slots=True)
class ConversationReport:
    """Measures of all transcripts.

    ``fairness`` is None without targets, and as long as a transcript has yet to be judged.
    """

    stability: StabilityStudy
    fairness: ConversationStudy | None
    unjudged: tuple[FileError, ...]
    """Files that cannot be measured yet, with the reason."""


def write_transcripts(folder: Path, plan: ConversationPlan) -> tuple[list[Path], list[Path]]:
    """Write the transcripts that do not exist yet.

    Args:
        folder: of the run.
        plan: what was run.

    Returns:
        The paths of all transcripts, and of those that a person corrected.
    """
    paths = _paths(folder, plan)
    texts: dict[Path, list[str]] = {path: [] for path in paths.values()}
    for line in (folder / records_file(RECORDS)).read_text(encoding="utf-8").split("\n"):
        if line:
            record: Any = json.loads(line)
            texts[paths[record["system"], record["trial"]]].extend(record["transcript"])
    (folder / TRANSCRIPTS).mkdir(exist_ok=True)
    corrected = []
    for path, lines in texts.items():
        text = "".join(f"{line}\n" for line in lines).encode()
        if not path.exists():
            # Whole or not at all: the next run would take a part for what a person left of it.
            replace_file(path, partial(Path.write_bytes, data=text))
        elif path.read_bytes() != text:
            corrected.append(path)
    return list(texts), corrected


def measure(
    folder: Path,
    plan: ConversationPlan,
    *,
    bootstrap: Bootstrap | None = None,
    only: Collection[str] | None = None,
) -> ConversationReport:
    """Measure the transcripts of a run.

    Args:
        folder: of the run.
        plan: what was run.
        bootstrap: how intervals are computed.
        only: topics to measure; None for all.

    Raises:
        FileError: a transcript is missing or cannot be read.
    """
    settings = bootstrap or Bootstrap()
    patterns: dict[str, dict[int, dict[str, Marks]]] = {}
    transcripts: dict[tuple[str, int], list[Transcript]] = {}
    unjudged: list[FileError] = []
    for (system, trial), path in _paths(folder, plan).items():
        patterns.setdefault(system, {})[trial] = {
            one.topic: one.useful for one in read_marks(path) if only is None or one.topic in only
        }
        if plan.targets:
            try:
                transcripts[system, trial] = [
                    one for one in read_conversations(path) if only is None or one.topic in only
                ]
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
        # In the same order, and not by trial: the study counts a topic's conversations, of which a person may
        # have taken one out.
        held = [(*key, one) for key, found in transcripts.items() for one in found]
        for (system, trial, one), row in zip(held, fairness.rows, strict=True):
            judged[system, trial, one.topic] = ConversationJudgement(
                _entities(one), row.relevance, row.group_fairness
            )
    planned = {
        topic.name: topic.num_turns for topic in plan.topics.topics if only is None or topic.name in only
    }
    return ConversationReport(
        stability.measure(patterns, judged, planned=planned, bootstrap=settings), fairness, tuple(unjudged)
    )


def attribute_of(target: GroupTarget) -> Attribute:
    """Return a target in the form that measures take."""
    shares = target.shares or (1 / len(target.groups),) * len(target.groups)
    return Attribute(shares, target.divergence)


def asked(plan: ConversationPlan) -> dict[str, tuple[str, ...]]:
    """Return what the user asks on each topic, a later turn together with those before it.

    "Can you name a few more?" alone is in many conversations.
    """
    return {
        one.name: tuple(" ".join(one.turns[: place + 1]) for place in range(len(one.turns)))
        or (one.question,)
        for one in plan.topics.topics
    }


def write(
    found: ConversationReport,
    facts: Sequence[tuple[str, str]],
    folder: Path,
    *,
    overlap: Overlap[str] | None = None,
    parts: Sequence[tuple[str, ConversationReport]] = (),
) -> list[Path]:
    """Write the report of all transcripts.

    Args:
        found: of the transcripts.
        facts: what the report is about: names and values.
        folder: where to; made if needed.
        overlap: of the topics with the models' training; None leaves it out.
        parts: names and results of the topics to report apart, first of all.

    Returns:
        The files, the page first.
    """
    stated = "; ".join(f"{name}: {value}" for name, value in facts if name != "intervals")
    sections = [] if overlap is None else [overlap_section(overlap)]
    csv: dict[str, Sequence[Table]] = {} if overlap is None else {"overlap.csv": (overlap.table(),)}
    for name, one in (*parts, ("", found)):
        which = f"{name or 'all'} topics" if parts else ""
        mine, tables = _sections(one, f"{name}-" if name else "", which, stated)
        sections += mine
        csv |= tables
    if found.unjudged:
        sections.append(ReportSection("Still to be judged", notes=[str(one) for one in found.unjudged]))
    return write_report(folder, "Harvest", facts, sections, csv)


def _sections(
    found: ConversationReport, prefix: str, which: str, stated: str
) -> tuple[list[ReportSection], Mapping[str, Sequence[Table]]]:
    """Return the sections and the tables of some topics; files begin with ``prefix``."""
    of = f", {which}" if which else ""
    said = "; ".join(one for one in (which, stated) if one)
    tables = found.stability.tables()
    csv = {f"{prefix}outcomes.csv": tables}
    drawn = {"outcomes": figures.state(draw_outcomes(found.stability), said)}
    sections = [ReportSection(f"Turns{of}", tables[:-1] or tables, drawn, prefix=prefix)]
    if found.fairness is not None:
        tables = csv[f"{prefix}fairness.csv"] = found.fairness.tables()
        drawn = dict(figures.of(found.fairness, stated=said))
        title = f"Relevance and group fairness{of}"
        sections.append(ReportSection(title, tables[:-1] or tables, drawn, prefix=prefix))
    return sections, csv


def _paths(folder: Path, plan: ConversationPlan) -> dict[tuple[str, int], Path]:
    """Return the path of each transcript, by system and trial; no two are one file."""
    taken: set[str] = set()
    paths = {}
    for system in plan.systems:
        stem = re.sub(r"[^\w.=-]", "_", system.name).lstrip(".") or "system"
        if stem.casefold() in taken:  # also where a disk knows no case
            stem += f"-{hashlib.sha256(system.name.encode()).hexdigest()[:8]}"
        taken.add(stem.casefold())
        for trial in range(1, plan.repeats(system) + 1):
            paths[system.name, trial] = folder / TRANSCRIPTS / f"{stem}-trial{trial}.txt"
    return paths


def _entities(transcript: Transcript) -> frozenset[str]:
    return frozenset(
        one.entity
        for turn in transcript.turns
        for one in turn.annotations
        if one.entity is not None and one.level > 0
    )
