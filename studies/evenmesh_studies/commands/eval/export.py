"""``evenmesh eval export``: rankings and answers as other tools read them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenmesh.commands.failure import USAGE, CommandError, refuse
from evenmesh.commands.group import group
from evenmesh.commands.screen import Screen
from evenmesh_studies.commands.eval import options
from evenmesh_studies.commands.eval.audits import Files
from evenmesh_studies.commands.eval.outputs import reported

if TYPE_CHECKING:
    from evenmesh_lab.files.answered import AnsweredRecord

Folder = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder of the files.")]


def export() -> typer.Typer:
    """Return the commands of ``evenmesh eval export``."""
    return group("export", "Write rankings and answers as other tools read them.", runs, ragas)


def runs(files: Files, out: Folder, qrels: options.Qrels = None) -> None:
    """Write rankings as TREC runs, a file for each system and α, and their judgements in the folder `qrels`.

    trec_eval, ir-measures, PyTerrier and ranx read them. Where a query has several rankings, each is the
    ranking of a query QUERY/sample=NUMBER: a mean over these is an expectation.
    """
    screen = Screen()
    _folder(out)
    with reported():
        from evenmesh_lab.files import read_audits, read_labels
        from evenmesh_lab.files.exports import write_runs

        written = write_runs(read_audits(files), out, None if qrels is None else read_labels(qrels))
    for one in written:
        beside = "" if one.qrels is None else f", judgements in {one.qrels}"
        screen.line(f"{one.run}: {one.queries:,} rankings{beside}")


def ragas(
    answers: Annotated[Path, typer.Argument(help="Records of `evenmesh eval rag`: answers.jsonl.")],
    out: Folder,
    data: Annotated[
        list[str],
        typer.Option(
            "--data", "-d", metavar="FILE_OR_DATASET", help="Questions of that run. May be repeated."
        ),
    ],
    data_folder: Annotated[
        Path | None,
        typer.Option(envvar="EVENMESH_SHARED_DATA", metavar="FOLDER", help="Folder of the named data sets."),
    ] = None,
    passages: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Passages, so that samples have their texts. Default: ids alone."),
    ] = None,
) -> None:
    """Write answers as samples of ragas, a file of JSON lines for each system.

    ragas.EvaluationDataset.from_jsonl reads them.
    """
    screen = Screen()
    _folder(out)
    with reported():
        from evenmesh_lab.files.answered import AnsweredRecord, read_all
        from evenmesh_lab.files.exports import write_ragas
        from evenmesh_lab.files.questions import read_question_set

        sets = [read_question_set(name, data_folder) for name in data]
        refuse(screen, [str(problem) for one in sets for problem in one.problems])
        records = read_all(answers, AnsweredRecord)
        questions = {(one.name, question.query_id): question for one in sets for question in one.questions}
        texts = {} if passages is None else _texts(passages, records)
        written = write_ragas(records, questions, out, texts)
    for path, count in written.items():
        screen.line(f"{path}: {count:,} samples")
    missing = sum(one.answer is None for one in records)
    if missing:
        screen.note(f"note: {missing:,} questions have no answer and are left out")


def _texts(path: Path, records: "list[AnsweredRecord]") -> dict[str, str]:
    """Return the texts of the passages that answers were given."""
    from evenmesh.files.passages import read
    from evenmesh.files.read_error import ReadError

    wanted = {name for one in records for name in one.context}
    try:
        return {
            one.id: f"{one.title}\n{one.text}" if one.title else one.text
            for one in read(path)
            if one.id in wanted
        }
    except ReadError as exc:
        raise CommandError(str(exc)) from exc


def _folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise CommandError(f"--out {out} is a file; name a folder", USAGE)
