"""``evenmesh fetch-questions``: questions and labels of a data set, for studies."""

from pathlib import Path
from typing import Annotated

import typer

from evenmesh.commands.failure import CommandError
from evenmesh.commands.screen import Screen


def fetch_questions(
    data_set: Annotated[
        str, typer.Argument(metavar="ir_datasets:NAME|hf:NAME", help="Data set with the questions.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder of the files.")],
    qrels: Annotated[
        str | None,
        typer.Option(metavar="DATA_SET", help="Data set with the judgements, if it is a different one."),
    ] = None,
    min_grade: Annotated[int, typer.Option(min=1, help="Least grade of a gold passage.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write questions and labels of a data set as files.

    queries.jsonl is for `evenmesh audit`, questions.jsonl for `evenmesh eval rag`, labels.jsonl for --labels
    and --qrels. The documents are added by `evenmesh ingest`, with the same name.
    """
    from evenmesh_documents.data_sets.opening import DataSetError
    from evenmesh_documents.data_sets.questions import fetch

    screen = Screen()
    if out.exists() and not out.is_dir():
        raise CommandError(f"--out {out} is a file; name a folder")
    try:
        done = fetch(data_set, out, qrels=qrels, min_grade=min_grade)
    except DataSetError as exc:
        raise CommandError(str(exc)) from exc
    line = f"{done.questions:,} questions in {out}"
    line += f", {done.answered:,} with answers, {done.judged:,} with judgements"
    if done.left_out:
        line += f"; {done.left_out:,} are empty or too long and left out"
    screen.answer(done, line, as_json=as_json)
