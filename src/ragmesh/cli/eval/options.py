"""Options that the commands of ``ragmesh eval`` share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

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
Pooling = Annotated[
    str,
    typer.Option("--pooling", metavar="mean|max|majority|plurality", help="How similarities become a score."),
]
Threshold = Annotated[float, typer.Option("--threshold", help="Similarity above which answers are alike.")]
RetrieverFilter = Annotated[
    float, typer.Option("--filter", help="Weight up to which a retriever's answer cannot win.")
]
DropFiltered = Annotated[bool, typer.Option("--drop-filtered", help="Those do not vote for others either.")]
EmbeddingModel = Annotated[
    str | None,
    typer.Option("--embedding-model", metavar="MODEL", help="Of embedding_cosine. Default: the bundled one."),
]
BertScoreModel = Annotated[
    str | None, typer.Option("--bert-score-model", metavar="MODEL", help="Of bert_score.")
]
NliModel = Annotated[
    str | None, typer.Option("--nli-model", metavar="MODEL", help="Of nli and nli_question.")
]
AnswerEquivalenceModel = Annotated[
    str | None,
    typer.Option("--answer-equivalence-model", metavar="MODEL", help="Of answer_equivalence."),
]
MODEL_OPTIONS: Final = {
    "embedding": "--embedding-model",
    "bert_score": "--bert-score-model",
    "nli": "--nli-model",
    "answer_equivalence": "--answer-equivalence-model",
}
"""The option that names each model of a similarity."""


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
