"""``ragmesh eor``: a question set over a pool of retrievers, whose answers vote with learned weights."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ragmesh.cli import long_runs
from ragmesh.cli.ask import Target
from ragmesh.cli.eval import options
from ragmesh.cli.failure import refuse
from ragmesh.cli.screen import Screen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ragcore.ensemble import Pooling
    from raglab.files import Journal
    from raglab.studies.vote import Voting
    from ragmesh.addresses import Addresses
    from ragmesh.eor.plan import Dataset, EorPlan
    from ragmesh.eor.pool import Pool
    from ragmesh.shards import Shard

_SIMILARITIES: Final = ("token_f1", "containment_em", "embedding_cosine")
_SHOWN: Final = ("main", "comparisons", "poolings", "retrievers")
"""Tables that the terminal shows; the page has them all."""


def eor(
    questions: Annotated[
        list[Path],
        typer.Argument(
            help="Questions: JSON lines or Parquet of query_id, question, references; a file is a data set."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where records and the report go.")
    ],
    pool: Annotated[
        str | None,
        typer.Option(
            "--pool",
            "-p",
            metavar="POOL.toml|A,B,…",
            help="2 to 20 retrievers, such as Wiki@10,SE@RR@5&Wiki@5,ReFree, or a file that lists them.",
        ),
    ] = None,
    model: long_runs.Models = None,
    reranker: Annotated[
        str | None, typer.Option(help="What @RR stands for.  [default: the pool's, or the mesh's own]")
    ] = None,
    train_share: Annotated[float, typer.Option(help="Share of questions to learn weights on.")] = 0.5,
    seed: Annotated[int, typer.Option(min=0, help="Of the questions' order and split.")] = 0,
    sample: Annotated[
        int | None,
        typer.Option(min=2, help="Most questions of each data set; a larger number goes on where it was."),
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
    pooling: options.Pooling = "mean",
    threshold: options.Threshold = 0.8,
    retriever_filter: options.RetrieverFilter = 0.1,
    drop_filtered: options.DropFiltered = False,
    max_weight: Annotated[float, typer.Option(help="Largest weight that is learned.")] = 0.6,
    judge: options.Judge = "exact_match",
    longest_answer: Annotated[
        int,
        typer.Option(
            min=0, help="Kinds of errors are told apart for answers of at most so many words; 0: for all."
        ),
    ] = 5,
    embedding_model: options.EmbeddingModel = None,
    bert_score_model: options.BertScoreModel = None,
    nli_model: options.NliModel = None,
    answer_equivalence_model: options.AnswerEquivalenceModel = None,
    level: options.Level = 0.95,
    report_only: Annotated[
        bool,
        typer.Option("--report-only", help="Ask nothing: measure what is there, however much that is."),
    ] = False,
    shard: long_runs.ShardText = "0/1",
    in_flight: long_runs.InFlight = 2,
    timeout: long_runs.Timeout = 600.0,
    patience: long_runs.Patience = 600.0,
    target: Target = None,
) -> None:
    """Study an ensemble of retrievers.

    Every question is answered with every retriever; answers vote, with weights learned on some of the
    questions and tested on the others. A run that was stopped or killed goes on where it was.
    """
    from ragmesh.cli.eval.outputs import reported

    screen = Screen()
    with reported():
        from raglab.files import Journal
        from raglab.similarities import Models
        from ragmesh.eor.plan import EorPlan
        from ragmesh.eor.stored import KIND
        from ragmesh.shards import journal_path, shard_of_folder

        models = Models(
            embedding=embedding_model,
            bert_score=bert_score_model,
            nli=nli_model,
            answer_equivalence=answer_equivalence_model,
            called=options.MODEL_OPTIONS,
        )
        problems: list[str] = []
        voting = _voting(
            models,
            similarity or list(_SIMILARITIES),
            (pooling, threshold, retriever_filter, drop_filtered, max_weight),
            problems,
        )
        problems.extend(_options_wrong(judge, level))
        part = long_runs.shard_of(shard, problems)
        if report_only and part.count == 1:
            part = shard_of_folder(out, KIND)
        plan = EorPlan(
            datasets=_datasets(questions),
            pool=_pool(pool, reranker, out, part if report_only else None),
            models=model or [],
            train_share=train_share,
            seed=seed,
            sample=sample,
            timeout=timeout,
        )
        if report_only:
            plan = _stored(screen, plan, out, part, problems)
        else:
            plan, addresses = _checked(screen, plan, target, problems)
            with Journal(journal_path(out, KIND, part), plan.settings(part)) as journal:
                _run(screen, plan, journal, part, addresses, in_flight, patience)
            if _waits(screen, plan, out, part):
                return
        _report(screen, plan, out, part, voting, judge, longest_answer or None, level)


def _checked(
    screen: Screen, plan: "EorPlan", target: str | None, problems: list[str]
) -> "tuple[EorPlan, Addresses]":
    """The plan with what the mesh says of it.

    Raises:
        CommandError: something is wrong; everything that is, was told.
    """
    from dataclasses import replace

    from ragmesh.client import Client
    from ragmesh.eor.checks import check

    with Client(target) as client:
        plan = replace(plan, models=long_runs.models_of(list(plan.models), client.addresses))
        findings = check(plan, client, problems)
        addresses = client.addresses
    long_runs.tell(screen, findings)
    return replace(plan, versions=findings.versions), addresses


def _stored(screen: Screen, plan: "EorPlan", out: Path, shard: "Shard", problems: list[str]) -> "EorPlan":
    """The plan of a run that is there, with the questions it was asked.

    Raises:
        CommandError: something is wrong; everything that is, was told.
    """
    from dataclasses import replace

    from ragmesh.eor.stored import KIND, changed
    from ragmesh.shards import read_stored

    stored = read_stored(out, KIND, shard)
    problems.extend(plan.pool.problems)
    for dataset in plan.datasets:
        problems.extend(map(str, dataset.queries.problems))
    if not problems:
        problems.extend(changed(stored, list(plan.datasets), plan.settings()))
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


def _run(
    screen: Screen,
    plan: "EorPlan",
    journal: "Journal",
    shard: "Shard",
    addresses: "Addresses",
    in_flight: int,
    patience: float,
) -> None:
    from ragmesh.aio import AsyncClient
    from ragmesh.eor import driver
    from ragmesh.eor.stored import records_file

    units = list(plan.units(shard))

    async def run(watcher: long_runs.Watcher) -> None:
        async with AsyncClient(addresses) as client:
            await driver.run(
                client,
                plan,
                journal,
                units,
                lambda dataset, model: records_file(dataset, model, shard),
                watcher,
                in_flight=in_flight,
                patience_s=patience,
            )

    what = f"questions × models, {len(plan.pool.members)} retrievers each"
    long_runs.go_on(screen, what, [unit.name for unit in units], journal, _notes, run)


def _notes(what: Any) -> "Iterator[str]":
    if what.unanswered:
        unit = what.unit
        yield (
            f"{unit.query.query_id!r} of {unit.dataset} is left out: {unit.model} cannot answer it with "
            f"{', '.join(what.unanswered)}"
        )


def _waits(screen: Screen, plan: "EorPlan", out: Path, shard: "Shard") -> bool:
    """Whether other shards have something left to ask, which is told."""
    from ragmesh.eor.stored import KIND
    from ragmesh.shards import read_stored

    stored = read_stored(out, KIND, shard, plan.settings)
    missing = sum(unit.name not in stored.done for unit in plan.units())
    if missing:
        screen.note(
            f"{missing:,} questions of other shards are missing; the last one makes the report, or "
            "--report-only of what is there"
        )
    return missing > 0


def _report(
    screen: Screen,
    plan: "EorPlan",
    out: Path,
    shard: "Shard",
    voting: "Voting",
    judge: str,
    longest_answer: int | None,
    level: float,
) -> None:
    from importlib.metadata import version

    from raglab.studies.statements import intervals
    from ragmesh.cli.eval.outputs import show
    from ragmesh.eor import findings
    from ragmesh.eor.stored import KIND
    from ragmesh.shards import read_stored

    stored = read_stored(out, KIND, shard)
    units = [unit.name for unit in plan.units()]
    missing = sum(name not in stored.done for name in units)
    if missing:
        screen.note(f"note: {missing:,} of {len(units):,} questions × models were not asked yet")
    found = findings.measure(
        plan, out, voting, judge=judge, longest_answer=longest_answer, level=level, shard=shard
    )
    answered = sum(one.num_train + one.num_test for one in found.settings)
    left_out = len(units) - missing - answered
    if left_out:
        screen.note(f"note: {left_out:,} questions × models are left out, as some retriever led to no answer")
    versions = [
        f"{name.removeprefix('version of ')} {value}"
        for name, value in stored.facts.items()
        if name.startswith("version of ")
    ]
    rerankers = dict.fromkeys(
        value for name, value in stored.facts.items() if name.startswith("reranker of ")
    )
    ragmesh_version = f"ragmesh {version('ragmesh')}"
    stated = "; ".join([*versions, *rerankers, f"questions and split by seed {plan.seed}", ragmesh_version])
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
            f"Nelder–Mead, 0 to {voting.max_weight:g}, those up to {voting.retriever_filter:g} cannot win; "
            "nothing random",
        ),
        ("answers judged by", judge),
        ("intervals", intervals(found.bootstrap)),
        *((f"index of {name}", value) for name, value in plan.versions.items()),
        *((name, value or "–") for name, value in stored.facts.items()),
        ("program", ragmesh_version),
    ]
    written = findings.write(found, voting, facts, stated, out / "report")
    show(screen, [table for table in found.tables() if table.name in _SHOWN])
    screen.line()
    screen.note(f"wrote {written[0]}, and tables, figures and weights beside it")


def _datasets(paths: "Sequence[Path]") -> "list[Dataset]":
    from raglab.files import read_queries
    from ragmesh.eor.plan import Dataset

    return [Dataset(path.name.partition(".")[0], read_queries(path)) for path in paths]


def _pool(text: str | None, reranker: str | None, out: Path, shard: "Shard | None") -> "Pool":
    """The retrievers that are named, or those that the run of a shard has asked already."""
    from dataclasses import replace

    from ragmesh.eor.pool import Pool, read_pool
    from ragmesh.eor.stored import KIND
    from ragmesh.shards import read_stored

    if text is None and shard is not None:
        stored = read_stored(out, KIND, shard)
        return Pool(tuple(stored.settings["pool"]), stored.settings["reranker"])
    if text is None:
        return Pool((), None, ("--pool: is missing; allowed: a file, or expressions with commas between",))
    found = read_pool(text)
    return replace(found, reranker=reranker) if reranker is not None else found


def _voting(
    models: Any,
    names: "Sequence[str]",
    chosen: tuple[str, float, float, bool, float],
    problems: list[str],
) -> "Voting":
    """How answers vote; what is wrong with it goes to ``problems``."""
    from ragcore.ensemble.votes import POOLINGS
    from ragcore.errors import InvalidInput
    from raglab.similarities import MissingModel, Similarities
    from raglab.studies.vote import Voting

    pooling, threshold, retriever_filter, drop_filtered, max_weight = chosen
    known = Similarities(models)
    found = []
    for name in dict.fromkeys(names):
        try:
            found.append(known.get(name))
            if name == "embedding_cosine":
                models.folder("embedding")
        except (InvalidInput, MissingModel) as error:
            problems.append(f"--similarity {name}: {error}")
    if pooling not in POOLINGS:
        problems.append(f"--pooling {pooling}: allowed: {', '.join(POOLINGS)}")
    if not 0 < max_weight <= 1:
        problems.append(f"--max-weight {max_weight:g}: allowed: above 0, at most 1")
    elif not 0 <= retriever_filter < max_weight / 2:
        problems.append(
            f"--filter {retriever_filter:g}: allowed: from 0, below {max_weight / 2:g}, half of --max-weight"
        )
    kind: Pooling = next((one for one in POOLINGS if one == pooling), "mean")
    return Voting(
        tuple(found),
        pooling=kind,
        threshold=threshold,
        retriever_filter=retriever_filter,
        drop_filtered=drop_filtered,
        max_weight=max_weight,
    )


def _options_wrong(judge: str, level: float) -> list[str]:
    from raglab.studies.correctness import JUDGES

    problems = []
    if judge not in JUDGES:
        problems.append(f"--judge {judge}: allowed: {', '.join(JUDGES)}")
    if not 0 < level < 1:
        problems.append(f"--level {level:g}: allowed: between 0 and 1")
    return problems
