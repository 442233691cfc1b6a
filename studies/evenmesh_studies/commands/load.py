"""``evenmesh bench``: load tests of a mesh, and capacity planning from them."""

import asyncio
import functools
import inspect
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from evenmesh.commands.ask import Target
from evenmesh.commands.failure import FAILED, USAGE, CommandError, refuse
from evenmesh.commands.group import group
from evenmesh.commands.screen import Screen
from evenmesh_studies.commands.eval.outputs import reported, show_table

if TYPE_CHECKING:
    from evenmesh.addresses import Addresses
    from evenmesh_lab.files import Journal
    from evenmesh_studies.load.calls.inputs import Item
    from evenmesh_studies.load.plan import LoadPlan, Way
    from evenmesh_studies.load.run import LoadRun
    from evenmesh_studies.load.session import Session
    from evenmesh_studies.load.step import Slo, Step, StepResult

Operation = Annotated[str, typer.Argument(help="ask, rerank, generate or rerank-generate.")]
Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder of the run; a stopped run resumes.")
]
Seed = Annotated[int, typer.Option(help="Seed of arrivals and of intervals.")]


def _options(
    queries: Annotated[
        Path | None,
        typer.Option(
            help="Questions: JSON lines or Parquet of query_id, question, references. Default: the demo's."
        ),
    ] = None,
    collection: Annotated[str, typer.Option("--collection", "-c", help="Source of passages.")] = "demo",
    pool: Annotated[int, typer.Option("-N", "--pool", help="Passages to rerank.")] = 100,
    k: Annotated[int, typer.Option("-k", help="Passages the model is given.")] = 5,
    alpha: Annotated[
        float | None, typer.Option(help="Fairness dial of asks. Default: deterministic.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", "-n", help="Rankings an ask draws and answers.")
    ] = None,
    retriever: Annotated[str | None, typer.Option(help="By name.")] = None,
    reranker: Annotated[str | None, typer.Option(help="By name.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="The generator's, by name.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest answer in tokens.")] = None,
    observe: Annotated[
        bool, typer.Option("--observe/--no-observe", help="Send observations to the evaluator.")
    ] = True,
    distinct: Annotated[
        bool,
        typer.Option(
            "--distinct/--repeat", help="Append a number to each question, so that no cache hits; or not."
        ),
    ] = True,
    timeout: Annotated[
        float, typer.Option(min=0.001, max=86_400, help="Deadline of a call in seconds.")
    ] = 60.0,
    seconds: Annotated[float, typer.Option(help="Shortest step in seconds.")] = 30.0,
    calls: Annotated[int, typer.Option(help="Calls per step; a step lasts long enough for them.")] = 100,
    longest: Annotated[float, typer.Option(help="Longest step in seconds, whatever --calls is.")] = 300.0,
    warm_up: Annotated[int, typer.Option(help="Calls before the first step, not counted.")] = 8,
    seed: Seed = 0,
    processes: Annotated[int, typer.Option(help="Processes that make the calls.")] = 1,
    slo_ms: Annotated[
        float | None,
        typer.Option(help="Most milliseconds of a good call. Default: four times the idle mesh's."),
    ] = None,
    slo_first_ms: Annotated[
        float | None, typer.Option(help="Most milliseconds to the first text of a good call.")
    ] = None,
    slo_share: Annotated[float, typer.Option(help="Share of calls that must be good.")] = 0.95,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SERVICE=URL", help="Prometheus metrics of a service, read around each step. Repeat."
        ),
    ] = None,
    pid: Annotated[
        list[str] | None,
        typer.Option(metavar="SERVICE=PID", help="A service's process on this machine to monitor. Repeat."),
    ] = None,
    target: Target = None,
) -> None:
    """Declare the options of every command that measures."""


def _measures(**defaults: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command from a signature: it measures, with its own options and the shared ones.

    Args:
        defaults: this command's defaults of shared options, by name.
    """

    def made(asked: Callable[..., None]) -> Callable[..., None]:
        shared = [
            one.replace(default=defaults.get(one.name, one.default))
            for one in inspect.signature(_options).parameters.values()
        ]

        @functools.wraps(asked)
        def command(**given: Any) -> None:
            _run(cast("Way", asked.__name__), given)

        own = inspect.signature(asked)
        command.__signature__ = own.replace(parameters=[*own.parameters.values(), *shared])  # type: ignore[attr-defined]
        return command

    return made


def bench() -> typer.Typer:
    """Return the commands of ``evenmesh bench``."""
    return group("bench", "Load a mesh and measure its capacity.", load, ramp, sweep, compare, capacity)


@_measures()
def load(
    operation: Operation,
    out: Out,
    rate: Annotated[
        str,
        typer.Option(metavar="R,…", help="Calls per second, sent whether or not earlier calls have ended."),
    ] = "",
    concurrency: Annotated[str, typer.Option(metavar="C,…", help="Callers who wait for each answer.")] = "",
    trace: Annotated[
        Path | None, typer.Option(help="File of arrivals: seconds or dates in the first column.")
    ] = None,
    trace_speed: Annotated[float, typer.Option(help="Factor by which the trace is played faster.")] = 1.0,
) -> None:
    """Measure given loads.

    Send calls at given rates, from waiting callers, or from a trace.

    The same command resumes a run that was stopped or killed.
    """


@_measures(calls=200, longest=600.0)
def ramp(
    operation: Operation,
    out: Out,
    rate: Annotated[
        str, typer.Option(metavar="R,…", help="Calls per second. Default: shares of the saturation.")
    ] = "",
    concurrency: Annotated[
        str, typer.Option(metavar="C,…", help="Callers who wait, for the prediction; must include 1.")
    ] = "1,2,4,8,16",
) -> None:
    """Find the knee, and predict it.

    At the knee calls take twice as long as alone.

    Calibrate a queueing model with waiting callers first; then raise the rate of calls until two rates were
    clearly too high.
    """


@_measures(seconds=10.0, calls=60)
def sweep(
    operation: Operation,
    out: Out,
    vary: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=A,B,…",
            help="N, k, alpha (none: deterministic) or concurrency, with values. Repeat: all combinations.",
        ),
    ],
    rate: Annotated[
        str, typer.Option(metavar="R", help="Calls per second, instead of callers who wait.")
    ] = "",
    concurrency: Annotated[str, typer.Option(metavar="C", help="Callers who wait.")] = "1",
) -> None:
    """Measure one load under many settings.

    Show the cost and the value of N, k, α and concurrency.
    """


def compare(
    before: Annotated[Path, typer.Argument(help="Folder of the first run.")],
    after: Annotated[Path, typer.Argument(help="Folder of the second.")],
    slower: Annotated[float, typer.Option(help="Percent by which times may grow.")] = 10.0,
    errors: Annotated[float, typer.Option(help="Percentage points by which failed calls may grow.")] = 1.0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail also if it may be worse, or a step is missing.")
    ] = False,
    seed: Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Compare two runs, step by step.

    Exit status 1 if the second is worse.

    It is worse if the whole interval of a time's ratio, or of the difference of failed calls, exceeds the
    limits --slower and --errors.
    """
    problems = [
        f"{name} is {value:g}; allowed: from 0"
        for name, value in (("slower", slower), ("errors", errors))
        if not value >= 0
    ]
    if seed < 0:
        problems.append(f"seed is {seed}; allowed: from 0")
    screen = Screen()
    with reported():
        from evenmesh_studies.load.analysis import comparison
        from evenmesh_studies.load.reporting.tables import comparison_table
        from evenmesh_studies.load.session import FILE, read_steps

        folders: list[Sequence[StepResult]] = []
        for folder in (before, after):
            if (folder / FILE).is_file():
                folders.append(read_steps(folder / FILE))
            else:
                problems.append(f"{folder} is not a run of evenmesh bench: it has no {FILE}")
        refuse(screen, problems)
        found = comparison.compare(*folders, slower=slower / 100, errors=errors / 100, rng=seed)
    if not found.changes:
        raise CommandError("the runs have no step in common", USAGE)
    maybe = [change for change in found.changes if change.verdict == "perhaps worse"]
    failed = bool(found.worse or (strict and (maybe or found.missing)))
    if as_json:
        screen.json(
            {"passed": not failed, "changes": found.changes, "missing": found.missing, "added": found.added}
        )
    else:
        show_table(screen, comparison_table(found))
        for name in found.missing:
            screen.note(f"note: step {name} is missing in {after}")
        words = [f"{len(found.worse)} worse", f"{len(maybe)} perhaps worse", f"{len(found.changes)} compared"]
        screen.line(f"{'failed' if failed else 'passed'}: {', '.join(words)}", "red" if failed else "green")
    if failed:
        raise typer.Exit(FAILED)


def capacity(
    run: Annotated[
        Path, typer.Argument(help="Folder of a ramp of asks, measured against services on the same machine.")
    ],
    asks: Annotated[str, typer.Option(metavar="R,…", help="Asks per second.")] = "10,1000,100000",
    assumptions: Annotated[
        Path | None,
        typer.Option(help="TOML file of unmeasured values; see docs/operate/capacity.md."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="Write the tables into this Markdown page, between its markers."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Estimate the hardware for rates of asks.

    Compute processors, GPUs, pods and index shards from a measured run.
    """
    screen = Screen()
    with reported():
        import json

        from evenmesh_lab.reports import as_markdown
        from evenmesh_studies.load.analysis.capacity import (
            Assumptions,
            capacity_tables,
            measured_demand,
            needs,
        )
        from evenmesh_studies.load.reporting.page import fill

        problems: list[str] = []
        rates = _numbers("asks", asks, problems)
        if not rates:
            problems.append("asks has no rate")
        problems += [
            f"asks is {rate:g}; allowed: above 0, up to 1e9" for rate in rates if not 0 < rate <= 1e9
        ]
        given = Assumptions()
        if assumptions is not None:
            given, wrong = Assumptions.read(assumptions)
            problems += wrong
        report = run / "report.json"
        if not report.is_file():
            problems.append(f"{run} is not a run of evenmesh bench: it has no report.json")
        if page is not None and not page.is_file():
            problems.append(f"{page} does not exist")
        refuse(screen, problems)
        try:
            demand = measured_demand(json.loads(report.read_text(encoding="utf-8")))
        except ValueError as exc:
            raise CommandError(f"{report}: {exc}", FAILED) from exc
        found = needs(demand, given, rates)
        tables = list(capacity_tables(demand, given, found))
        if page is not None:
            try:
                fill(page, "capacity", as_markdown(tables, level=3))
            except ValueError as exc:
                raise CommandError(str(exc), FAILED) from exc
            screen.note(f"written into {page}")
    if as_json:
        screen.json({"demand": demand, "assumptions": given, "needs": found})
    elif page is None:
        screen.line(as_markdown(tables, level=2))


def _run(way: "Way", given: dict[str, Any]) -> None:
    """Run a plan as the options say, and write its report, whatever ends it."""
    screen = Screen()
    with reported():
        import hashlib

        import uvloop

        from evenmesh_lab.files import Journal

        plan, items, monitored, addresses = _planned(screen, way, given)
        out: Path = given["out"]
        settings = plan.as_settings()
        if (queries := given["queries"]) is not None:
            settings["queries"] = hashlib.sha256(queries.read_bytes()).hexdigest()
        with Journal(out / "bench.journal", settings) as journal:
            try:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    run, stopped = runner.run(_measure(screen, plan, items, monitored, addresses, journal))
            except asyncio.CancelledError:
                raise CommandError(
                    "stopped; the same command resumes after the last complete step", 130
                ) from None
            _report(screen, run, out)
    if stopped:
        raise typer.Exit(130)


def _planned(
    screen: Screen, way: "Way", given: dict[str, Any]
) -> "tuple[LoadPlan, list[Item], tuple[dict[str, str], dict[str, str]], Addresses]":
    """Return the plan, the questions, what to monitor, and the mesh; report all problems at once.

    Raises:
        CommandError: there are problems.
    """
    from evenmesh.addresses import Addresses
    from evenmesh_studies.load.plan import LoadPlan
    from evenmesh_studies.load.settings import CallSettings

    problems: list[str] = []
    rates = _numbers("rate", given["rate"], problems)
    callers = [round(one) for one in _numbers("concurrency", given["concurrency"], problems, whole=True)]
    varied = tuple(_varied(given.get("vary") or (), problems))
    if way == "sweep" and len(rates) > 1:
        problems.append("rate of a sweep is one rate; vary concurrency instead")
    if way == "sweep" and rates and any(name == "concurrency" for name, _ in varied):
        problems.append("rate and a varied concurrency exclude each other: calls at a rate do not wait")
    same = ("operation", "k", "alpha", "samples", "collection", "retriever", "reranker", "model")
    more = ("max_new_tokens", "observe", "distinct")
    plan = LoadPlan(
        way=way,
        settings=CallSettings(
            n=given["pool"], timeout_s=given["timeout"], **{name: given[name] for name in same + more}
        ),
        rates=tuple(rates),
        callers=tuple(callers),
        arrivals=_trace(given.get("trace"), given.get("trace_speed", 1.0), problems),
        varied=varied,
        seconds=given["seconds"],
        least_calls=given["calls"],
        longest_s=given["longest"],
        warm_up=given["warm_up"],
        seed=given["seed"],
        slo=_slo(given, problems),
        processes=given["processes"],
    )
    problems += plan.problems()
    items = _items(given["queries"], problems)
    addresses = Addresses.find()
    if given["target"] is not None:
        addresses = replace(addresses, orchestrator=given["target"])
    monitored = (
        _assigned("pid", "PID", given["pid"] or (), str.isdecimal, problems),
        _assigned(
            "metrics",
            "http://…",
            given["metrics"] or (),
            lambda value: value.startswith(("http://", "https://")),
            problems,
        ),
    )
    refuse(screen, problems)
    return plan, items, monitored, addresses


async def _measure(
    screen: Screen,
    plan: "LoadPlan",
    items: "list[Item]",
    monitored: tuple[dict[str, str], dict[str, str]],
    addresses: "Addresses",
    journal: "Journal",
) -> "tuple[LoadRun, bool]":
    """Return the run, and whether it was stopped."""
    import time

    from evenmesh import AsyncClient
    from evenmesh_studies.load.calls.clients import LocalClient, ProcessClient
    from evenmesh_studies.load.calls.inputs import with_passages
    from evenmesh_studies.load.environment import asked, machine, served
    from evenmesh_studies.load.resource_monitor import ResourceMonitor
    from evenmesh_studies.load.run import evaluate_run
    from evenmesh_studies.load.session import Session

    settings, stop = plan.settings, asyncio.Event()
    varied = dict(plan.varied)
    facts = {**asked(settings, varied), **await served(addresses, settings), **machine()}
    pids = {name: int(value) for name, value in monitored[0].items()} or _mesh_processes(addresses)
    if settings.operation != "ask":
        largest = max((int(one) for one in varied.get("N", ()) if one), default=settings.n)
        async with AsyncClient(addresses) as mesh:
            items = await with_passages(mesh, items, replace(settings, n=largest))
    local = plan.processes == 1
    async with LocalClient(addresses) if local else ProcessClient(addresses, plan.processes) as client:
        session = Session(
            plan,
            client,
            ResourceMonitor(pids, monitored[1]),
            items,
            journal,
            stop,
            _StepDisplay(screen),
            # No cache of the mesh knows these numbers from an earlier run.
            first=int(time.time()) % 1_000_000 * 1_000 if settings.distinct else 0,
        )
        await _until_stopped(session, stop)
    run = evaluate_run(
        plan.way,
        settings,
        session.steps,
        plan.slo,
        facts,
        local=bool(pids),
        seed=plan.seed,
        interrupted=session.interrupted,
    )
    return run, stop.is_set()


async def _until_stopped(session: "Session", stop: asyncio.Event) -> None:
    """Run a session. The first Ctrl-C ends the step, the second the run at once."""

    loop = asyncio.get_running_loop()
    task = asyncio.current_task()

    def received() -> None:
        if stop.is_set() and task is not None:
            task.cancel()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, received)
    try:
        await session.run()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


class _StepDisplay:
    """Shows a line for each step."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def begins(self, step: "Step", place: int, count: int) -> None:
        self._screen.note(f"step {place + 1} of {count}: {step.name}, {step.seconds:.0f} s")

    def ended(self, measured: "StepResult") -> None:
        from evenmesh_studies.load.step import Distribution

        spread = Distribution.of(measured.latencies_ms())
        if not spread.count:
            self._screen.note(f"  no call succeeded: {measured.codes() or 'none was counted'}", "yellow")
            return
        failed = f", {measured.error_share:.1%} failed" if measured.error_share else ""
        due = f"{measured.offered_per_s:.3g} due/s, " if measured.step.kind != "closed" else ""
        self._screen.note(
            f"  {due}{measured.completed_per_s:.3g} done/s, p50 {spread.p50:.0f} ms, "
            f"p99 {spread.p99:.0f} ms{failed}"
        )


def _report(screen: Screen, run: "LoadRun", out: Path) -> None:
    from evenmesh_studies.load.reporting.report import summary, write_report

    if not run.steps:
        screen.note("nothing was measured")
        return
    written = write_report(run, out)
    screen.line(summary(run))
    screen.note(f"written: {', '.join(str(path) for path in written)}")


def _numbers(name: str, text: str, problems: list[str], *, whole: bool = False) -> list[float]:
    """Return the numbers between commas; add a problem for each part that is not a number."""
    found = []
    for part in (one.strip() for one in text.split(",") if one.strip()):
        try:
            found.append(float(int(part)) if whole else float(part))
        except ValueError:
            problems.append(
                f"{name} has {part!r}; allowed: {'whole ' if whole else ''}numbers between commas"
            )
    return found


def _varied(given: Sequence[str], problems: list[str]) -> Iterator[tuple[str, tuple[float | None, ...]]]:
    from evenmesh_studies.load.plan import VARIED

    for one in given:
        name, sign, values = one.partition("=")
        if name not in VARIED or not sign:
            problems.append(f"vary is {one!r}; allowed: NAME=A,B,… with NAME of {', '.join(VARIED)}")
            continue
        found: list[float | None] = []
        for part in (part.strip() for part in values.split(",")):
            if part == "none" and name == "alpha":
                found.append(None)
                continue
            found.extend(_numbers(f"vary {name}", part, problems, whole=name != "alpha"))
        if not found:
            problems.append(f"vary is {one!r}; it has no value")
        yield name, tuple(found)


def _trace(path: Path | None, speed: float, problems: list[str]) -> tuple[float, ...]:
    from evenmesh_core.errors import InvalidInput
    from evenmesh_lab.files import FileError
    from evenmesh_studies.load.calls.arrivals import read_trace

    if path is None:
        return ()
    try:
        return tuple(read_trace(path, speed=speed).tolist())
    except InvalidInput as exc:
        problems.append(f"trace-speed is {speed:g}; allowed: {exc.allowed}")
    except FileError as exc:
        problems.append(str(exc))
    except OSError as exc:
        problems.append(f"{path}: {exc.strerror}")
    return ()


def _items(path: Path | None, problems: list[str]) -> "list[Item]":
    from evenmesh_studies.load.calls.inputs import Item, demo_items

    if path is None:
        return demo_items()
    from evenmesh_lab.files import read_queries
    from evenmesh_studies.runner.queries import own_passages

    found = read_queries(path)
    problems += [str(problem) for problem in found.problems]
    if not found.queries and not found.problems:
        problems.append(f"{path} has no question")
    return [
        Item(one.query_id, one.question, one.references, passages=tuple(own_passages(one)))
        for one in found.queries
    ]


def _slo(given: dict[str, Any], problems: list[str]) -> "Slo | None":
    from evenmesh_studies.load.step import Slo

    if given["slo_ms"] is not None:
        return Slo(given["slo_ms"], given["slo_first_ms"], given["slo_share"])
    if given["slo_first_ms"] is not None:
        problems.append("slo-first-ms needs slo-ms")
    return None


def _assigned(
    option: str, kind: str, given: Sequence[str], allowed: Callable[[str], bool], problems: list[str]
) -> dict[str, str]:
    """Return the values of ``SERVICE=VALUE`` by service; add a problem for each that is not allowed."""
    found = {}
    for one in given:
        name, _, value = one.partition("=")
        if name and allowed(value):
            found[name] = value
        else:
            problems.append(f"{option} is {one!r}; allowed: SERVICE={kind}")
    return found


def _mesh_processes(addresses: "Addresses") -> dict[str, int]:
    """Return the processes of this machine's mesh, if that is the one asked."""
    from evenmesh.home import home
    from evenmesh.local_mesh import read_running

    running = read_running(home())
    if running is None or running.addresses.get("orchestrator") != addresses.orchestrator:
        return {}
    return {name: one.pid for name, one in running.services.items() if one.pid is not None}
