"""``evenmesh eval rag``: evaluate retrieval, reranking and answering through a mesh."""

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenmesh.commands.ask import Target
from evenmesh.commands.failure import refuse
from evenmesh.commands.screen import Screen
from evenmesh_studies.commands import study

if TYPE_CHECKING:
    from evenmesh_lab.files.questions import QuestionSet
    from evenmesh_lab.studies import Bootstrap
    from evenmesh_lab.studies.overlap import Overlap
    from evenmesh_studies.answering.plan import AnsweringPlan
    from evenmesh_studies.answering.report import Key


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
    out: study.Out,
    data_folder: Annotated[
        Path | None,
        typer.Option(envvar="EVENMESH_SHARED_DATA", metavar="FOLDER", help="Folder of the named data sets."),
    ] = None,
    collection: Annotated[
        str | None,
        typer.Option("--collection", "-c", help="Collection to ask. Default: one named after the data set."),
    ] = None,
    ingest: Annotated[bool, typer.Option("--ingest", help="First load the data set's passages.")] = False,
    passages: Annotated[
        str | None,
        typer.Option(
            metavar="FILE_OR_DATASET", help="Passages for --ingest to load instead: a file, or a data set's."
        ),
    ] = None,
    questions: Annotated[
        int | None,
        typer.Option(min=1, metavar="COUNT", help="Questions to draw from each set. Default: all."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of that draw.")] = 0,
    retriever: study.Retrievers = None,
    reranker: Annotated[
        list[str] | None,
        typer.Option(help="none, rankrag or cross-encoder. May be repeated.  [default: none, cross-encoder]"),
    ] = None,
    n: Annotated[
        list[int] | None,
        typer.Option("--n", "-n", help="Passages retrieved and ranked. May be repeated.  [default: 20]"),
    ] = None,
    k: Annotated[
        list[int] | None,
        typer.Option("--k", "-k", help="Passages the model is given. May be repeated.  [default: 5]"),
    ] = None,
    model: study.Models = None,
    template: Annotated[str | None, typer.Option(help="Prompt by name. Default: the model's own.")] = None,
    beams: Annotated[int, typer.Option(help="Beams; 1 is greedy, as the paper's.")] = 1,
    max_tokens: Annotated[
        int, typer.Option(help="Longest answer in tokens; 32 is the paper's for open questions.")
    ] = 32,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Text that ends an answer before it. May be repeated."),
    ] = None,
    abstention: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Answer that counts as abstention. [default: not in the passages]"),
    ] = None,
    level: study.Level = 0.95,
    trained_on: study.TrainedOn = None,
    in_flight: Annotated[
        int, typer.Option(min=1, max=64, help="Questions at a time; 1 for times without interference.")
    ] = 2,
    timeout: study.Timeout = 600.0,
    retry_for: study.RetryFor = 600.0,
    target: Target = None,
) -> None:
    """Answer a data set through the mesh, and measure it.

    Retrieve n, rerank, keep k, answer: exact match, F1, accuracy, answer recall, time; RankRAG's tables.
    The same command resumes a run that was stopped or killed.
    """
    from evenmesh_studies.commands.eval.outputs import reported

    screen = Screen()
    with reported():
        from evenmesh import Client
        from evenmesh.types.request import Decoding
        from evenmesh_lab.files.questions import read_question_set
        from evenmesh_lab.studies import Bootstrap
        from evenmesh_lab.studies.answering import ABSTENTION
        from evenmesh_studies.answering import checks
        from evenmesh_studies.answering.plan import AnsweringPlan, EvaluatedSet
        from evenmesh_studies.answering.run import connected
        from evenmesh_studies.runner import StudyRunner
        from evenmesh_studies.runner.overlap import collection_texts, overlap, read_given
        from evenmesh_studies.runner.preflight import proper_share

        sets = [read_question_set(name, data_folder) for name in data]
        with Client(target) as client:
            plan = AnsweringPlan(
                asked=[
                    EvaluatedSet(
                        one if questions is None else one.sample(questions, seed),
                        collection or _slug(one.name),
                    )
                    for one in sets
                ],
                retrievers=retriever or ["bm25"],
                rerankers=reranker or ["none", "cross-encoder"],
                depths=n or [20],
                contexts=k or [5],
                models=study.models_of(model, client.addresses),
                decoding=Decoding(num_beams=beams, max_new_tokens=max_tokens, stop=tuple(stop or ())),
                template=template,
                seed=seed,
                timeout=timeout,
            )
            found = list(proper_share("--level", level))
            given = read_given(trained_on, found)
            sources = _sources(sets, passages, data_folder, found) if ingest else []
            if passages is not None and not ingest:
                found.append("--passages: names what --ingest loads, and needs that option")
            if ingest and collection is not None and len(sources) > 1:
                found.append("--collection: --ingest would load several data sets into one")
            if ingest:
                # Loading may take long: check what can be checked before, and the rest after.
                refuse(screen, checks.check(plan, client, found, ingests=True).problems)
            for source, asked in zip(sources, plan.asked, strict=False):
                from evenmesh.commands.ingest import ingest_file, ingest_summary

                screen.note(ingest_summary(ingest_file(screen, client, source, asked.collection)))
            study.refuse_problems(screen, checks.check(plan, client, found))
            searched = [collection_texts(client, name) for name in {one.collection for one in plan.asked}]
            addresses = client.addresses
        runner = StudyRunner(plan, out, in_flight=in_flight, retry_for_s=retry_for)
        study.run_study(screen, runner, lambda: connected(plan, addresses), "questions × rankings")
        stored = runner.stored().facts
        known = overlap(
            stored,
            {
                (one.questions.name, asked.query_id): (asked.so_far,)
                for one in plan.asked
                for asked in one.questions.questions
            },
            given=given,
            passages=None if any(one is None for one in searched) else chain(*filter(None, searched)),
        )
        facts = _facts(plan, stored, level, in_flight)
        _report(screen, facts, out, abstention or ABSTENTION, Bootstrap(level=level), known)


def _sources(
    sets: "Sequence[QuestionSet]", passages: str | None, folder: Path | None, found: list[str]
) -> list[Path]:
    """Return the files to ingest, one for each data set; add what is wrong with them to ``found``."""
    from evenmesh.files import passages as readers
    from evenmesh.files.read_error import ReadError

    if passages is not None:
        sources: list[Path | None] = [_passages(passages, folder)]
        if len(sets) > 1:
            found.append("--passages: names one data set's passages; there are several data sets")
    else:
        sources = [one.passages for one in sets]
    ready = []
    for one, source in zip(sets, sources, strict=False):
        if source is None:
            found.append(f"{one.name}: has no passages to ingest; name them with --passages")
            continue
        try:
            readers.check(source)
        except ReadError as error:
            found.append(str(error))
            continue
        ready.append(source)
    return ready


def _passages(name: str, folder: Path | None) -> Path:
    from evenmesh_lab.files.questions import DATA_SETS

    known = DATA_SETS.get(name)
    if known is None or not known.passages or folder is None:
        return Path(name)
    return folder / known.passages


def _facts(
    plan: "AnsweringPlan", stored: Mapping[str, str], level: float, in_flight: int
) -> list[tuple[str, str]]:
    from evenmesh_lab.studies import Bootstrap
    from evenmesh_lab.studies.statements import intervals
    from evenmesh_studies.runner.report import journal_facts

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
            f"prompt {plan.template or 'of the model'}"
            + (f", stop at {', '.join(map(repr, plan.decoding.stop))}" if plan.decoding.stop else ""),
        ),
        ("seeds", f"questions {plan.seed}, intervals 0"),
        ("intervals", intervals(Bootstrap(level=level), "questions")),
        ("in flight", f"{in_flight} questions at a time"),
        *journal_facts(stored),
    ]


def _count(questions: "QuestionSet", seed: int) -> str:
    count = f"{len(questions.questions):,}"
    return count if questions.drawn_of is None else f"{count} of {questions.drawn_of:,} (seed {seed})"


def _report(
    screen: Screen,
    facts: list[tuple[str, str]],
    out: Path,
    abstention: str,
    bootstrap: "Bootstrap",
    known: "Overlap[Key]",
) -> None:
    from evenmesh_lab.studies.answering_paper import paper_tables
    from evenmesh_studies.answering import report
    from evenmesh_studies.commands.eval.outputs import show

    found = report.study(out, abstention=abstention, bootstrap=bootstrap)
    parts = [
        (name, report.study(out, abstention=abstention, bootstrap=bootstrap, only=mine))
        for name, mine in known.parts
    ]
    page, *_ = report.write(found, facts, out / "report", overlap=known, parts=parts)
    for name, part in parts:
        study.show_part(screen, name)
        show(screen, [*paper_tables(part), *part.tables()[:-1]])
    if parts:
        study.show_part(screen, "all")
    show(screen, [*paper_tables(found), *found.tables()[:-1]])
    screen.note(known.statement)
    screen.note(f"wrote {page}, and tables and figures beside it")


def _slug(name: str) -> str:
    """Return a collection's name for a data set."""
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:64] or "questions"
