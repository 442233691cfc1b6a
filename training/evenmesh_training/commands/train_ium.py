"""``evenmesh train ium``: a reranker that learns from the agents it serves."""

import asyncio
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from evenmesh.commands.failure import FAILED, USAGE, CommandError
from evenmesh.commands.option_groups import with_groups
from evenmesh.commands.screen import Screen
from evenmesh_training.commands.requirements import with_training

if TYPE_CHECKING:
    from evenmesh_lab.files.agent_runs import AgentRunRecord
    from evenmesh_training.ium.answer_collector import AnswerCollector
    from evenmesh_training.ium.plan import AgentTasks
    from evenmesh_training.ium.recipe import IumRecipe
    from evenmesh_training.ium.result_cache import ResultCache
    from evenmesh_training.ium.systems import System

_PARTS: Final = 10
_INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True)
class Asking:
    """How the mesh is asked."""

    in_flight: Annotated[int, typer.Option(min=1, max=64, help="Questions asked at a time.")] = 2
    batch: Annotated[int, typer.Option(min=1, max=256, help="Answers per call.")] = 32
    timeout: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds for one call.")] = 600.0
    retry_for: Annotated[
        float, typer.Option(min=0, help="Seconds to retry an unreachable or overloaded mesh.")
    ] = 600.0


@with_groups
def ium(
    *,
    agents: Annotated[
        Path, typer.Argument(metavar="AGENTS.toml", help="Agents to learn from, and their tasks.")
    ],
    output: Annotated[
        Path,
        typer.Option(metavar="RUN", help="Folder of the run; the same command resumes it."),
    ],
    recipe: Annotated[str, typer.Option(help="TOML file, or a preset: fusion, laptop, paper.")] = "laptop",
    start: Annotated[
        str,
        typer.Option(
            metavar="fresh|bundled|FOLDER|NAME",
            help="Cross-encoder to begin with; fresh: the encoder of the base package with a new head; "
            "bundled: the one that ships.",
        ),
    ] = "fresh",
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Instead: bm25, dense, per-agent, per-dataset, urag; oracle: what ranking can reach. May be "
            "repeated; shares what RUN has.",
        ),
    ] = None,
    personalisation: Annotated[
        bool,
        typer.Option(
            "--personalisation/--no-personalisation",
            help="Whether the model learns the identity of its agents.",
        ),
    ] = True,
    online: Annotated[
        list[int] | None,
        typer.Option(
            metavar="B",
            min=1,
            help="Then run online IUM: ask each agent the evaluation's queries one by one, and train its own "
            "parameters after every B of them. May be repeated.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draw of queries and of training.")] = 0,
    store: Annotated[
        bool,
        typer.Option("--store/--no-store", help="Store the final model as a version of the reranker."),
    ] = False,
    tenant: Annotated[
        str | None,
        typer.Option(
            help="Tenant that the version serves; required with a credential.",
            show_default="default",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:<n>.")] = "auto",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Processor threads; results depend on their number.")
    ] = None,
    asking: Asking,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train the reranker offline on the utility of passages to agents (iterative utility maximisation).

    In each round the reranker ranks for the agents' training queries, every agent answers from each of the
    best passages alone, and the reranker learns the utility of these answers. The command keeps answers: it
    resumes a run that was stopped or killed, and baselines in the same RUN ask only new questions. It writes
    RUN/runs.jsonl, the utility of each way of ranking to each agent.
    """
    with_training()
    import torch
    from transformers.utils import logging as transformers_logging

    from evenmesh.wire.errors import MeshError
    from evenmesh_kit.compute.devices import DeviceError
    from evenmesh_kit.compute.model_files import ModelError
    from evenmesh_kit.compute.placement import Placement
    from evenmesh_kit.security.caller import DEFAULT_TENANT
    from evenmesh_training.ium import plan as plans
    from evenmesh_training.ium import recipe as recipes
    from evenmesh_training.ium import session, systems

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
    try:
        plan = plans.load(agents)
    except plans.PlanError as error:
        problems.extend(error.problems)
    try:
        chosen = recipes.load(recipe)
    except plans.PlanError as error:
        problems.extend(error.problems)
    if plan is not None and chosen is not None:
        problems.extend(plan.without(chosen.evaluation_split))
    if chosen is not None and chosen.learns == "fusion" and start == "fresh":
        problems.append("--start: a new model ranks by chance; name one to fuse, such as bundled")
    if online and chosen is not None and chosen.learns != "model":
        problems.append(
            f"--online: ranks by the model alone, and the recipe learns {chosen.learns}; leave one out"
        )
    if problems or plan is None or chosen is None:
        _refuse(screen, problems)
    if threads is not None:
        torch.set_num_threads(threads)
    names = list(dict.fromkeys((*(baseline or ()), *(("offline-ium",) if online or not baseline else ()))))
    wanted = [
        systems.system(name, plan, rounds=chosen.rounds, personalised=personalisation) for name in names
    ]
    try:
        with session.open_run(output, plan, chosen, begin=start, seed=seed) as cache:
            run = _Run(screen, agents.parent, plan, chosen, wanted, tuple(dict.fromkeys(online or ())))
            options = {"seed": seed, "folder": output, "placement": placement}
            path = asyncio.run(run.until_done(cache, start, asking, options))
    except plans.PlanError as error:
        _refuse(screen, error.problems)
    except ModelError as error:
        raise CommandError(f"--start {start}: {error}", USAGE) from None
    except MeshError as error:
        raise CommandError(str(error), FAILED) from None
    except asyncio.CancelledError:
        raise CommandError("stopped; the same command goes on where it was", _INTERRUPTED) from None
    _tell(screen, path, output, plan, wanted, store=store, tenant=tenant or DEFAULT_TENANT, as_json=as_json)


@dataclass(eq=False)
class _Run:
    """One run of the command against a mesh."""

    screen: Screen
    folder: Path
    plan: "AgentTasks"
    recipe: "IumRecipe"
    systems: Sequence["System"]
    online: Sequence[int]
    _stopped: bool = field(default=False, init=False)

    async def until_done(
        self, cache: "ResultCache", begin: str, asking: Asking, options: dict[str, Any]
    ) -> Path:
        """Run everything, and return the folder; Ctrl-C or SIGTERM ends it, and the second one at once."""
        from evenmesh import AsyncClient
        from evenmesh.addresses import Addresses
        from evenmesh.generation import Generation
        from evenmesh_training.ium import mesh_answers
        from evenmesh_training.ium.answer_collector import AnswerCollector, StoppedError
        from evenmesh_training.ium.functions import Functions

        functions = Functions(self.plan.agents, self.folder)
        addresses = Addresses.find()
        progress = _Progress(self.screen)
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
            mesh = mesh_answers.MeshAnswers(
                client,
                generation,
                self.plan.collection,
                note=cache.fact,
                watcher=progress,
                functions=functions,
                batch=asking.batch,
                timeout=asking.timeout,
                retry_for_s=asking.retry_for,
            )
            wrong = await mesh_answers.problems(
                mesh, self.plan.tasks[0].question, self.plan.agents, retriever=self.recipe.retriever
            )
            if wrong:
                from evenmesh_training.ium.plan import PlanError

                raise PlanError(wrong)
            collector = AnswerCollector(
                self.recipe,
                cache=cache,
                mesh=mesh,
                progress=progress,
                stop=lambda: self._stopped,
                in_flight=asking.in_flight,
            )
            try:
                return await self._learned(collector, begin, options)
            except StoppedError:
                raise asyncio.CancelledError from None

    async def _learned(self, collector: "AnswerCollector", begin: str, options: dict[str, Any]) -> Path:
        from evenmesh_lab.files.agent_runs import OFFLINE
        from evenmesh_training.ium import offline
        from evenmesh_training.online.streams import Streams

        learning = offline.Offline(self.plan, self.recipe, begin=begin, collector=collector, **options)
        path = await learning.run(self.systems)
        if not self.online:
            return path
        (learner,) = next(one.learners for one in self.systems if one.name == OFFLINE)
        model = options["folder"] / learner.folder / f"round-{learner.rounds}" / offline.MODEL
        await Streams(self.plan, self.recipe, model=model, collector=collector, **options).run(self.online)
        return offline.gather(options["folder"])


class _Progress:
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

    def note(self, line: str) -> None:
        self._screen.note(line)

    def retrying(self, why: Any, pause_s: float) -> None:
        self._screen.note(f"the mesh: {why}; asking again in {pause_s:.1f} s", style="yellow")


def _wrong_tenant(tenant: str | None) -> list[str]:
    """Return what is wrong with the tenant that shall own the version."""
    from evenmesh.wire.errors import InvalidField
    from evenmesh.wire.security import ChannelSecurity, ChannelSecurityError
    from evenmesh_kit.security.caller import tenant_name

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
    plan: "AgentTasks",
    systems: Sequence["System"],
    *,
    store: bool,
    tenant: str,
    as_json: bool,
) -> None:
    """Print what each way of ranking is worth, by agent, unseen questions first; and the version, if kept."""
    from evenmesh_lab.files import FileError
    from evenmesh_lab.files.agent_runs import OFFLINE, read_agent_runs
    from evenmesh_reranker.models.manifest import Lineage, StoreAwayError
    from evenmesh_training.ium import session
    from evenmesh_training.ium.offline import MODEL
    from evenmesh_training.ium.overlap import overlap

    records = read_agent_runs([path])
    means = _means(records)
    try:
        known = overlap(output, plan, records)
    except FileError as error:
        raise CommandError(str(error), FAILED) from None
    parts = [(name, _means([one for one in records if one.query_id in mine])) for name, mine in known.parts]
    version, fusions = None, {}
    learned = next((one for one in systems if one.name == OFFLINE), None)
    if learned is not None:
        (learner,) = learned.learners
        folder = output / learner.folder / f"round-{learner.rounds}" / MODEL
        fusions = _fusions(folder, plan)
        if store:
            from evenmesh_kit.settings import SettingsError, load
            from evenmesh_reranker.models import opening
            from evenmesh_reranker.settings import RerankerSettings

            metrics = means[OFFLINE, learner.rounds, learner.personalised]
            lineage = Lineage(
                f"offline-ium round {learner.rounds}",
                metrics={"utility": metrics.get("macro")},
                tenant=tenant,
            )
            try:
                models = opening.version_store(load(RerankerSettings), local="trainer-cache")
                version = session.store_version(models, folder, lineage)
            except (SettingsError, StoreAwayError) as error:
                raise CommandError(f"{error}; the model is in {folder}", FAILED) from None
    if as_json:
        rows = {
            name: [
                {"system": key[0], "iteration": key[1], "personalised": key[2], "utility": found}
                for key, found in mine.items()
            ]
            for name, mine in (*parts, ("systems", means))
        }
        counted = {
            "questions": len(known.questions),
            "seen": len(known.seen) if known.known else None,
            "statement": known.statement,
        }
        screen.json({"runs": str(path), "version": version, "overlap": counted, "fusions": fusions, **rows})
        return
    for name, mine in (*parts, ("all", means)):
        if parts:
            screen.line(f"{name.capitalize()} questions", style="bold")
        _show(screen, mine)
    if unanswered := sum(one.utility is None for one in records):
        screen.note(
            f"{unanswered:,} of {len(records):,} contexts were refused by a model and are left out: systems "
            "that show others are measured by other questions",
            style="yellow",
        )
    for name, how in fusions.items():
        screen.line(f"{name}: weight {how['weight']:g} of the first stage, {how['neighbors']:g} of neighbors")
    for row in known.rows:
        count = "unknown" if row.seen is None else f"{row.seen:,} of {row.total:,}"
        screen.line(f"{row.model} was trained on {count} {row.what} of the evaluation")
    screen.note(known.statement)
    screen.note(f"wrote {path}")
    if learned is not None and version is None:
        screen.line(f"the model is in {folder}; serve it with EVENMESH_RERANKER_CROSS_ENCODER={folder}")
    if version is not None:
        screen.line(f"kept as version {version}; serve it with: evenmesh models promote {version}")


def _fusions(folder: Path, plan: "AgentTasks") -> dict[str, dict[str, float]]:
    """Return by agent how a model's scores are fused with the first stage's; none where it ranks alone."""
    from dataclasses import asdict

    from evenmesh_reranker.models.fusions import Fusions
    from evenmesh_training.ium.start import fusions_of

    found = fusions_of(folder)
    if found == Fusions():
        return {}
    of_agent = {one.name: found.of(one.agent) for one in plan.agents}
    return {name: asdict(fusion) for name, fusion in {**of_agent, "other agents": found.others}.items()}


def _means(
    records: "Sequence[AgentRunRecord]",
) -> "dict[tuple[str, int | None, bool], Mapping[str, float]]":
    """Return the mean utilities by agent of each way of ranking: its name, round, and if it knew agents."""
    from evenmesh_training.ium import session

    by_system: dict[tuple[str, int | None, bool], list[AgentRunRecord]] = {}
    for one in records:
        stream = one.batch_size is not None
        key = (f"{one.system}, b = {one.batch_size}", None) if stream else (one.system, one.iteration)
        by_system.setdefault((*key, one.personalised), []).append(one)
    return {key: session.averages(mine) for key, mine in by_system.items()}


def _show(screen: Screen, means: "Mapping[tuple[str, int | None, bool], Mapping[str, float]]") -> None:
    agents = list(dict.fromkeys(agent for found in means.values() for agent in found if agent != "macro"))
    table = screen.table("system", "round", *agents, "mean", right=("round", *agents, "mean"))
    for (name, iteration, personalised), found in means.items():
        shown = [f"{found[one]:.3f}" if one in found else "–" for one in (*agents, "macro")]
        label = name if personalised else f"{name} (not personalised)"
        table.add_row(label, "–" if iteration is None else str(iteration), *shown)
    screen.out.print(table)
