"""``ragmesh eval vote`` and ``ragmesh eval inconsistency``: answers of an ensemble of retrievers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ragmesh.cli.eval import options
from ragmesh.cli.eval.outputs import Outputs, deliver, reported
from ragmesh.cli.failure import USAGE, CommandError

if TYPE_CHECKING:
    from ragcore.ensemble import Pooling

Files = Annotated[
    list[Path],
    typer.Argument(help="Answers by retriever, JSON lines (.jsonl) or Parquet (.parquet); .gz too."),
]
Retrievers = Annotated[
    str | None,
    typer.Option(metavar="A,B,…", help="Retrievers to look at, in which order ties break. Default: all."),
]


def vote(
    files: Files,
    similarity: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=WEIGHT]",
            help="How answers are compared: token_f1, containment_em, embedding_cosine, bert_score, nli, "
            "nli_question, answer_equivalence. May be repeated.  [default: token_f1]",
        ),
    ] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option(metavar="RETRIEVER=WEIGHT", help="A retriever's weight, 1 if not given. Repeatable."),
    ] = None,
    pooling: options.Pooling = "mean",
    threshold: options.Threshold = 0.8,
    retriever_filter: options.RetrieverFilter = 0.1,
    drop_filtered: options.DropFiltered = False,
    tune: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Training questions to search the weights on; other than FILES."),
    ] = None,
    judge: options.Judge = "exact_match",
    retrievers: Retrievers = None,
    embedding_model: options.EmbeddingModel = None,
    bert_score_model: options.BertScoreModel = None,
    nli_model: options.NliModel = None,
    answer_equivalence_model: options.AnswerEquivalenceModel = None,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch a model that is not on this machine.")
    ] = False,
    level: options.Level = 0.95,
    interval: options.Method = "bca",
    resamples: options.Resamples = 2000,
    seed: options.Seed = 0,
    as_json: options.Json = None,
    csv: options.Csv = None,
    html: options.Html = None,
) -> None:
    """Let the answers of an ensemble of retrievers vote."""
    outputs = Outputs(as_json, csv, None, html)
    outputs.check()
    with reported():
        from raglab.files import read_ensemble
        from raglab.similarities import Models, Similarities
        from raglab.studies import vote as study

        models = Models(
            embedding=embedding_model,
            bert_score=bert_score_model,
            nli=nli_model,
            answer_equivalence=answer_equivalence_model,
            called=options.MODEL_OPTIONS,
            download=download,
        )
        known = Similarities(models)
        asked = dict(_weighed("--similarity", one) for one in similarity or ["token_f1"])
        ensemble = read_ensemble(files, retrievers=_names(retrievers))
        found = study.measure(
            ensemble,
            study.Voting(
                similarities=tuple(known.get(name) for name in asked),
                similarity_weights=tuple(asked.values()),
                retriever_weights=_retriever_weights(weight or [], ensemble.retrievers),
                pooling=_pooling(pooling),
                threshold=threshold,
                retriever_filter=retriever_filter,
                drop_filtered=drop_filtered,
            ),
            judge=judge,
            training=None if tune is None else read_ensemble([tune], retrievers=ensemble.retrievers),
            bootstrap=options.bootstrap(level, resamples, seed, interval),
        )
        notes = [] if found.accuracy is not None else ["no references and no correct: accuracy is not known"]
        deliver(found, outputs, title="Votes", files=files, notes=notes)


def inconsistency(
    files: Files,
    judge: options.Judge = "exact_match",
    threshold: Annotated[
        float, typer.Option(min=0, max=1, help="Correctness from which an answer is right.")
    ] = 0.5,
    retrievers: Retrievers = None,
    level: options.Level = 0.95,
    interval: options.Method = "bca",
    resamples: options.Resamples = 2000,
    seed: options.Seed = 0,
    as_json: options.Json = None,
    csv: options.Csv = None,
    plot: options.Plot = None,
    html: options.Html = None,
) -> None:
    """How retrievers disagree, and what errors they lead to."""
    outputs = Outputs(as_json, csv, plot, html)
    outputs.check()
    with reported():
        from raglab.files import read_ensemble
        from raglab.studies import inconsistency as study

        found = study.measure(
            read_ensemble(files, retrievers=_names(retrievers)),
            judge=judge,
            threshold=threshold,
            bootstrap=options.bootstrap(level, resamples, seed, interval),
        )
        notes = (
            []
            if found.errors
            else ["no contexts and references throughout: kinds of errors are not told apart"]
        )
        deliver(found, outputs, title="Inconsistency of retrievers", files=files, notes=notes)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _weighed(option: str, text: str) -> tuple[str, float]:
    name, equals, weight = text.rpartition("=")
    if not equals:
        return text, 1.0
    try:
        value = float(weight)
    except ValueError as exc:
        raise CommandError(f"{option} is {text!r}; allowed: NAME=WEIGHT, a number from 0", USAGE) from exc
    return name, value


def _retriever_weights(given: list[str], retrievers: tuple[str, ...]) -> tuple[float, ...] | None:
    if not given:
        return None
    weights = dict.fromkeys(retrievers, 1.0)
    for text in given:
        name, value = _weighed("--weight", text)
        if name not in weights:
            raise CommandError(f"--weight names {name!r}; allowed: {', '.join(retrievers)}", USAGE)
        weights[name] = value
    return tuple(weights.values())


def _pooling(name: str) -> "Pooling":
    from ragcore.ensemble.votes import POOLINGS

    for pooling in POOLINGS:
        if name == pooling:
            return pooling
    raise CommandError(f"--pooling is {name!r}; allowed: {', '.join(POOLINGS)}", USAGE)
