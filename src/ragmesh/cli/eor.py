"""``ragmesh eor``: a question set over a pool of retrievers, whose answers vote with learned weights."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ragmesh.cli.ask import Target
from ragmesh.cli.eval import options
from ragmesh.cli.eval.ensembles import MODEL_OPTIONS
from ragmesh.cli.failure import USAGE, CommandError
from ragmesh.cli.screen import Screen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ragcore.ensemble import Pooling
    from raglab.files import Journal
    from raglab.studies.vote import Voting
    from ragmesh.addresses import Addresses
    from ragmesh.cli.counting import CountDisplay
    from ragmesh.eor.plan import Dataset, EorPlan
    from ragmesh.eor.pool import Pool

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
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="Generator's model. May be repeated.  [default: the mesh's own]"),
    ] = None,
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
    pooling: Annotated[
        str, typer.Option(metavar="mean|max|majority|plurality", help="How similarities become a score.")
    ] = "mean",
    threshold: Annotated[float, typer.Option(help="Similarity above which answers are alike.")] = 0.8,
    retriever_filter: Annotated[
        float, typer.Option("--filter", help="Weight up to which a retriever's answer cannot win.")
    ] = 0.1,
    drop_filtered: Annotated[
        bool, typer.Option("--drop-filtered", help="Those do not vote for others either.")
    ] = False,
    max_weight: Annotated[float, typer.Option(help="Largest weight that is learned.")] = 0.6,
    judge: options.Judge = "exact_match",
    longest_answer: Annotated[
        int,
        typer.Option(
            min=0, help="Kinds of errors are told apart for answers of at most so many words; 0: for all."
        ),
    ] = 5,
    embedding_model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Of embedding_cosine. Default: the bundled one.")
    ] = None,
    bert_score_model: Annotated[str | None, typer.Option(metavar="MODEL", help="Of bert_score.")] = None,
    nli_model: Annotated[str | None, typer.Option(metavar="MODEL", help="Of nli and nli_question.")] = None,
    answer_equivalence_model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Of answer_equivalence.")
    ] = None,
    level: options.Level = 0.95,
    report_only: Annotated[
        bool,
        typer.Option("--report-only", help="Ask nothing: measure what is there, however much that is."),
    ] = False,
    in_flight: Annotated[int, typer.Option(min=1, max=64, help="Questions asked at a time.")] = 2,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for one question.")] = 600.0,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds the mesh may be away or overloaded before this gives up.")
    ] = 600.0,
    target: Target = None,
) -> None:
    """Study an ensemble of retrievers.

    Every question is answered with every retriever; answers vote, with weights learned on some of the
    questions and tested on the others. A run that was stopped or killed goes on where it was.
    """
    from ragmesh.cli.eval.outputs import reported

    screen = Screen()
    with reported():
        from raglab.similarities import Models
        from ragmesh.eor.plan import EorPlan

        models = Models(
            embedding=embedding_model,
            bert_score=bert_score_model,
            nli=nli_model,
            answer_equivalence=answer_equivalence_model,
            called=MODEL_OPTIONS,
        )
        problems: list[str] = []
        voting = _voting(
            models,
            similarity or list(_SIMILARITIES),
            (pooling, threshold, retriever_filter, drop_filtered, max_weight),
            problems,
        )
        problems.extend(_options_wrong(judge, level))
        plan = EorPlan(
            datasets=_datasets(questions),
            pool=_pool(pool, reranker, out, report_only=report_only),
            models=model or [],
            train_share=train_share,
            seed=seed,
            sample=sample,
            timeout=timeout,
        )
        if report_only:
            plan = _stored(screen, plan, out, problems)
        else:
            plan, addresses = _checked(screen, plan, target, problems)
            with _journal(out, plan) as journal:
                _run(screen, plan, journal, addresses, in_flight, patience)
        _report(screen, plan, out, voting, judge, longest_answer or None, level)


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
    from ragmesh.inventory import models

    with Client(target) as client:
        if not plan.models:
            plan = replace(plan, models=[models(client.addresses)[0].name])
        findings = check(plan, client, problems)
        addresses = client.addresses
    for note in findings.notes:
        screen.note(f"note: {note}")
    _refuse(screen, findings.problems)
    return replace(plan, versions=findings.versions), addresses


def _stored(screen: Screen, plan: "EorPlan", out: Path, problems: list[str]) -> "EorPlan":
    """The plan of a run that is there, with the questions it was asked.

    Raises:
        CommandError: something is wrong; everything that is, was told.
    """
    from dataclasses import replace

    from ragmesh.eor.stored import changed, read_stored

    stored = read_stored(out)
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
    _refuse(screen, problems)
    return replace(plan, models=plan.models or stored.settings["models"], versions=stored.settings["indexes"])


def _refuse(screen: Screen, problems: "Sequence[str]") -> None:
    for problem in problems[:-1]:
        screen.fail(problem)
    if problems:
        raise CommandError(problems[-1], USAGE)


def _run(
    screen: Screen,
    plan: "EorPlan",
    journal: "Journal",
    addresses: "Addresses",
    in_flight: int,
    patience: float,
) -> None:
    import asyncio

    from ragmesh.aio import AsyncClient
    from ragmesh.cli.counting import CountDisplay
    from ragmesh.eor import driver
    from ragmesh.eor.stored import records_file

    units = list(plan.units())
    there = set(journal.done)
    done = sum(unit.name in there for unit in units)
    display = CountDisplay(
        screen, f"questions × models, {len(plan.pool.members)} retrievers each", total=len(units), done=done
    )

    async def run() -> None:
        async with AsyncClient(addresses) as client:
            await driver.run(
                client,
                plan,
                journal,
                units,
                records_file,
                _Watcher(screen, display),
                in_flight=in_flight,
                patience_s=patience,
            )

    with display:
        asyncio.run(run())


class _Watcher:
    """Tells the screen how a run goes."""

    def __init__(self, screen: Screen, display: "CountDisplay") -> None:
        self._screen = screen
        self._display = display

    def written(self, what: Any) -> None:
        self._display.advance()
        if what.unanswered:
            unit = what.unit
            self._screen.note(
                f"note: {unit.query.query_id!r} of {unit.dataset} is left out: {unit.model} cannot answer it "
                f"with {', '.join(what.unanswered)}"
            )

    def waits(self, why: Any, pause_s: float) -> None:
        self._screen.note(f"the mesh: {why}; asking again in {pause_s:.1f} s", style="yellow")


def _report(
    screen: Screen,
    plan: "EorPlan",
    out: Path,
    voting: "Voting",
    judge: str,
    longest_answer: int | None,
    level: float,
) -> None:
    from importlib.metadata import version

    from raglab.studies.statements import intervals
    from ragmesh.cli.eval.outputs import show
    from ragmesh.eor import findings
    from ragmesh.eor.stored import read_stored

    stored = read_stored(out)
    units = [unit.name for unit in plan.units()]
    missing = sum(name not in stored.done for name in units)
    if missing:
        screen.note(f"note: {missing:,} of {len(units):,} questions × models were not asked yet")
    found = findings.measure(plan, out, voting, judge=judge, longest_answer=longest_answer, level=level)
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


def _journal(out: Path, plan: "EorPlan") -> "Journal":
    from raglab.files import Journal
    from ragmesh.eor.stored import JOURNAL

    return Journal(out / JOURNAL, plan.settings())


def _datasets(paths: "Sequence[Path]") -> "list[Dataset]":
    from raglab.files import read_queries
    from ragmesh.eor.plan import Dataset

    return [Dataset(path.name.partition(".")[0], read_queries(path)) for path in paths]


def _pool(text: str | None, reranker: str | None, out: Path, *, report_only: bool) -> "Pool":
    from dataclasses import replace

    from ragmesh.eor.pool import Pool, read_pool
    from ragmesh.eor.stored import read_stored

    if text is None and report_only:
        stored = read_stored(out)
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
