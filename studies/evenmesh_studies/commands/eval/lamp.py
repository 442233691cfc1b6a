"""``evenmesh eval lamp``: convert LaMP's files to queries, filter them by labels, and count them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenmesh.commands.failure import USAGE, CommandError, refuse
from evenmesh.commands.group import group
from evenmesh.commands.screen import Screen
from evenmesh_studies.commands.eval.options import MinGrade

if TYPE_CHECKING:
    from evenmesh_lab.files import Query

Useful = Annotated[
    int, typer.Option("--min-useful", min=1, help="Useful items a question must have; the paper's is 2.")
]


def lamp() -> typer.Typer:
    """Return the commands of ``evenmesh eval lamp``."""
    return group("lamp", "Convert LaMP's files to queries, filter, and count.", convert, filter_, statistics)


def convert(
    questions: Annotated[Path, typer.Argument(help="LaMP's questions: a JSON list with profiles.")],
    outputs: Annotated[Path | None, typer.Argument(help="LaMP's outputs; the test split has none.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Queries, JSON lines.")] = Path(
        "queries.jsonl"
    ),
    task: Annotated[str | None, typer.Option(help="LaMP-1 to LaMP-7. Default: that of the outputs.")] = None,
    first: Annotated[
        int | None, typer.Option(min=1, metavar="COUNT", help="Most queries; the paper used 1,000.")
    ] = None,
) -> None:
    """Convert LaMP's files to queries for `evenmesh label` and `evenmesh audit`.

    The profile of a question's user becomes its passages.
    """
    from evenmesh_lab.files.lamp import read_lamp

    screen = Screen()
    found = read_lamp(questions, outputs, task)
    refuse(screen, [str(problem) for problem in found.problems])
    queries = found.queries[:first]
    if found.task is None or not queries:
        raise CommandError(f"{questions}: has no questions", USAGE)
    lines = [one.model_dump_json(exclude_none=True) for one in queries]
    out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for why, count in found.left_out.items():
        screen.note(f"note: left out: {count:,} {why}")
    if outputs is None:
        screen.note("note: without outputs there are no references, which labels and utility need")
    items = sum(len(one.passages or ()) for one in queries)
    screen.line(
        f"{found.task.name}: {len(queries):,} questions with {items:,} items to {out}; prompt "
        f"{found.task.template}, metric {found.task.name}"
    )


def filter_(
    queries: Annotated[Path, typer.Argument(help="Queries that bring their passages.")],
    labels: Annotated[
        Path, typer.Option("--labels", "-l", metavar="FILE", help="Useful items: TREC qrels, or records.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The queries that are kept.")],
    min_useful: Useful = 2,
    min_grade: MinGrade = 1.0,
) -> None:
    """Keep the questions with two or more useful items, among which exposure can be fair."""
    from evenmesh_lab.files import read_labels
    from evenmesh_lab.files.lines import lines
    from evenmesh_lab.studies.profiles import enough_useful
    from evenmesh_studies.commands.eval.outputs import reported

    screen = Screen()
    with reported():
        found = _queries(screen, queries)
        kept = enough_useful(found, read_labels(labels), least=min_useful, min_grade=min_grade)
        places = {query.line for query in kept}
        text = [line for number, line in lines(queries) if number in places]
        out.write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
    screen.line(f"{len(kept):,} of {len(found):,} questions to {out}")


def statistics(
    queries: Annotated[
        list[Path], typer.Argument(help="Queries that bring their passages, a data set each.")
    ],
    labels: Annotated[
        list[Path],
        typer.Option("--labels", "-l", metavar="FILE", help="Useful items, one file for each data set."),
    ],
    min_useful: Useful = 2,
    min_grade: MinGrade = 1.0,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table as CSV.")] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the table as Markdown.")
    ] = None,
) -> None:
    """Count questions, items and useful items, as in the paper's appendix J."""
    from evenmesh_lab import reports
    from evenmesh_lab.files import read_labels
    from evenmesh_lab.studies import profiles
    from evenmesh_studies.commands.eval.outputs import reported, show

    if len(labels) != len(queries):
        raise CommandError(f"{len(queries)} data sets and {len(labels)} --labels; one for each", USAGE)
    screen = Screen()
    with reported():
        rows = [
            profiles.statistics(
                path.name.partition(".jsonl")[0],
                _queries(screen, path),
                read_labels(judged),
                least=min_useful,
                min_grade=min_grade,
            )
            for path, judged in zip(queries, labels, strict=True)
        ]
        table = profiles.table(rows, min_useful)
        if csv is not None:
            reports.write_csv((table,), csv)
        if markdown is not None:
            markdown.write_text(reports.as_markdown([table]), encoding="utf-8")
        show(screen, [table])


def _queries(screen: Screen, path: Path) -> list["Query"]:
    from evenmesh_lab.files import read_queries

    found = read_queries(path)
    problems = [str(problem) for problem in found.problems]
    bare = [query.query_id for query in found.queries if not query.passages]
    if bare:
        problems.append(f"{path}: these bring no passages: {', '.join(bare[:10])}")
    refuse(screen, problems)
    return list(found.queries)
