"""``evenmesh eval exposure`` and ``evenmesh eval utility``: audit rankings of files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenmesh.commands.failure import USAGE, CommandError
from evenmesh.commands.option_groups import with_groups
from evenmesh_studies.commands.eval import options
from evenmesh_studies.commands.eval.outputs import DrawnOutputs, deliver, reported

if TYPE_CHECKING:
    from evenmesh_core.exposure import BrowsingModel
    from evenmesh_lab.files import Labels
    from evenmesh_lab.studies.utility import UtilityRow

Files = Annotated[
    list[Path],
    typer.Argument(help="Rankings: TREC runs, JSON lines (.jsonl) or Parquet (.parquet); .gz too."),
]


@with_groups
def exposure(
    *,
    files: Files,
    qrels: options.Qrels = None,
    k: options.Depth = 5,
    browsing: Annotated[
        str, typer.Option(metavar="top-k|reciprocal-rank|rbp:P", help="Attention by rank, up to k.")
    ] = "top-k",
    group_by: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Attribute of groups: provider, group, or any of --passages."),
    ] = None,
    passages: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Passages with that attribute, a file as for `evenmesh ingest`."),
    ] = None,
    min_grade: options.MinGrade = 1.0,
    graded: options.Graded = False,
    pool: options.Pool = False,
    intervals: options.Intervals,
    outputs: DrawnOutputs,
) -> None:
    """Measure expected exposure: who is shown, and how evenly."""
    outputs.check()
    with reported():
        from evenmesh_lab.files import read_audits
        from evenmesh_lab.studies import exposure as study

        labels = _labels(qrels)
        found = study.measure(
            read_audits(files, pool=pool),
            labels,
            k=k,
            min_grade=min_grade,
            graded=graded,
            browsing=_browsing(browsing),
            groups=_groups(group_by, passages, labels),
            group_by=group_by or "",
            bootstrap=intervals.bootstrap(),
        )
        notes = _short(k, found.longest)
        if found.unranked:
            notes.append(f"{found.unranked:,} judged queries have no ranking and are left out")
        if labels is None:
            notes.append("without --qrels there is no target: EE-R and EE-L are undefined")
        deliver(found, outputs, title="Exposure", files=files, notes=notes)


@with_groups
def utility(
    *,
    files: Files,
    qrels: options.Qrels = None,
    k: options.Depth = 5,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="How answers are scored: token_f1, exact_match, accuracy, rating, rouge1, rouge2, rougeL, "
            "LaMP-1 to LaMP-7. Default: answers that come with a utility keep it; token_f1 for others.",
        ),
    ] = None,
    weighted: Annotated[
        bool,
        typer.Option(
            "--weighted",
            help="Weight rankings by their probability: for files that list each ranking once. Samples come "
            "as often as they are probable, and count equally.",
        ),
    ] = False,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="SYSTEM", help="System whose deterministic rankings fairness is compared with."),
    ] = None,
    min_grade: options.MinGrade = 1.0,
    graded: options.Graded = False,
    pool: options.Pool = False,
    intervals: options.Intervals,
    outputs: DrawnOutputs,
) -> None:
    """Measure expected utility, and what fairness costs."""
    outputs.check()
    with reported():
        from evenmesh_lab.files import read_audits
        from evenmesh_lab.studies import utility as study

        found = study.measure(
            read_audits(files, pool=pool),
            _labels(qrels),
            k=k,
            metric=metric,
            weighted=weighted,
            min_grade=min_grade,
            graded=graded,
            baseline=baseline,
            bootstrap=intervals.bootstrap(),
        )
        notes = _short(k, found.longest)
        if not found.fairness:
            notes.append(f"{_no_levels(found.rows, baseline)}: no levels of fairness")
        deliver(found, outputs, title="Utility", files=files, notes=notes)


def _no_levels(rows: "Sequence[UtilityRow]", baseline: str | None) -> str:
    even = {row.system for row in rows if row.alpha is None}
    drawn = {row.system for row in rows if row.alpha is not None}
    if (drawn and baseline in even) if baseline else (even & drawn):
        return "no query with an answered deterministic ranking has a utility above 0"
    return "no deterministic rankings beside sampled ones"


def _short(k: int, longest: int) -> list[str]:
    if longest >= k:
        return []
    return [
        f"no ranking is longer than {longest}, but --k is {k}: EE-D is normalised by a bound that no ranking "
        f"reaches; if the generator was given {longest}, use --k {longest}"
    ]


def _labels(qrels: Path | None) -> "Labels | None":
    from evenmesh_lab.files import read_labels

    return None if qrels is None else read_labels(qrels)


def _browsing(name: str) -> "BrowsingModel | None":
    from evenmesh_core.exposure import rbp, reciprocal_rank

    if name == "top-k":
        return None
    if name == "reciprocal-rank":
        return reciprocal_rank
    kind, _, patience = name.partition(":")
    try:
        if kind == "rbp":
            return rbp(float(patience))
    except ValueError as exc:
        raise CommandError(f"--browsing is {name!r}; allowed: rbp:P with P from 0 to 1", USAGE) from exc
    raise CommandError(f"--browsing is {name!r}; allowed: top-k, reciprocal-rank, rbp:P", USAGE)


def _groups(group_by: str | None, passages: Path | None, labels: "Labels | None") -> Mapping[str, str] | None:
    from evenmesh_lab.files import read_attribute

    if group_by is None:
        if passages is not None:
            raise CommandError("--passages needs --group-by, the attribute of groups", USAGE)
        return None
    if passages is not None:
        return read_attribute(passages, group_by)
    found = None if labels is None else labels.attributes.get(group_by)
    if not found:
        raise CommandError(
            f"--group-by {group_by}: the labels do not have it; name a file with --passages", USAGE
        )
    return found
