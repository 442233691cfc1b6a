"""``ragmesh harvest``: conversations on many topics, several times, and what became of them."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from ragmesh.cli import long_runs
from ragmesh.cli.ask import Target
from ragmesh.cli.failure import CommandError, refuse
from ragmesh.cli.screen import Screen
from ragmesh.cli.targets import HELP as TARGET_HELP
from ragmesh.cli.targets import attributes_json, read_target

if TYPE_CHECKING:
    from ragmesh.client import Client
    from ragmesh.conversation import GroupTarget
    from ragmesh.harvest.plan import HarvestPlan, System

KEY_VARIABLE: Final = "RAGMESH_HARVEST_KEY"
"""Holds the key of an endpoint: arguments can be seen by other users of a machine."""


def harvest(
    topics: Annotated[
        Path, typer.Argument(help="JSON lines: topic, and question and format, or turns; perhaps useful.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where transcripts and the report go.")
    ],
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
            metavar="A,B,…", help="Fairness dials, each a system of its own; none is the ranking as it is."
        ),
    ] = "none",
    trials: Annotated[
        int, typer.Option("--trials", "-n", min=1, max=100, help="How often each system is talked with.")
    ] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first trial; later ones have the next.")] = 0,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=10, help="Sample answers. Default: greedy, or the endpoint's.")
    ] = None,
    history: Annotated[str, typer.Option(help="What is looked for: none, words or rewrite.")] = "words",
    history_turns: Annotated[
        int | None, typer.Option(min=1, max=100, help="Earlier turns that it is made of. Default: 10.")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="Prompt template that shows the model earlier turns.")
    ] = None,
    entity: Annotated[
        str | None, typer.Option(metavar="ATTRIBUTE", help="What tells entities apart. Default: passages.")
    ] = None,
    k: Annotated[int | None, typer.Option("-k", help="Passages the model is given.")] = None,
    depth: Annotated[int | None, typer.Option(help="Size of the candidate pool.")] = None,
    retriever: Annotated[str | None, typer.Option(help="Retriever by name, such as bm25.")] = None,
    reranker: Annotated[str | None, typer.Option(help="cross-encoder, rankrag or none.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="Model by name; of an endpoint required, and may be repeated."),
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
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds that what is talked with may be away.")
    ] = 600.0,
    level: Annotated[float, typer.Option(help="Confidence level of intervals.")] = 0.95,
    run: Annotated[str, typer.Option(help="Run to file observations under. Default: one of its own.")] = "",
    observe: Annotated[bool, typer.Option("--observe/--no-observe", help="Tell the evaluator.")] = True,
    target: Target = None,
) -> None:
    """Hold conversations on many topics, several times.

    By the two-round protocol of GFRC, or with the user's turns as a topic file has them. Transcripts are for
    a person to correct; the same command again reports on them as they are then. A run that was stopped or
    killed goes on where it was.
    """
    from ragmesh.cli.eval.outputs import reported
    from ragmesh.harvest.plan import HarvestPlan
    from ragmesh.harvest.topics import read_topics

    screen = Screen()
    with reported():
        from ragmesh.client import Client

        read = read_topics(topics)
        problems = [str(one) for one in read.problems]
        if not read.topics and not problems:
            problems.append(f"{topics}: has no topic")
        if not 0 < level < 1:
            problems.append(f"--level is {level:g}; allowed: between 0 and 1")
        if history not in ("none", "words", "rewrite"):
            problems.append(f"--history is {history!r}; allowed: none, words, rewrite")
        systems = _systems(alpha, model or [], openai, problems)
        with Client(target) as client:
            targets = _targets(fair or [], client, collection, problems)
            how: Any = {
                "history": history,
                "history_turns": history_turns,
                "template": template,
                "entity_attribute": entity,
            }
            options: Any = {
                "collection": collection,
                "expression": expression,
                "k": k,
                "depth": depth,
                "retriever": retriever,
                "reranker": reranker,
                "observe": observe,
            }
            plan = HarvestPlan(
                topics=read,
                systems=systems,
                trials=trials,
                seed=seed,
                temperature=temperature,
                endpoint=openai,
                targets=targets,
                conversation=how,
                options=options,
                timeout=timeout,
                run_id=run,
            )
            if not openai:
                problems.extend(_mesh_problems(plan, client, model or []))
            refuse(screen, problems)
            addresses = client.addresses
        for system in systems:
            if plan.repeats(system) < trials:
                screen.note(
                    f"note: {system.name} samples neither rankings nor answers: its trials would be the "
                    "same, so it has one"
                )
        _harvest(screen, plan, out, addresses, in_flight, patience)
        _report(screen, plan, out, level)


def _harvest(
    screen: Screen, plan: "HarvestPlan", out: Path, addresses: Any, in_flight: int, patience: float
) -> None:
    from raglab.files import Journal
    from ragmesh.aio import AsyncClient
    from ragmesh.harvest import driver
    from ragmesh.harvest.talkers import EndpointTalker, MeshTalker

    cells = list(plan.cells())
    how: Any = {"in_flight": in_flight, "patience_s": patience}

    with Journal(out / "harvest.journal", plan.settings()) as journal:

        async def run(watcher: long_runs.Watcher) -> None:
            if plan.endpoint:
                talker = EndpointTalker(plan.endpoint, os.environ.get(KEY_VARIABLE, ""), plan)
                try:
                    await driver.run(talker, journal, cells, watcher, **how)
                finally:
                    await talker.close()
            else:
                async with AsyncClient(addresses) as client:
                    await driver.run(MeshTalker(client, plan), journal, cells, watcher, **how)

        names = [cell.name for cell in cells]
        long_runs.go_on(screen, "conversations", names, journal, lambda _: (), run, who="")


def _report(screen: Screen, plan: "HarvestPlan", out: Path, level: float) -> None:
    from raglab.files import Journal
    from raglab.studies import Bootstrap
    from ragmesh.cli.eval.outputs import show
    from ragmesh.harvest import findings

    with Journal(out / "harvest.journal", plan.settings()) as journal:
        facts = sorted(journal.facts.items())
        paths, corrected = findings.write_transcripts(out, plan)
    if plan.targets:
        (out / "attributes.json").write_text(attributes_json(plan.targets) + "\n", encoding="utf-8")
    found = findings.measure(out, plan, bootstrap=Bootstrap(level=level))
    told = [
        ("topics", f"N = {len(plan.topics.topics):,} of {plan.topics.path.name}"),
        ("systems", ", ".join(system.name for system in plan.systems)),
        ("trials", f"{plan.trials}, seeds {plan.seed} to {plan.seed + plan.trials - 1}"),
        ("intervals", f"{level:.0%}, BCa bootstrap over topics, 2,000 resamples, seed 0"),
        *((name, value or "–") for name, value in facts),
    ]
    if plan.endpoint:
        told.append(("endpoint", plan.endpoint))
    if corrected:
        told.append(("corrected by hand", ", ".join(path.name for path in corrected)))
    written = findings.write(found, told, out / "report")
    show(screen, found.stability.tables()[:-1])
    if found.fairness is not None:
        screen.line()
        show(screen, found.fairness.tables()[:-1])
    for problem in found.unjudged:
        screen.note(f"to be judged: {problem}", style="yellow")
    screen.note(
        f"transcripts to correct: {paths[0].parent}; the same command again reports on them as they are"
    )
    screen.note(f"wrote {written[0]}, {written[1].name}, and tables and figures beside them")


def _systems(alpha: str, models: Sequence[str], openai: str, problems: list[str]) -> "list[System]":
    from ragmesh.harvest.plan import System

    if openai:
        if urlsplit(openai).scheme not in ("http", "https") or not urlsplit(openai).netloc:
            problems.append(f"--openai is {openai!r}; allowed: an address like http://127.0.0.1:8000/v1")
        if find_spec("httpx") is None:
            problems.append("--openai needs httpx: pip install 'ragmesh[web]'")
        if alpha != "none":
            problems.append("--alpha is for the mesh, not for an endpoint")
        if not models:
            problems.append("--openai needs --model")
        _no_twice("--model", models, problems)
        return [System(name, model=name) for name in models]
    if len(models) > 1:
        problems.append("--model may be repeated for an endpoint only")
    found = []
    parts = [part.strip() for part in alpha.split(",")]
    _no_twice("--alpha", parts, problems)
    for part in parts:
        try:
            dial = None if part == "none" else float(part)
        except ValueError:
            dial = -1.0
        if dial is not None and not 0 <= dial <= 100:
            problems.append(f"--alpha has {part!r}; allowed: numbers from 0 to 100, and none")
            continue
        name = "ranked" if dial is None else f"alpha={dial:g}"
        found.append(System(name, dial, models[0] if models else ""))
    return found


def _no_twice(option: str, values: Sequence[str], problems: list[str]) -> None:
    twice = sorted({value for value in values if values.count(value) > 1})
    if twice:
        problems.append(f"{option} has {', '.join(twice)} twice")


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


def _mesh_problems(plan: "HarvestPlan", client: "Client", named: Sequence[str]) -> list[str]:
    """What the mesh would refuse, found without generating."""
    from meshkit.errors import MeshError
    from ragmesh import preflight
    from ragmesh.events import Retrieved
    from ragmesh.inventory import models

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
        problems.append(f"the mesh does not search so: {error}")
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
