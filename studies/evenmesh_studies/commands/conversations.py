"""``evenmesh harvest``: hold conversations on many topics, several times, and measure them."""

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast
from urllib.parse import urlsplit

import typer

from evenmesh.commands.ask import Target
from evenmesh.commands.failure import CommandError, refuse
from evenmesh.commands.screen import Screen
from evenmesh.commands.targets import HELP as TARGET_HELP
from evenmesh.commands.targets import attributes_json, read_target
from evenmesh_studies.commands import study

if TYPE_CHECKING:
    from evenmesh import Client
    from evenmesh.types.conversation import GroupTarget
    from evenmesh_lab.files.trained_texts import TrainedTexts
    from evenmesh_studies.conversations.plan import ConversationPlan, SystemSettings

KEY_VARIABLE: Final = "EVENMESH_HARVEST_KEY"
"""Holds the key of an endpoint. It is no option, because other users of a machine can see arguments."""


def harvest(
    topics: Annotated[
        Path, typer.Argument(help="JSON lines: topic, and question and format, or turns; useful is optional.")
    ],
    out: study.Out,
    collection: Annotated[
        str | None, typer.Option("--collection", "-c", help="Collection to ask. Default: the mesh's own.")
    ] = None,
    expression: Annotated[
        str | None, typer.Option("--expression", "-e", help="Sources of the mesh, such as Wiki@RR@5.")
    ] = None,
    fair: Annotated[list[str] | None, typer.Option("--fair", metavar="SPEC", help=TARGET_HELP)] = None,
    alpha: Annotated[
        str,
        typer.Option(
            metavar="A,B,…",
            help="Fairness dials, each a separate system; none: deterministic.",
        ),
    ] = "none",
    trials: Annotated[
        int,
        typer.Option("--trials", "-n", min=1, max=100, help="Conversations of each system and topic."),
    ] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first trial; later ones have the next.")] = 0,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=10, help="Sample answers. Default: greedy, or the endpoint's.")
    ] = None,
    history: Annotated[
        str, typer.Option(help="Earlier turns in the search: none, words or rewrite.")
    ] = "words",
    history_turns: Annotated[
        int | None, typer.Option(min=1, max=100, help="Earlier turns that the search uses. Default: 10.")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="Prompt template that shows the model earlier turns.")
    ] = None,
    entity: Annotated[
        str | None,
        typer.Option(
            metavar="ATTRIBUTE", help="Attribute that names an entity. Default: each passage is one."
        ),
    ] = None,
    k: Annotated[int | None, typer.Option("-k", help="Passages the model is given.")] = None,
    depth: Annotated[int | None, typer.Option(help="Size of the candidate pool.")] = None,
    retriever: Annotated[str | None, typer.Option(help="Retriever by name, such as bm25.")] = None,
    reranker: Annotated[str | None, typer.Option(help="cross-encoder, rankrag, remote or none.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="By name. Required for an endpoint, and may be repeated there."),
    ] = None,
    openai: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Talk with an OpenAI-compatible endpoint instead of the mesh, such as "
            f"http://127.0.0.1:8000/v1; its key is {KEY_VARIABLE}.",
        ),
    ] = "",
    in_flight: Annotated[int, typer.Option(min=1, max=64, help="Conversations at a time.")] = 1,
    timeout: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds for a turn.")] = 120.0,
    retry_for: study.RetryFor = 600.0,
    level: study.Level = 0.95,
    trained_on: study.TrainedOn = None,
    run: study.Run = "",
    observe: study.Observe = True,
    target: Target = None,
) -> None:
    """Hold conversations on many topics, several times.

    Use the two-round protocol of GFRC, or the user's turns of a topic file. A person can correct the
    transcripts; the same command then reports on the corrected ones, and resumes a run that was stopped or
    killed.
    """
    from evenmesh_studies.commands.eval.outputs import reported
    from evenmesh_studies.conversations.plan import ConversationPlan
    from evenmesh_studies.conversations.run import connected
    from evenmesh_studies.conversations.topics import read_topics
    from evenmesh_studies.runner.overlap import collection_texts, read_given
    from evenmesh_studies.runner.preflight import proper_share
    from evenmesh_studies.runner.runner import StudyRunner

    screen = Screen()
    with reported():
        from evenmesh import Client

        read = read_topics(topics)
        problems = [str(one) for one in read.problems]
        if not read.topics and not problems:
            problems.append(f"{topics}: has no topic")
        problems.extend(proper_share("--level", level))
        given = read_given(trained_on, problems)
        study.choice("--history", history, ("none", "words", "rewrite"), problems)
        systems = _systems(alpha, model or [], openai, problems)
        with Client(target) as client:
            targets = _targets(fair or [], client, collection, problems)
            plan = ConversationPlan(
                topics=read,
                systems=systems,
                trials=trials,
                seed=seed,
                temperature=temperature,
                endpoint=openai,
                targets=targets,
                conversation={
                    "history": cast(Any, history),
                    "history_turns": history_turns,
                    "template": template,
                    "entity_attribute": entity,
                },
                options={
                    "collection": collection,
                    "expression": expression,
                    "k": k,
                    "depth": depth,
                    "retriever": retriever,
                    "reranker": reranker,
                    "observe": observe,
                },
                timeout=timeout,
                run_id=run,
            )
            if not openai:
                problems.extend(_mesh_problems(plan, client, model or []))
            refuse(screen, problems)
            searched = None if openai else collection_texts(client, collection)
            addresses = client.addresses
        for system in systems:
            if plan.repeats(system) < trials:
                screen.note(
                    f"note: {system.name} samples neither rankings nor answers: its trials would be equal, "
                    "so there is one"
                )
        runner = StudyRunner(plan, out, in_flight=in_flight, retry_for_s=retry_for)
        key = os.environ.get(KEY_VARIABLE, "")
        study.run_study(screen, runner, lambda: connected(plan, addresses, key), "conversations", asked="")
        _report(screen, plan, runner.stored().facts, out, level, given, searched)


def _report(
    screen: Screen,
    plan: "ConversationPlan",
    stored: Mapping[str, str],
    out: Path,
    level: float,
    given: "Mapping[str, TrainedTexts]",
    searched: list[str] | None,
) -> None:
    """Write the transcripts, measure them as they are now, write the report and show its tables."""
    from evenmesh_lab.studies import Bootstrap
    from evenmesh_lab.studies.statements import intervals
    from evenmesh_studies.commands.eval.outputs import show
    from evenmesh_studies.conversations import report
    from evenmesh_studies.runner.overlap import overlap
    from evenmesh_studies.runner.report import journal_facts

    paths, corrected = report.write_transcripts(out, plan)
    if plan.targets:
        (out / "attributes.json").write_text(attributes_json(plan.targets) + "\n", encoding="utf-8")
    settings = Bootstrap(level=level)
    found = report.measure(out, plan, bootstrap=settings)
    known = overlap(stored, report.asked(plan), given=given, passages=searched)
    parts = [(name, report.measure(out, plan, bootstrap=settings, only=mine)) for name, mine in known.parts]
    facts = [
        ("topics", f"N = {len(plan.topics.topics):,} of {plan.topics.path.name}"),
        ("systems", ", ".join(system.name for system in plan.systems)),
        ("trials", f"{plan.trials}, seeds {plan.seed} to {plan.seed + plan.trials - 1}"),
        ("intervals", intervals(settings, "topics")),
        *journal_facts(stored),
    ]
    if plan.endpoint:
        facts.append(("endpoint", plan.endpoint))
    if corrected:
        facts.append(("corrected by hand", ", ".join(path.name for path in corrected)))
    page, markdown, *_ = report.write(found, facts, out / "report", overlap=known, parts=parts)
    for name, one in (*parts, ("all", found)):
        if parts:
            screen.line(f"{name.capitalize()} topics", style="bold")
        show(screen, one.stability.tables()[:-1])
        if one.fairness is not None:
            screen.line()
            show(screen, one.fairness.tables()[:-1])
    screen.note(known.statement)
    for problem in found.unjudged:
        screen.note(f"to be judged: {problem}", style="yellow")
    screen.note(f"transcripts to correct: {paths[0].parent}; run the same command again to report on them")
    screen.note(f"wrote {page}, {markdown.name}, and tables and figures beside them")


def _systems(alpha: str, models: Sequence[str], openai: str, problems: list[str]) -> "list[SystemSettings]":
    from evenmesh_studies.conversations.plan import SystemSettings
    from evenmesh_studies.runner.preflight import repeated

    if openai:
        if urlsplit(openai).scheme not in ("http", "https") or not urlsplit(openai).netloc:
            problems.append(f"--openai is {openai!r}; allowed: an address like http://127.0.0.1:8000/v1")
        if find_spec("httpx") is None:
            problems.append("--openai needs httpx: in a checkout, pip install './studies[openai]'")
        if alpha != "none":
            problems.append("--alpha is for the mesh, not for an endpoint")
        if not models:
            problems.append("--openai needs --model")
        problems.extend(repeated("--model: given", models))
        return [SystemSettings(name, model=name) for name in models]
    if len(models) > 1:
        problems.append("--model may be repeated for an endpoint only")
    found = []
    for part in (part.strip() for part in alpha.split(",")):
        try:
            dial = None if part == "none" else float(part)
        except ValueError:
            dial = -1.0
        if dial is not None and not 0 <= dial <= 100:
            problems.append(f"--alpha has {part!r}; allowed: numbers from 0 to 100, and none")
            continue
        name = "ranked" if dial is None else f"alpha={dial:g}"
        found.append(SystemSettings(name, dial, models[0] if models else ""))
    # By name, as 1 and 1.0 are one system.
    given = ["none" if one.alpha is None else f"{one.alpha:g}" for one in found]
    problems.extend(repeated("--alpha: given", given))
    return found


def _targets(
    specs: Sequence[str], client: "Client", collection: str | None, problems: list[str]
) -> "list[GroupTarget]":
    found: list[GroupTarget] = []
    for spec in specs:
        try:
            one = read_target(spec, client, collection)
        except CommandError as error:
            problems.append(str(error))
            continue
        if any(other.attribute == one.attribute for other in found):
            problems.append(f"--fair has {one.attribute} twice")
        found.append(one)
    return found


def _mesh_problems(plan: "ConversationPlan", client: "Client", named: Sequence[str]) -> list[str]:
    """Return what the mesh would refuse; nothing is generated."""
    from evenmesh.inventory import models
    from evenmesh.types.events import Retrieved
    from evenmesh.wire.errors import MeshError
    from evenmesh_studies.runner import preflight

    problems = list(preflight.models(named, models(client.addresses)))
    if not plan.topics.topics:
        return problems
    first = plan.topics.topics[0]
    options: Any = {**plan.options, "observe": False, "num_answers": 0}
    try:
        events = list(client.ask(first.question or first.turns[0], timeout=plan.timeout, **options))
    except MeshError as error:
        if error.reason == "UNREACHABLE":
            raise
        problems.append(f"the mesh refuses this search: {error}")
        return problems
    versions = [event.index_version for event in events if isinstance(event, Retrieved)]
    problems.extend(preflight.embedding(preflight.searched(client.collections(), versions)))
    collection = plan.options.get("collection")
    if collection is not None and any(topic.useful is not None for topic in plan.topics.topics):
        stored = {passage.id for passage in client.passages(collection)}
        for topic in plan.topics.topics:
            missing = dict.fromkeys(
                name for turn in topic.useful or () for name in turn if name not in stored
            )
            what = f"{plan.topics.path}:{topic.line}: these useful passages are not in {collection!r}"
            problems.extend(preflight.listed(what, list(missing)))
    return problems
