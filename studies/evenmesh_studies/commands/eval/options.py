"""Options shared by the commands of ``evenmesh eval``."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from evenmesh_lab.similarities import Models
    from evenmesh_lab.studies import Bootstrap

Depth = Annotated[int, typer.Option("--k", "-k", min=1, help="Passages the generator is given.")]
Qrels = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Labels: TREC qrels, or JSON lines or Parquet of labels."),
]
MinGrade = Annotated[float, typer.Option(help="Grade from which a passage is useful.")]
Graded = Annotated[bool, typer.Option("--graded", help="Count higher grades as more relevant.")]
Pool = Annotated[
    bool,
    typer.Option("--pool", help="Treat all rankings of a query and α as samples of one system."),
]
Level = Annotated[float, typer.Option(help="Confidence level of intervals.")]
Judge = Annotated[
    str,
    typer.Option(
        metavar="exact_match|containment|token_f1",
        help="How answers are compared with references, if the file does not say which are correct.",
    ),
]


@dataclass(frozen=True)
class Intervals:
    """How the intervals of a study are computed."""

    level: Level = 0.95
    interval: Annotated[
        str, typer.Option("--interval", metavar="bca|percentile", help="How intervals are computed.")
    ] = "bca"
    resamples: Annotated[int, typer.Option(min=100, help="Resamples of the bootstrap.")] = 2000
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")] = 0

    def bootstrap(self) -> "Bootstrap":
        """Return them as studies take them.

        Raises:
            CommandError: an option is out of range.
        """
        from typing import get_args

        from evenmesh.commands.failure import USAGE, CommandError
        from evenmesh_core.intervals import BootstrapMethod
        from evenmesh_lab.studies import Bootstrap

        if not 0 < self.level < 1:
            raise CommandError(f"--level is {self.level:g}; allowed: between 0 and 1", USAGE)
        for known in get_args(BootstrapMethod):
            if self.interval == known:
                return Bootstrap(self.level, self.resamples, known, self.seed)
        raise CommandError(f"--interval is {self.interval!r}; allowed: bca, percentile", USAGE)


@dataclass(frozen=True)
class VoteRule:
    """How similarities of answers become a vote."""

    pooling: Annotated[
        str,
        typer.Option(
            "--pooling", metavar="mean|max|majority|plurality", help="How similarities become a score."
        ),
    ] = "mean"
    threshold: Annotated[float, typer.Option(help="Similarity above which answers agree.")] = 0.8
    retriever_filter: Annotated[
        float, typer.Option("--filter", help="Weight up to which a retriever's answer cannot win.")
    ] = 0.1
    drop_filtered: Annotated[
        bool, typer.Option("--drop-filtered", help="Such answers do not vote for others either.")
    ] = False


@dataclass(frozen=True)
class SimilarityModels:
    """Models of the similarities that need one."""

    embedding_model: Annotated[
        str | None,
        typer.Option(
            "--embedding-model", metavar="MODEL", help="Model of embedding_cosine. Default: the bundled one."
        ),
    ] = None
    bert_score_model: Annotated[str | None, typer.Option(metavar="MODEL", help="Model of bert_score.")] = None
    nli_model: Annotated[str | None, typer.Option(metavar="MODEL", help="Model of nli and nli_question.")] = (
        None
    )
    answer_equivalence_model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Model of answer_equivalence."),
    ] = None

    def models(self, *, download: bool = False) -> "Models":
        """Return the models as similarities take them."""
        from evenmesh_lab.similarities import Models

        named = {one.name.removesuffix("_model"): getattr(self, one.name) for one in fields(self)}
        called = {name: f"--{name.replace('_', '-')}-model" for name in named}
        return Models(**named, called=called, download=download)
