"""Options that the commands of ``ragmesh eval`` share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from raglab.studies import Bootstrap

Json = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write all of it as JSON; - is standard output."),
]
Csv = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write each query's row as CSV, the other tables beside it."),
]
Plot = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draw figures: .png, .svg or .pdf; several get their names added."),
]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Write one page of everything.")]
Depth = Annotated[int, typer.Option("--k", "-k", min=1, help="Passages the generator is given.")]
Qrels = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Labels: TREC qrels, or JSON lines or Parquet of labels."),
]
MinGrade = Annotated[float, typer.Option(help="Grade from which a passage is useful.")]
Graded = Annotated[bool, typer.Option("--graded", help="Higher grades deserve to be shown first.")]
Pool = Annotated[
    bool,
    typer.Option("--pool", help="Take all rankings of a query and α as samples of one system."),
]
Level = Annotated[float, typer.Option(help="Confidence level of intervals.")]
Resamples = Annotated[int, typer.Option(min=100, help="Resamples of the bootstrap.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")]
Method = Annotated[
    str, typer.Option("--interval", metavar="bca|percentile", help="How intervals are computed.")
]
Judge = Annotated[
    str,
    typer.Option(
        metavar="exact_match|containment|token_f1",
        help="How answers are held against references, where the file does not say what is correct.",
    ),
]


def bootstrap(level: float, resamples: int, seed: int, method: str) -> "Bootstrap":
    """How intervals are computed.

    Raises:
        CommandError: an option out of range.
    """
    from typing import get_args

    from ragcore.intervals import BootstrapMethod
    from raglab.studies import Bootstrap
    from ragmesh.cli.failure import USAGE, CommandError

    if not 0 < level < 1:
        raise CommandError(f"--level is {level:g}; allowed: between 0 and 1", USAGE)
    for known in get_args(BootstrapMethod):
        if method == known:
            return Bootstrap(level, resamples, known, seed)
    raise CommandError(f"--interval is {method!r}; allowed: bca, percentile", USAGE)
