"""``evenmesh eval vote`` and ``evenmesh eval inconsistency``: compare answers of several retrievers."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenmesh.commands.failure import USAGE, CommandError
from evenmesh.commands.option_groups import with_groups
from evenmesh_studies.commands.eval import options
from evenmesh_studies.commands.eval.outputs import DrawnOutputs, Outputs, deliver, reported

if TYPE_CHECKING:
    from evenmesh_core.ensemble import Pooling

Files = Annotated[
    list[Path],
    typer.Argument(help="Answers by retriever, JSON lines (.jsonl) or Parquet (.parquet); .gz too."),
]
Retrievers = Annotated[
    str | None,
    typer.Option(metavar="A,B,…", help="Retrievers to include; ties break in their order. Default: all."),
]


@with_groups
def vote(
    *,
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
    rule: options.VoteRule,
    tune: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Training questions to search the weights on; other than FILES."),
    ] = None,
    judge: options.Judge = "exact_match",
    retrievers: Retrievers = None,
    models: options.SimilarityModels,
    download: Annotated[
        bool, typer.Option("--download", help="Download a model that is not on this machine.")
    ] = False,
    intervals: options.Intervals,
    outputs: Outputs,
) -> None:
    """Let the answers of an ensemble of retrievers vote."""
    outputs.check()
    with reported():
        from evenmesh_lab.files import read_ensemble
        from evenmesh_lab.studies import vote as study
        from evenmesh_lab.studies.correctness import unjudged

        known = models.similarities(download=download)
        asked = dict(_weighed("--similarity", one) for one in similarity or ["token_f1"])
        ensemble = read_ensemble(files, retrievers=_names(retrievers))
        found = study.measure(
            ensemble,
            study.Voting(
                similarities=tuple(known.get(name) for name in asked),
                similarity_weights=tuple(asked.values()),
                retriever_weights=_retriever_weights(weight or [], ensemble.retrievers),
                **asdict(rule) | {"pooling": _pooling(rule.pooling)},
            ),
            judge=models.judge(judge, download=download),
            training=None if tune is None else read_ensemble([tune], retrievers=ensemble.retrievers),
            bootstrap=intervals.bootstrap(),
        )
        notes = []
        if lacking := unjudged(ensemble):
            notes = [
                f"{len(lacking):,} of {len(ensemble.questions):,} questions, such as {lacking[0]!r}, have "
                "neither references nor correct: accuracy is unknown"
            ]
        deliver(found, outputs, title="Votes", files=files, notes=notes)


@with_groups
def inconsistency(
    *,
    files: Files,
    judge: options.Judge = "exact_match",
    threshold: Annotated[
        float, typer.Option(min=0, max=1, help="Correctness from which an answer is right.")
    ] = 0.5,
    retrievers: Retrievers = None,
    models: options.SimilarityModels,
    intervals: options.Intervals,
    outputs: DrawnOutputs,
) -> None:
    """Measure how retrievers disagree, and their errors."""
    outputs.check()
    with reported():
        from evenmesh_lab.files import read_ensemble
        from evenmesh_lab.studies import inconsistency as study

        found = study.measure(
            read_ensemble(files, retrievers=_names(retrievers)),
            judge=models.judge(judge),
            threshold=threshold,
            bootstrap=intervals.bootstrap(),
        )
        notes = [] if found.errors else ["some contexts or references are missing: errors are not classified"]
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
    from evenmesh_core.ensemble.votes import POOLINGS

    for pooling in POOLINGS:
        if name == pooling:
            return pooling
    raise CommandError(f"--pooling is {name!r}; allowed: {', '.join(POOLINGS)}", USAGE)
