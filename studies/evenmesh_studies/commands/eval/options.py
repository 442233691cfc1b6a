"""Options shared by the commands of ``evenmesh eval``."""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from evenmesh_lab.similarities import Models, Similarities
    from evenmesh_lab.similarities.equivalence import EquivalenceModel
    from evenmesh_lab.studies import Bootstrap
    from evenmesh_lab.studies.correctness import Judging

Depth = Annotated[int, typer.Option("--k", "-k", min=1, help="Passages the generator is given.")]
Qrels = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Labels: TREC qrels, or JSON lines or Parquet of labels."),
]


def _above_0(given: float) -> float:
    if not 0 < given < math.inf:
        raise typer.BadParameter(f"{given:g} is not a number above 0")
    return given


MinGrade = Annotated[
    float, typer.Option(callback=_above_0, help="Grade from which a passage is useful, above 0.")
]
Graded = Annotated[bool, typer.Option("--graded", help="Count higher grades as more relevant.")]
Pool = Annotated[
    bool,
    typer.Option("--pool", help="Treat all rankings of a query and α as samples of one system."),
]
Level = Annotated[float, typer.Option(help="Confidence level of intervals.")]
Judge = Annotated[
    str,
    typer.Option(
        metavar="exact_match|containment|token_f1|answer_equivalence",
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
        typer.Option(metavar="MODEL", help="Model of answer_equivalence; of a server, its name there."),
    ] = None
    answer_equivalence_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Base URL of a server that has this model."),
    ] = None
    answer_equivalence_server: Annotated[
        str, typer.Option(metavar="tei|openai", help="What the server speaks: TEI's /predict, or chat.")
    ] = "tei"
    answer_equivalence_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File of the server's key.")
    ] = None

    def similarities(self, *, download: bool = False) -> "Similarities":
        """Return the similarities with these models and server.

        Raises:
            InvalidInput: the server, or an option of it, cannot be used.
        """
        from evenmesh_lab.similarities import Similarities

        return Similarities(self.models(download=download), self._server())

    def judge(self, name: str, *, download: bool = False) -> "Judging":
        """Return the judge of that name.

        Raises:
            InvalidInput: there is none of that name, or its server cannot be used.
            MissingModel: it needs a model, and none is named.
        """
        from evenmesh_core.errors import InvalidInput
        from evenmesh_lab.studies.correctness import JUDGES
        from evenmesh_lab.studies.equivalence_judge import NAME, EquivalenceJudge

        if name == NAME:
            return EquivalenceJudge(self.similarities(download=download).equivalence())
        if name not in JUDGES:
            raise InvalidInput("--judge", name, ", ".join((*JUDGES, NAME)))
        return name

    def _server(self) -> "EquivalenceModel | None":
        from importlib.util import find_spec

        from evenmesh_core.errors import InvalidInput

        if self.answer_equivalence_url is None:
            return None
        if find_spec("httpx") is None or find_spec("evenmesh_kit") is None:
            needs = "a URL where evenmesh-kit is: pip install ./libs/kit './studies[servers]' in a checkout"
            raise InvalidInput("--answer-equivalence-url", self.answer_equivalence_url, needs)
        from evenmesh_kit.remote.options import RemoteOptionError, RemoteOptions
        from evenmesh_studies.ensembles.equivalence_server import ServedEquivalence

        for known in ("tei", "openai"):
            if known == self.answer_equivalence_server:
                break
        else:
            raise InvalidInput("--answer-equivalence-server", self.answer_equivalence_server, "tei, openai")
        if known == "openai" and not self.answer_equivalence_model:
            raise InvalidInput("--answer-equivalence-model", "", "the model's name at the server")
        try:
            options = RemoteOptions(
                (self.answer_equivalence_url.rstrip("/"),), api_key_file=self.answer_equivalence_key
            )
            return ServedEquivalence(
                options,
                "tei" if known == "tei" else "openai",
                model=self.answer_equivalence_model or "",
            )
        except RemoteOptionError as error:
            raise InvalidInput("--answer-equivalence-url", self.answer_equivalence_url, str(error)) from None

    def models(self, *, download: bool = False) -> "Models":
        """Return the models as similarities take them."""
        from evenmesh_lab.similarities import Models

        named = {
            one.name.removesuffix("_model"): getattr(self, one.name)
            for one in fields(self)
            if one.name.endswith("_model")
        }
        called = {name: f"--{name.replace('_', '-')}-model" for name in named}
        return Models(**named, called=called, download=download)
