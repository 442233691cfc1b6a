"""``ragmesh train ium``: a reranker that learns from the agents it serves."""

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from ragmesh.cli.failure import FAILED, USAGE, CommandError
from ragmesh.cli.screen import Screen

if TYPE_CHECKING:
    from services.reranker.training.evidence import Evidence
    from services.reranker.training.inquiry import Inquiry
    from services.reranker.training.plan import AgentTable, Plan
    from services.reranker.training.recipe import Recipe
    from services.reranker.training.systems import System

_PARTS: Final = 10
_INTERRUPTED: Final = 130


def ium(
    agents: Annotated[
        Path, typer.Argument(metavar="AGENTS.toml", help="Agents to learn from, and what they are asked.")
    ],
    output: Annotated[
        Path,
        typer.Option(metavar="RUN", help="Folder of the run; the same command goes on with what is there."),
    ],
    recipe: Annotated[str, typer.Option(help="TOML file, or a preset: laptop, paper.")] = "laptop",
    start: Annotated[
        str,
        typer.Option(
            metavar="fresh|FOLDER|NAME",
            help="Cross-encoder to begin with; fresh: the encoder of the base package with a new head.",
        ),
    ] = "fresh",
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Instead: bm25, dense, per-agent, per-dataset, urag. May be repeated; shares what RUN has.",
        ),
    ] = None,
    personalisation: Annotated[
        bool,
        typer.Option("--personalisation/--no-personalisation", help="Whether it is told whom it ranks for."),
    ] = True,
    online: Annotated[
        list[int] | None,
        typer.Option(
            metavar="B",
            min=1,
            help="And then online IUM: each agent is asked the evaluation's queries one by one, its own "
            "parameters trained after every B of them. May be repeated.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw of queries and of learning.")] = 0,
    store: Annotated[
        bool,
        typer.Option("--store/--no-store", help="Keep what it ends with as a version of the reranker."),
    ] = False,
    tenant: Annotated[
        str | None,
        typer.Option(
            help="Whose the version is, which serves nobody else; with a credential it must be told.",
            show_default="default",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:<n>.")] = "auto",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Processor threads; results depend on their number.")
    ] = None,
    in_flight: Annotated[int, typer.Option(min=1, max=64, help="Questions at the mesh at a time.")] = 2,
    batch: Annotated[int, typer.Option(min=1, max=256, help="Answers of one call.")] = 32,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for one call.")] = 600.0,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds the mesh may be away or overloaded before this gives up.")
    ] = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print what came of it as JSON.")] = False,
) -> None:
    """Train the reranker offline on what agents make of what it finds (iterative utility maximisation).

    In each round it ranks for the agents' training queries, every agent answers from each of the best
    passages alone, and it learns what that was worth. Answers are kept: a run that was stopped or killed goes
    on where it was, and baselines in the same RUN ask only for what is new. Writes RUN/runs.jsonl, what each
    agent makes of each way of ranking.
    """
    from ragmesh.cli.train import with_training

    with_training()
    import torch
    from transformers.utils import logging as transformers_logging

    from meshkit.errors import MeshError
    from meshkit.models import ModelError
    from meshkit.placement import DeviceError, Placement
    from meshkit.security.caller import DEFAULT_TENANT
    from services.reranker.training import plan as plans
    from services.reranker.training import recipe as recipes
    from services.reranker.training import session, systems

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    screen = Screen()
    problems = [
        f"--baseline {one}: allowed: {', '.join(systems.BASELINES)}"
        for one in baseline or ()
        if one not in systems.BASELINES
    ]
    if online and not personalisation:
        problems.append("--online: an agent's own parameters are personal; leave out --no-personalisation")
    if store:
        problems.extend(_wrong_tenant(tenant))
    try:
        placement = Placement.choose(device, "auto")
    except DeviceError as error:
        problems.append(f"--device: {error}")
    plan, chosen = None, None
    for read in (plans.load, recipes.load):
        try:
            if read is plans.load:
                plan = plans.load(agents)
            else:
                chosen = recipes.load(recipe)
        except plans.PlanError as error:
            problems.extend(error.problems)
    if plan is not None and chosen is not None:
        problems.extend(plan.without(chosen.evaluation_split))
    if problems or plan is None or chosen is None:
        _refuse(screen, problems)
    if threads is not None:
        torch.set_num_threads(threads)
    names = list(dict.fromkeys((*(baseline or ()), *(("offline-ium",) if online or not baseline else ()))))
    wanted = [
        systems.system(name, plan, rounds=chosen.rounds, personalised=personalisation) for name in names
    ]
    try:
        with session.held(output, plan, chosen, begin=start, seed=seed) as evidence:
            run = _Run(screen, plan, chosen, wanted, tuple(dict.fromkeys(online or ())))
            asking = _Asking(timeout, patience, in_flight, batch)
            options = {"seed": seed, "folder": output, "placement": placement}
            path = asyncio.run(run.until_done(evidence, start, asking, options))
    except plans.PlanError as error:
        _refuse(screen, error.problems)
    except ModelError as error:
        raise CommandError(f"--start {start}: {error}", USAGE) from None
    except MeshError as error:
        raise CommandError(str(error), FAILED) from None
    except asyncio.CancelledError:
        raise CommandError("stopped; the same command goes on where it was", _INTERRUPTED) from None
    _tell(screen, path, output, wanted, store=store, tenant=tenant or DEFAULT_TENANT, as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Asking:
    """How the mesh is asked: seconds of a call, seconds it may be away, questions and answers at a time."""

    timeout: float
    patience_s: float
    in_flight: int
    batch: int


class _Run:
    """One run of the command against a mesh."""

    def __init__(
        self,
        screen: Screen,
        plan: "Plan",
        recipe: "Recipe",
        systems: Sequence["System"],
        online: Sequence[int],
    ) -> None:
        self._screen = screen
        self._plan = plan
        self._recipe = recipe
        self._systems = systems
        self._online = online
        self._stopped = False

    async def until_done(
        self, evidence: "Evidence", begin: str, asking: "_Asking", options: dict[str, Any]
    ) -> Path:
        """Runs it all; Ctrl-C or SIGTERM ends it, and the second one at once."""
        from ragmesh import judges
        from ragmesh.addresses import Addresses
        from ragmesh.aio import AsyncClient
        from ragmesh.generation import Generation
        from services.reranker.training.inquiry import Inquiry, StoppedError

        addresses = Addresses.find()
        watcher = _Watcher(self._screen)
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker: this is a coroutine

        def stop() -> None:
            self._stopped = True
            task.cancel()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        async with AsyncClient(addresses) as client, Generation(addresses) as generation:
            mesh = judges.Judges(
                client,
                generation,
                self._plan.collection,
                note=evidence.fact,
                watcher=watcher,
                batch=asking.batch,
                timeout=asking.timeout,
                patience_s=asking.patience_s,
            )
            asked = [(one.model, one.augmentation, one.template) for one in self._plan.agents]
            wrong = await judges.problems(mesh, self._plan.tasks[0].question, asked)
            if wrong:
                from services.reranker.training.plan import PlanError

                raise PlanError(wrong)
            inquiry = Inquiry(
                self._recipe,
                evidence=evidence,
                mesh=_Asked(mesh),
                watcher=watcher,
                stop=lambda: self._stopped,
                in_flight=asking.in_flight,
            )
            try:
                return await self._learned(inquiry, begin, options)
            except StoppedError:
                raise asyncio.CancelledError from None

    async def _learned(self, inquiry: "Inquiry", begin: str, options: dict[str, Any]) -> Path:
        from raglab.files.agent_runs import OFFLINE
        from services.reranker.online.streams import Streams
        from services.reranker.training import offline

        learning = offline.Offline(self._plan, self._recipe, begin=begin, inquiry=inquiry, **options)
        path = await learning.run(self._systems)
        if not self._online:
            return path
        (learner,) = next(one.learners for one in self._systems if one.name == OFFLINE)
        model = options["folder"] / learner.folder / f"round-{learner.rounds}" / offline.MODEL
        await Streams(self._plan, self._recipe, model=model, inquiry=inquiry, **options).run(self._online)
        return offline.gather(options["folder"])


class _Asked:
    """A mesh in the words of the training."""

    def __init__(self, judges: Any) -> None:
        self._judges = judges

    async def candidates(self, question: str, *, retriever: str, depth: int) -> list[Any]:
        from services.reranker.domain import Passage

        found = await self._judges.candidates(question, retriever=retriever, depth=depth)
        return [Passage(one.id, one.title, one.text) for one in found]

    async def answers(
        self, agent: "AgentTable", question: str, contexts: Sequence[Sequence[Any]], *, beams: int
    ) -> list[str | None]:
        from ragmesh.passage import Passage

        shown = [[Passage(one.id, one.text, one.title) for one in passages] for passages in contexts]
        answers: list[str | None] = await self._judges.answers(
            question,
            shown,
            model=agent.model,
            augmentation=agent.augmentation,
            template=agent.template,
            beams=beams,
        )
        return answers


class _Watcher:
    """Tells the screen how far a part of the work is: a line at each tenth."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._what, self._total, self._done = "", 0, 0

    def begins(self, what: str, total: int, done: int) -> None:
        self._what, self._total, self._done = what, total, done
        if done < total:
            before = f", {done:,} of them before" if done else ""
            self._screen.note(f"{what}: {total:,}{before}")

    def advances(self, by: int = 1) -> None:
        before, self._done = self._done, self._done + by
        if self._total and self._done * _PARTS // self._total > before * _PARTS // self._total:
            self._screen.note(f"{self._what}: {self._done:,} of {self._total:,}")

    def says(self, line: str) -> None:
        self._screen.note(line)

    def waits(self, why: Any, pause_s: float) -> None:
        self._screen.note(f"the mesh: {why}; asking again in {pause_s:.1f} s", style="yellow")


def _wrong_tenant(tenant: str | None) -> list[str]:
    """What is wrong with whose the version is to be."""
    from meshkit.errors import InvalidField
    from meshkit.security.caller import tenant_name
    from meshkit.security.channel_security import ChannelSecurity, ChannelSecurityError

    try:
        if tenant is not None:
            tenant_name(tenant, "--tenant")
        elif ChannelSecurity.find().credential.given:
            return ["--tenant: must say whose the version is: what the mesh answers is a tenant's"]
    except InvalidField as error:
        return [f"--tenant: {error.message}"]
    except ChannelSecurityError as error:
        return [str(error)]
    return []


def _refuse(screen: Screen, problems: Sequence[str]) -> NoReturn:
    for problem in problems[:-1]:
        screen.fail(problem)
    raise CommandError(problems[-1], USAGE)


def _tell(
    screen: Screen,
    path: Path,
    output: Path,
    systems: Sequence["System"],
    *,
    store: bool,
    tenant: str,
    as_json: bool,
) -> None:
    """What each way of ranking is worth, by agent; and the version, if one is kept."""
    from raglab.files.agent_runs import OFFLINE, AgentRunRecord, read_agent_runs
    from services.reranker.models.manifest import Lineage
    from services.reranker.models.store import ModelStore
    from services.reranker.training import session
    from services.reranker.training.offline import MODEL

    by_system: dict[tuple[str, int | None, bool], list[AgentRunRecord]] = {}
    for one in read_agent_runs([path]):
        stream = one.batch_size is not None
        key = (f"{one.system}, b = {one.batch_size}", None) if stream else (one.system, one.iteration)
        by_system.setdefault((*key, one.personalised), []).append(one)
    means = {key: session.averages(records) for key, records in by_system.items()}
    version = None
    learned = next((one for one in systems if one.name == OFFLINE), None)
    if learned is not None:
        (learner,) = learned.learners
        folder = output / learner.folder / f"round-{learner.rounds}" / MODEL
        if store:
            from ragmesh.home import home

            metrics = means[OFFLINE, learner.rounds, learner.personalised]
            lineage = Lineage(
                f"offline-ium round {learner.rounds}",
                metrics={"utility": metrics.get("macro")},
                tenant=tenant,
            )
            version = session.keep(ModelStore(home() / "reranker" / "models"), folder, lineage)
    if as_json:
        told = [
            {"system": key[0], "iteration": key[1], "personalised": key[2], "utility": found}
            for key, found in means.items()
        ]
        screen.json({"runs": str(path), "version": version, "systems": told})
        return
    agents = list(dict.fromkeys(agent for found in means.values() for agent in found if agent != "macro"))
    table = screen.table("system", "round", *agents, "mean", right=("round", *agents, "mean"))
    for (name, iteration, personalised), found in means.items():
        shown = [f"{found[one]:.3f}" if one in found else "–" for one in (*agents, "macro")]
        label = name if personalised else f"{name} (not personalised)"
        table.add_row(label, "–" if iteration is None else str(iteration), *shown)
    screen.out.print(table)
    screen.note(f"wrote {path}")
    if learned is not None and version is None:
        screen.line(f"the model is in {folder}; serve it with RAGMESH_RERANKER_CROSS_ENCODER={folder}")
    if version is not None:
        screen.line(f"kept as version {version}; serve it with: ragmesh models promote {version}")
