"""``ragmesh eval rag``: retrieve, rerank and answer questions through a mesh, and measure all three."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ragmesh.cli import long_runs
from ragmesh.cli.ask import Target
from ragmesh.cli.failure import refuse
from ragmesh.cli.screen import Screen

if TYPE_CHECKING:
    from raglab.files import Journal
    from raglab.files.questions import QuestionSet
    from ragmesh.addresses import Addresses
    from ragmesh.client import Client
    from ragmesh.rag_eval.plan import EvaluationPlan

_JOURNAL: Final = "rag.journal"


def rag(
    data: Annotated[
        list[str],
        typer.Option(
            "--data",
            "-d",
            metavar="FILE_OR_DATASET",
            help="Questions: a file, or a data set by name, such as squad-open or mirage. May be repeated.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where records and the report go.")
    ],
    data_folder: Annotated[
        Path | None,
        typer.Option(
            envvar="RAGMESH_SHARED_DATA", metavar="FOLDER", help="Where data sets lie that are named."
        ),
    ] = None,
    collection: Annotated[
        str | None,
        typer.Option("--collection", "-c", help="Collection to ask. Default: one named after the data set."),
    ] = None,
    ingest: Annotated[
        bool, typer.Option("--ingest", help="Load the passages that the data set brings first.")
    ] = False,
    passages: Annotated[
        str | None,
        typer.Option(
            metavar="FILE_OR_DATASET", help="What --ingest loads instead: a file, or a data set's passages."
        ),
    ] = None,
    questions: Annotated[
        int | None, typer.Option(min=1, metavar="COUNT", help="Draw so many of each data set. Default: all.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of that draw.")] = 0,
    retriever: long_runs.Retrievers = None,
    reranker: Annotated[
        list[str] | None,
        typer.Option(help="none, rankrag or cross-encoder. May be repeated.  [default: none, rankrag]"),
    ] = None,
    n: Annotated[
        list[int] | None,
        typer.Option("--n", "-n", help="Passages retrieved and ranked. May be repeated.  [default: 20]"),
    ] = None,
    k: Annotated[
        list[int] | None,
        typer.Option("--k", "-k", help="Passages the model is given. May be repeated.  [default: 5]"),
    ] = None,
    model: long_runs.Models = None,
    template: Annotated[str | None, typer.Option(help="Prompt by name. Default: the model's own.")] = None,
    beams: Annotated[int, typer.Option(help="Beams; 1 is greedy, as the paper's.")] = 1,
    max_tokens: Annotated[int, typer.Option(help="Longest answer; the paper's for open questions.")] = 32,
    abstention: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="What models say where there is no answer.  [default: not in the passages]"
        ),
    ] = None,
    level: Annotated[float, typer.Option(help="Confidence level of intervals.")] = 0.95,
    in_flight: Annotated[
        int, typer.Option(min=1, max=64, help="Questions at a time; 1 for times that nothing else adds to.")
    ] = 2,
    timeout: long_runs.Timeout = 600.0,
    patience: long_runs.Patience = 600.0,
    target: Target = None,
) -> None:
    """Answer a data set through the mesh, and measure it.

    Retrieves n, reranks, keeps k, answers: exact match, F1, accuracy, answer recall, time; RankRAG's tables.
    A run that was stopped or killed goes on where it was with the same command.
    """
    from ragmesh.cli.eval.outputs import reported

    screen = Screen()
    with reported():
        from raglab.files import Journal
        from raglab.files.questions import read_question_set
        from raglab.studies import Bootstrap
        from raglab.studies.answering import ABSTENTION
        from ragmesh.client import Client
        from ragmesh.rag_eval import checks
        from ragmesh.rag_eval.plan import Asked, EvaluationPlan
        from ragmesh.request import Decoding

        sets = [read_question_set(name, data_folder) for name in data]
        with Client(target) as client:
            plan = EvaluationPlan(
                asked=[
                    Asked(
                        one if questions is None else one.sample(questions, seed),
                        collection or _slug(one.name),
                    )
                    for one in sets
                ],
                retrievers=retriever or ["bm25"],
                rerankers=reranker or ["none", "rankrag"],
                depths=n or [20],
                contexts=k or [5],
                models=long_runs.models_of(model, client.addresses),
                decoding=Decoding(num_beams=beams, max_new_tokens=max_tokens),
                template=template,
                seed=seed,
                timeout=timeout,
            )
            found: list[str] = []
            if not 0 < level < 1:
                found.append(f"--level {level:g}: allowed: between 0 and 1")
            sources = _sources(sets, passages, data_folder, found) if ingest else []
            if passages is not None and not ingest:
                found.append("--passages: is what --ingest loads, which is not there")
            if ingest and collection is not None and len(sources) > 1:
                found.append("--collection: one for all; --ingest would load several data sets into it")
            if ingest:
                # Before anything is loaded, which may take long; and again when all is there.
                refuse(screen, checks.check(plan, client, found, ingests=True).problems)
            for source, asked in zip(sources, plan.asked, strict=False):
                _ingest(screen, client, source, asked.collection)
            long_runs.tell(screen, checks.check(plan, client, found))
            addresses = client.addresses
        with Journal(out / _JOURNAL, plan.settings()) as journal:
            _run(screen, plan, journal, addresses, in_flight, patience)
            facts = dict(journal.facts)
        told = _facts(plan, facts, level, in_flight)
        _report(screen, told, out, abstention or ABSTENTION, Bootstrap(level=level))


def _sources(
    sets: "Sequence[QuestionSet]", passages: str | None, folder: Path | None, found: list[str]
) -> list[Path]:
    """What is ingested, one file for each data set; what is wrong with them goes to ``found``."""
    from ragmesh import readers

    if passages is not None:
        sources: list[Path | None] = [_passages(passages, folder)]
        if len(sets) > 1:
            found.append("--passages: is of one data set; there are several")
    else:
        sources = [one.passages for one in sets]
    ready = []
    for one, source in zip(sets, sources, strict=False):
        if source is None:
            found.append(f"{one.name}: brings no passages to ingest; name them with --passages")
            continue
        try:
            readers.check(source)
        except readers.ReadError as error:
            found.append(str(error))
            continue
        ready.append(source)
    return ready


def _passages(name: str, folder: Path | None) -> Path:
    from raglab.files.questions import DATA_SETS

    known = DATA_SETS.get(name)
    if known is None or not known.passages or folder is None:
        return Path(name)
    return folder / known.passages


def _ingest(screen: Screen, client: "Client", source: Path, collection: str) -> None:
    from ragmesh import readers
    from ragmesh.cli.corpus import told
    from ragmesh.cli.progress import EmbeddingDisplay, IngestDisplay
    from ragmesh.client import lacks_vectors

    with IngestDisplay(screen, source.name, total=readers.check(source)) as display:
        done = client.ingest(source, collection, on_progress=display.sent)
    if lacks_vectors(done.collection):
        with EmbeddingDisplay(screen, collection) as embedding:
            whole = client.until_embedded(collection, on_progress=embedding.embedded)
        done = replace(done, collection=whole)
    screen.note(told(done))


def _run(
    screen: Screen,
    plan: "EvaluationPlan",
    journal: "Journal",
    addresses: "Addresses",
    in_flight: int,
    patience: float,
) -> None:
    from ragmesh.aio import AsyncClient
    from ragmesh.generation import Generation
    from ragmesh.rag_eval import driver

    units = list(plan.units())

    async def run(watcher: long_runs.Watcher) -> None:
        async with AsyncClient(addresses) as client, Generation(addresses) as generation:
            await driver.run(
                client,
                generation,
                plan,
                journal,
                units,
                watcher,
                in_flight=in_flight,
                patience_s=patience,
            )

    names = [unit.name for unit in units]
    long_runs.go_on(screen, "questions × rankings", names, journal, _notes, run)


def _notes(what: Any) -> Iterator[str]:
    query_id = what.unit.question.query_id
    if what.unanswered:
        yield f"question {query_id!r}: {what.unanswered:,} of {what.answers:,} could not be answered"
    if not what.passages:
        yield f"nothing is found for question {query_id!r}"


def _facts(
    plan: "EvaluationPlan", facts: dict[str, str], level: float, in_flight: int
) -> list[tuple[str, str]]:
    return [
        (
            "questions",
            "; ".join(
                f"{_count(one.questions, plan.seed)} of {one.questions.name}, collection {one.collection}"
                for one in plan.asked
            ),
        ),
        (
            "rankings",
            f"{', '.join(plan.retrievers)} with {', '.join(plan.rerankers)}, "
            f"N = {', '.join(map(str, plan.depths))}, k = {', '.join(map(str, plan.contexts))}",
        ),
        ("models", ", ".join(plan.models)),
        (
            "decoding",
            f"{plan.decoding.num_beams} beam(s), at most {plan.decoding.max_new_tokens} tokens, "
            f"prompt {plan.template or 'of the model'}",
        ),
        ("seeds", f"questions {plan.seed}, intervals 0"),
        ("intervals", f"{level:.0%}, BCa bootstrap over questions, 2,000 resamples"),
        ("in flight", f"{in_flight} questions at a time"),
        *((name, value or "–") for name, value in sorted(facts.items())),
    ]


def _count(questions: "QuestionSet", seed: int) -> str:
    count = f"{len(questions.questions):,}"
    return count if questions.drawn_of is None else f"{count} of {questions.drawn_of:,} (seed {seed})"


def _report(screen: Screen, told: list[tuple[str, str]], out: Path, abstention: str, bootstrap: Any) -> None:
    from raglab.studies.answering_paper import paper_tables
    from ragmesh.cli.eval.outputs import show
    from ragmesh.rag_eval import findings

    study = findings.study(out, abstention=abstention, bootstrap=bootstrap)
    written = findings.write(study, told, out / "report")
    show(screen, [*paper_tables(study), *study.tables()[:-1]])
    screen.note(f"wrote {written[0]}, and tables and figures beside it")


def _slug(name: str) -> str:
    """A collection's name made of a data set's."""
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:64] or "questions"
