"""``evenmesh eor``: let the answers of a pool of retrievers vote with learned weights."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from evenmesh.commands.ask import Target
from evenmesh.commands.failure import refuse
from evenmesh.commands.option_groups import with_groups
from evenmesh.commands.screen import Screen
from evenmesh_studies.commands import study
from evenmesh_studies.commands.eval import options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenmesh.addresses import Addresses
    from evenmesh_lab.files.trained_texts import TrainedTexts
    from evenmesh_lab.studies.correctness import Judging
    from evenmesh_lab.studies.vote import Voting
    from evenmesh_studies.ensembles.plan import Dataset, EnsemblePlan, EnsembleUnit
    from evenmesh_studies.ensembles.pool import Pool
    from evenmesh_studies.runner import Shard, StudyRunner

_SIMILARITIES: Final = ("token_f1", "containment_em", "embedding_cosine")
_SHOWN: Final = ("main", "comparisons", "poolings", "retrievers")
"""Tables shown on the terminal; the page has all."""


@with_groups
def eor(
    *,
    questions: Annotated[
        list[Path],
        typer.Argument(
            help="Questions: JSON lines or Parquet of query_id, question, references; a file is a data set."
        ),
    ],
    out: study.Out,
    pool: Annotated[
        str | None,
        typer.Option(
            "--pool",
            "-p",
            metavar="POOL.toml|A,B,…",
            help="2 to 20 retrievers, such as Wiki@10,SE@RR@5&Wiki@5,ReFree, or a file that lists them.",
        ),
    ] = None,
    model: study.Models = None,
    reranker: Annotated[
        str | None, typer.Option(help="Reranker for @RR. [default: the pool's, or the mesh's own]")
    ] = None,
    train_share: Annotated[float, typer.Option(help="Share of questions to learn weights on.")] = 0.5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the questions' order and split.")] = 0,
    sample: Annotated[
        int | None,
        typer.Option(min=2, help="Most questions of each data set; a larger number resumes the run."),
    ] = None,
    similarity: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="How answers are compared: token_f1, containment_em, embedding_cosine; with a model of "
            "their own bert_score, nli, nli_question, answer_equivalence. May be repeated.  [default: the "
            "first three]",
        ),
    ] = None,
    rule: options.VoteRule,
    max_weight: Annotated[float, typer.Option(help="Largest weight that is learned.")] = 0.6,
    judge: options.Judge = "exact_match",
    longest_answer: Annotated[
        int,
        typer.Option(min=0, help="Longest answer, in words, whose kind of error is classified; 0: any."),
    ] = 5,
    named: options.SimilarityModels,
    level: options.Level = 0.95,
    trained_on: study.TrainedOn = None,
    report_only: Annotated[
        bool,
        typer.Option("--report-only", help="Ask nothing: measure the answers so far."),
    ] = False,
    shard: study.ShardText = "0/1",
    in_flight: study.InFlight = 2,
    timeout: study.Timeout = 600.0,
    retry_for: study.RetryFor = 600.0,
    target: Target = None,
) -> None:
    """Study an ensemble of retrievers.

    Answer every question with every retriever; learn weights for a vote on some of the questions and test
    them on the others. The same command resumes a run that was stopped or killed.
    """
    from evenmesh_studies.commands.eval.outputs import reported

    screen = Screen()
    with reported():
        from evenmesh_studies.ensembles.plan import EnsemblePlan
        from evenmesh_studies.ensembles.run import connected
        from evenmesh_studies.runner import StudyRunner
        from evenmesh_studies.runner.overlap import read_given
        from evenmesh_studies.runner.preflight import proper_share
        from evenmesh_studies.runner.shards import shard_of_folder

        problems: list[str] = []
        given = read_given(trained_on, problems)
        voting = _voting(named, similarity or list(_SIMILARITIES), rule, max_weight, problems)
        judging = _judging(named, judge, problems)
        problems.extend(proper_share("--level", level))
        part = study.shard_of(shard, problems)
        if report_only and part.count == 1:
            part = shard_of_folder(out, EnsemblePlan.kind)
        plan = EnsemblePlan(
            datasets=_datasets(questions),
            pool=_pool(pool, reranker, out, part if report_only else None),
            models=model or [],
            train_share=train_share,
            seed=seed,
            sample=sample,
            timeout=timeout,
        )
        if report_only:
            plan = _stored_plan(screen, plan, out, part, problems)
            runner = StudyRunner(plan, out, part)
        else:
            plan, addresses = _checked_plan(screen, plan, target, problems)
            runner = StudyRunner(plan, out, part, in_flight, retry_for)
            counted = f"questions × models, {len(plan.pool.members)} retrievers each"
            study.run_study(screen, runner, lambda: connected(plan, out, addresses), counted)
            then = "the last one makes the report, or --report-only of what is there"
            if study.others_missing(screen, runner, "questions", then):
                return
        _report(screen, plan, runner, voting, judging, longest_answer or None, level, given)


def _checked_plan(
    screen: Screen, plan: "EnsemblePlan", target: str | None, problems: list[str]
) -> "tuple[EnsemblePlan, Addresses]":
    """Return the plan with the models and indexes of the mesh.

    Raises:
        CommandError: there are problems; all of them were shown.
    """
    from dataclasses import replace

    from evenmesh import Client
    from evenmesh_studies.ensembles.checks import check

    with Client(target) as client:
        plan = replace(plan, models=study.models_of(list(plan.models), client.addresses))
        found, versions = check(plan, client, problems)
        addresses = client.addresses
    study.refuse_problems(screen, found)
    return replace(plan, versions=versions), addresses


def _stored_plan(
    screen: Screen, plan: "EnsemblePlan", out: Path, shard: "Shard", problems: list[str]
) -> "EnsemblePlan":
    """Return the plan with the models and indexes of the run in a folder.

    Raises:
        CommandError: there are problems; all of them were shown.
    """
    from dataclasses import replace

    from evenmesh_studies.runner.shards import read_stored

    stored = read_stored(out, plan.kind, shard)
    problems.extend(plan.pool.problems)
    for dataset in plan.datasets:
        problems.extend(map(str, dataset.queries.problems))
    if not problems:
        problems.extend(plan.changed_datasets(stored))
    for name, mine, theirs in (
        ("--pool", list(plan.pool.members), stored.settings["pool"]),
        ("--seed", plan.seed, stored.settings["seed"]),
    ):
        if mine != theirs:
            problems.append(f"{name}: is {mine!r}, the run was asked with {theirs!r}")
    unknown = [one for one in plan.models if one not in stored.settings["models"]]
    problems.extend(f"--model {one}: the run did not ask it" for one in unknown)
    refuse(screen, problems)
    return replace(plan, models=plan.models or stored.settings["models"], versions=stored.settings["indexes"])


def _report(
    screen: Screen,
    plan: "EnsemblePlan",
    runner: "StudyRunner[EnsembleUnit]",
    voting: "Voting",
    judge: "Judging",
    longest_answer: int | None,
    level: float,
    given: "Mapping[str, TrainedTexts]",
) -> None:
    """Measure what is written, write the report and show its main tables."""
    from evenmesh_lab.studies.eor import cached
    from evenmesh_lab.studies.statements import intervals
    from evenmesh_studies.commands.eval.outputs import show
    from evenmesh_studies.ensembles import report
    from evenmesh_studies.runner.overlap import context_texts, overlap
    from evenmesh_studies.runner.report import program, provenance
    from evenmesh_studies.runner.shards import read_stored

    stored = read_stored(runner.folder, plan.kind, runner.shard)
    total, missing = sum(1 for _ in plan.units()), runner.missing(stored)
    if missing:
        screen.note(f"note: {missing:,} of {total:,} questions × models were not asked yet")
    measured = partial(
        report.measure,
        plan,
        runner.folder,
        cached(voting),
        judge=judge,
        longest_answer=longest_answer,
        level=level,
        shard=runner.shard,
    )
    found = measured()
    measurable = {(one.dataset, row.query_id) for one in found.settings for row in one.vote.rows}
    known = overlap(
        stored.facts,
        {
            (one.name, query.query_id): (query.question,)
            for one in plan.datasets
            for query in plan.chosen(one)
            if (one.name, query.query_id) in measurable
        },
        given=given,
        passages=context_texts(report.contexts(plan, runner.folder, runner.shard)),
    )
    parts = [(name, measured(only=mine)) for name, mine in known.parts]
    left_out = total - missing - sum(one.num_train + one.num_test for one in found.settings)
    if left_out:
        screen.note(f"note: {left_out:,} questions × models are left out, as some retriever led to no answer")
    facts = [
        *(
            (f"questions of {one.name}", f"{len(plan.chosen(one)):,} of {one.queries.path.name}")
            for one in plan.datasets
        ),
        ("split", f"{plan.train_share:g} train, by a hash of each question's id with seed {plan.seed}"),
        ("not asked yet", f"{missing:,}"),
        ("left out", f"{left_out:,} questions × models that some retriever led to no answer"),
        ("retrievers", ", ".join(plan.pool.members)),
        ("vote", f"{voting.pooling} of {', '.join(one.name for one in voting.similarities)}"),
        (
            "weights",
            f"Nelder–Mead, 0 to {voting.max_weight:g}; those up to {voting.retriever_filter:g} cannot win; "
            "deterministic",
        ),
        ("answers judged by", found.judge),
        ("intervals", intervals(found.bootstrap)),
        *((f"index of {name}", value) for name, value in plan.versions.items()),
        *((name, value or "–") for name, value in stored.facts.items()),
        ("program", program()),
    ]
    stated = "; ".join([*provenance(stored.facts), f"questions and split by seed {plan.seed}", program()])
    page, *_ = report.write(
        found, voting, facts, stated, runner.folder / "report", overlap=known, parts=parts
    )
    for name, some in (*parts, ("all", found)):
        if parts:
            study.show_part(screen, f"{name} test")
        show(screen, [table for table in some.tables() if table.name in _SHOWN])
        screen.line()
    screen.note(known.statement)
    screen.note(f"wrote {page}, and tables, figures and weights beside it")


def _datasets(paths: "Sequence[Path]") -> "list[Dataset]":
    from evenmesh_lab.files import read_queries
    from evenmesh_studies.ensembles.plan import Dataset

    return [Dataset(path.name.partition(".")[0], read_queries(path)) for path in paths]


def _pool(text: str | None, reranker: str | None, out: Path, shard: "Shard | None") -> "Pool":
    """Return the retrievers that ``--pool`` names, or else those that the run of a shard asked."""
    from dataclasses import replace

    from evenmesh_studies.ensembles.plan import EnsemblePlan
    from evenmesh_studies.ensembles.pool import Pool, read_pool
    from evenmesh_studies.runner.shards import read_stored

    if text is None and shard is not None:
        stored = read_stored(out, EnsemblePlan.kind, shard)
        return Pool(tuple(stored.settings["pool"]), stored.settings["reranker"])
    if text is None:
        return Pool((), None, ("--pool: is missing; allowed: a file, or expressions with commas between",))
    found = read_pool(text)
    return replace(found, reranker=reranker) if reranker is not None else found


def _voting(
    named: options.SimilarityModels,
    names: "Sequence[str]",
    rule: options.VoteRule,
    max_weight: float,
    problems: list[str],
) -> "Voting":
    """Return how answers vote; add what is wrong with it to ``problems``."""
    from evenmesh_core.ensemble.votes import POOLINGS
    from evenmesh_core.errors import InvalidInput
    from evenmesh_lab.similarities import MissingModel
    from evenmesh_lab.studies.vote import Voting

    try:
        known = named.similarities()
    except InvalidInput as error:
        problems.append(str(error))
        names = ()
    found = []
    for name in dict.fromkeys(names):
        try:
            found.append(known.get(name))
            if name == "embedding_cosine":
                named.models().folder("embedding")
        except (InvalidInput, MissingModel) as error:
            problems.append(f"--similarity {name}: {error}")
    if rule.pooling not in POOLINGS:
        problems.append(f"--pooling {rule.pooling}: allowed: {', '.join(POOLINGS)}")
    if not 0 < max_weight <= 1:
        problems.append(f"--max-weight {max_weight:g}: allowed: above 0, at most 1")
    elif not 0 <= rule.retriever_filter < max_weight / 2:
        problems.append(
            f"--filter {rule.retriever_filter:g}: allowed: from 0, below {max_weight / 2:g}, "
            "half of --max-weight"
        )
    pooling = next((one for one in POOLINGS if one == rule.pooling), "mean")
    return Voting(tuple(found), **asdict(rule) | {"pooling": pooling}, max_weight=max_weight)


def _judging(named: options.SimilarityModels, judge: str, problems: list[str]) -> "Judging":
    """Return how answers are compared with references; add what is wrong with it to ``problems``."""
    from evenmesh_core.errors import InvalidInput
    from evenmesh_lab.similarities import MissingModel

    try:
        return named.judge(judge)
    except MissingModel as error:
        problems.append(f"--judge {judge}: {error}")
    except InvalidInput as error:
        line = f"--judge {judge}: allowed: {error.allowed}" if error.argument == "--judge" else str(error)
        problems.extend([] if line in problems else [line])
    return judge
