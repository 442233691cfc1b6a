"""``ragmesh bench``: load tests that can be believed, and what follows from them."""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ragmesh.cli.ask import Target
from ragmesh.cli.failure import FAILED, USAGE, CommandError, refuse
from ragmesh.cli.group import group
from ragmesh.cli.screen import Screen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ragmesh.addresses import Addresses
    from ragmesh.bench.material import Item
    from ragmesh.bench.plan import Plan
    from ragmesh.bench.run import Run
    from ragmesh.bench.session import Session
    from ragmesh.bench.step import Measured, Step

BENCH = "pip install 'ragmesh[bench]'"

Operation = Annotated[str, typer.Argument(help="ask, rerank, generate or rerank-generate.")]
Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where steps and the report go; goes on there.")
]
Queries = Annotated[
    Path | None,
    typer.Option(
        help="Questions: JSON lines or Parquet of query_id, question, references. Default: the demo's."
    ),
]
Collection = Annotated[str, typer.Option("--collection", "-c", help="Where passages come from.")]
Pool = Annotated[int, typer.Option("-N", "--pool", help="Passages of the pool: those that are reranked.")]
K = Annotated[int, typer.Option("-k", help="Passages the model is given.")]
Alpha = Annotated[float | None, typer.Option(help="Fairness dial of asks. Default: deterministic.")]
Samples = Annotated[int | None, typer.Option("--samples", "-n", help="Rankings an ask draws and answers.")]
Retriever = Annotated[str | None, typer.Option(help="By name.")]
Reranker = Annotated[str | None, typer.Option(help="By name.")]
Model = Annotated[str | None, typer.Option("--model", "-m", help="The generator's, by name.")]
NewTokens = Annotated[int | None, typer.Option(help="Longest answer in tokens.")]
Observe = Annotated[bool, typer.Option("--observe/--no-observe", help="Tell the evaluator of asks.")]
Distinct = Annotated[
    bool,
    typer.Option(
        "--distinct/--repeat", help="Add a number to each question, so that no cache knows it; or not."
    ),
]
Timeout = Annotated[float, typer.Option(help="Seconds after which a call is given up.")]
Seconds = Annotated[float, typer.Option(help="Least length of a step.")]
Calls = Annotated[int, typer.Option(help="Calls that a step is made long enough for.")]
Longest = Annotated[float, typer.Option(help="Seconds that a step takes at most for that.")]
WarmUp = Annotated[int, typer.Option(help="Calls before the first step that are not counted.")]
Seed = Annotated[int, typer.Option(help="Seed of arrivals and of intervals.")]
Processes = Annotated[int, typer.Option(help="Processes that make the calls.")]
SloMs = Annotated[
    float | None,
    typer.Option(help="A good call ends within so many milliseconds. Default: four times the idle mesh's."),
]
SloFirst = Annotated[float | None, typer.Option(help="And its first text comes within so many.")]
SloShare = Annotated[float, typer.Option(help="Share of calls that have to be good.")]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SERVICE=URL", help="Prometheus metrics of a service, read around each step. Repeat."
    ),
]
Pid = Annotated[
    list[str] | None,
    typer.Option(metavar="SERVICE=PID", help="A service's process on this machine, to be watched. Repeat."),
]


def _options(
    queries: Queries = None,
    collection: Collection = "demo",
    pool: Pool = 100,
    k: K = 5,
    alpha: Alpha = None,
    samples: Samples = None,
    retriever: Retriever = None,
    reranker: Reranker = None,
    model: Model = None,
    max_new_tokens: NewTokens = None,
    observe: Observe = True,
    distinct: Distinct = True,
    timeout: Timeout = 60.0,
    seconds: Seconds = 30.0,
    calls: Calls = 100,
    longest: Longest = 300.0,
    warm_up: WarmUp = 8,
    seed: Seed = 0,
    processes: Processes = 1,
    slo_ms: SloMs = None,
    slo_first_ms: SloFirst = None,
    slo_share: SloShare = 0.95,
    metrics: Metrics = None,
    pid: Pid = None,
    target: Target = None,
) -> None:
    """What every command that measures is asked for besides its own options."""


def _measures(**defaults: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a command of a signature and its help: it measures, with its own options and the shared ones.

    Args:
        defaults: of shared options, by name, that are this command's own.
    """

    def made(asked: Callable[..., None]) -> Callable[..., None]:
        shared = [
            one.replace(default=defaults.get(one.name, one.default))
            for one in inspect.signature(_options).parameters.values()
        ]

        @functools.wraps(asked)
        def command(**given: Any) -> None:
            _run(asked.__name__, given)

        own = inspect.signature(asked)
        command.__signature__ = own.replace(parameters=[*own.parameters.values(), *shared])  # type: ignore[attr-defined]
        return command

    return made


def bench() -> typer.Typer:
    """The commands of ``ragmesh bench``."""
    app = group("bench", "Load a mesh, and see what it bears.")
    for command in (load, ramp, sweep, compare, capacity):
        app.command()(command)
    return app


@_measures()
def load(
    operation: Operation,
    out: Out,
    rate: Annotated[
        str, typer.Option(metavar="R,…", help="Calls per second that come whatever happens.")
    ] = "",
    concurrency: Annotated[
        str, typer.Option(metavar="C,…", help="Callers who each wait for their answer.")
    ] = "",
    trace: Annotated[
        Path | None, typer.Option(help="Arrivals as they once came: seconds or dates, the first column.")
    ] = None,
    trace_speed: Annotated[float, typer.Option(help="How many times as fast a trace is played.")] = 1.0,
) -> None:
    """Measure some loads.

    At rates, with callers who wait, or as calls once came.

    A run that was stopped or killed goes on where it was with the same command.
    """


@_measures(calls=200, longest=600.0)
def ramp(
    operation: Operation,
    out: Out,
    rate: Annotated[
        str, typer.Option(metavar="R,…", help="Calls per second. Default: shares of what saturates the mesh.")
    ] = "",
    concurrency: Annotated[
        str, typer.Option(metavar="C,…", help="Callers who wait, for the prediction; 1 among them.")
    ] = "1,2,4,8,16",
) -> None:
    """Find the knee, and predict it.

    It is the rate at which calls take twice as long as alone.

    First callers who wait tell a queueing model how fast the mesh is; then calls come at rising rates, until
    two of them were clearly too much.
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
        str, typer.Option(metavar="R", help="Calls per second; instead of callers who wait.")
    ] = "",
    concurrency: Annotated[str, typer.Option(metavar="C", help="Callers who wait.")] = "1",
) -> None:
    """Measure one load under many settings.

    What N, k, α and concurrency cost, and what they are worth.
    """


def compare(
    before: Annotated[Path, typer.Argument(help="Folder of the first run.")],
    after: Annotated[Path, typer.Argument(help="Folder of the second.")],
    slower: Annotated[float, typer.Option(help="Percent by which times may grow.")] = 10.0,
    errors: Annotated[float, typer.Option(help="Percentage points by which failed calls may grow.")] = 1.0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail as well where it only may be worse, or a step is missing.")
    ] = False,
    seed: Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Compare two runs, step by step.

    Exit status 1 if the second is worse.

    It is worse where the whole interval of a time's ratio, or of the difference of failed calls, lies beyond
    what is allowed.
    """
    problems = [
        f"{name} is {value:g}; allowed: from 0"
        for name, value in (("slower", slower), ("errors", errors))
        if not value >= 0
    ]
    if seed < 0:
        problems.append(f"seed is {seed}; allowed: from 0")
    screen = Screen()
    with _needed():
        from ragmesh.bench import comparison
        from ragmesh.bench.session import FILE, read_steps

        folders: list[Sequence[Measured]] = []
        for folder in (before, after):
            if (folder / FILE).is_file():
                folders.append(read_steps(folder / FILE))
            else:
                problems.append(f"{folder} is no run of ragmesh bench: it has no {FILE}")
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
        _show_comparison(screen, found)
        for name in found.missing:
            screen.note(f"note: step {name} is missing in {after}")
        words = [f"{len(found.worse)} worse", f"{len(maybe)} perhaps worse", f"{len(found.changes)} compared"]
        screen.line(f"{'failed' if failed else 'passed'}: {', '.join(words)}", "red" if failed else "green")
    if failed:
        raise typer.Exit(FAILED)


def capacity(
    run: Annotated[Path, typer.Argument(help="Folder of a ramp of asks, against services on its machine.")],
    asks: Annotated[str, typer.Option(metavar="R,…", help="Asks per second.")] = "10,1000,100000",
    assumptions: Annotated[
        Path | None, typer.Option(help="TOML file of what is not measured; see docs/capacity.md.")
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="Write the tables into this Markdown page, between its marks."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Tell what rates of asks need.

    Processors, GPUs, pods and index shards, from a measured run.
    """
    screen = Screen()
    with _needed():
        import json

        from raglab.reports import as_markdown
        from ragmesh.bench.capacity import Assumptions, capacity_tables, measured_demand, needs
        from ragmesh.bench.page import fill

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
            problems.append(f"{run} is no run of ragmesh bench: it has no report.json")
        if page is not None and not page.is_file():
            problems.append(f"{page} is not there")
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


def _run(way: Any, given: dict[str, Any]) -> None:
    """Runs a plan as the options say, and writes its report, whatever ends it."""
    screen = Screen()
    with _needed():
        import asyncio
        import hashlib

        import uvloop

        plan, items, watched, addresses = _planned(screen, way, given)
        from raglab.files import Journal

        out: Path = given["out"]
        asked = plan.as_settings()
        if (queries := given["queries"]) is not None:
            asked["queries"] = hashlib.sha256(queries.read_bytes()).hexdigest()
        with Journal(out / "bench.journal", asked) as journal:
            try:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    run, stopped = runner.run(_measured(screen, plan, items, watched, addresses, journal))
            except asyncio.CancelledError:
                raise CommandError(
                    "stopped; the same command goes on after the last whole step", 130
                ) from None
            _report(screen, run, out)
    if stopped:
        raise typer.Exit(130)


def _planned(
    screen: Screen, way: Any, given: dict[str, Any]
) -> "tuple[Plan, list[Item], tuple[dict[str, int], dict[str, str]], Addresses]":
    """The plan, the questions, what is watched, and where the mesh is; all that is wrong is told at once."""
    from ragmesh.addresses import Addresses
    from ragmesh.bench.plan import Plan
    from ragmesh.bench.settings import Settings
    from ragmesh.bench.step import Slo

    problems: list[str] = []
    rates = _numbers("rate", given["rate"], problems)
    callers = [round(one) for one in _numbers("concurrency", given["concurrency"], problems, whole=True)]
    settings = Settings(
        operation=given["operation"],
        n=given["pool"],
        k=given["k"],
        alpha=given["alpha"],
        samples=given["samples"],
        collection=given["collection"],
        retriever=given["retriever"],
        reranker=given["reranker"],
        model=given["model"],
        max_new_tokens=given["max_new_tokens"],
        observe=given["observe"],
        distinct=given["distinct"],
        timeout_s=given["timeout"],
    )
    slo = None
    if given["slo_ms"] is not None:
        slo = Slo(given["slo_ms"], given["slo_first_ms"], given["slo_share"])
    elif given["slo_first_ms"] is not None:
        problems.append("slo-first-ms needs slo-ms")
    varied = tuple(_varied(given.get("vary") or (), problems))
    if way == "sweep" and len(rates) > 1:
        problems.append("rate of a sweep is one rate; vary concurrency instead")
    if way == "sweep" and rates and any(name == "concurrency" for name, _ in varied):
        problems.append("rate and a varied concurrency exclude each other: calls at a rate do not wait")
    arrivals = _trace(given.get("trace"), given.get("trace_speed", 1.0), problems)
    plan = Plan(
        way=way,
        settings=settings,
        rates=tuple(rates),
        callers=tuple(callers),
        arrivals=arrivals,
        varied=varied,
        seconds=given["seconds"],
        least_calls=given["calls"],
        longest_s=given["longest"],
        warm_up=given["warm_up"],
        seed=given["seed"],
        slo=slo,
        processes=given["processes"],
    )
    problems += plan.problems()
    items = _items(given["queries"], problems)
    addresses = Addresses.find()
    if given["target"] is not None:
        addresses = replace(addresses, orchestrator=given["target"])
    watched = _watched(given["pid"] or (), given["metrics"] or (), problems)
    refuse(screen, problems)
    return plan, items, watched, addresses


async def _measured(
    screen: Screen,
    plan: "Plan",
    items: "list[Item]",
    watched: "tuple[dict[str, int], dict[str, str]]",
    addresses: "Addresses",
    journal: Any,
) -> "tuple[Run, bool]":
    """The run, and whether it was stopped."""
    import asyncio
    import time
    from contextlib import AsyncExitStack

    from ragmesh.aio import AsyncClient
    from ragmesh.bench.clients import LocalClient, ProcessClient
    from ragmesh.bench.material import with_passages
    from ragmesh.bench.run import concluded
    from ragmesh.bench.session import Session
    from ragmesh.bench.surroundings import asked, machine, served
    from ragmesh.bench.witness import Witness

    stop = asyncio.Event()
    varied = [name for name, _ in plan.varied]
    facts = {**asked(plan.settings, varied), **await served(addresses, plan.settings), **machine()}
    pids, scrapes = watched
    if not pids:
        pids = _mesh_processes(addresses)
    async with AsyncExitStack() as stack:
        if plan.settings.operation != "ask":
            async with AsyncClient(addresses) as mesh:
                largest = max(
                    (int(value) for name, values in plan.varied if name == "N" for value in values if value),
                    default=plan.settings.n,
                )
                items = await with_passages(mesh, items, replace(plan.settings, n=largest))
        client: Any = (
            LocalClient(addresses) if plan.processes == 1 else ProcessClient(addresses, plan.processes)
        )
        await stack.enter_async_context(client)
        session = Session(
            plan,
            client,
            Witness(pids, scrapes),
            items,
            journal,
            stop,
            _Watcher(screen),
            # No cache of the mesh knows these numbers from an earlier run.
            first=int(time.time()) % 1_000_000 * 1_000 if plan.settings.distinct else 0,
        )
        await _until_stopped(session, stop)
    run = concluded(plan.way, plan.settings, session.steps, plan.slo, facts, local=bool(pids), seed=plan.seed)
    return run, stop.is_set()


async def _until_stopped(session: "Session", stop: Any) -> None:
    """Runs a session; the first Ctrl-C ends the step, the second everything at once."""
    import asyncio
    import signal

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


class _Watcher:
    """Tells the screen how a run goes, a line for each step."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def begins(self, step: "Step", place: int, count: int) -> None:
        self._screen.note(f"step {place + 1} of {count}: {step.name}, {step.seconds:.0f} s")

    def ended(self, measured: "Measured") -> None:
        from ragmesh.bench.step import Spread

        spread = Spread.of(measured.latencies_ms())
        if not spread.count:
            self._screen.note(f"  no call ended well: {measured.codes() or 'none was counted'}", "yellow")
            return
        failed = f", {measured.error_share:.1%} failed" if measured.error_share else ""
        due = f"{measured.offered_per_s:.3g} due/s, " if measured.step.kind != "closed" else ""
        self._screen.note(
            f"  {due}{measured.completed_per_s:.3g} done/s, p50 {spread.p50:.0f} ms, "
            f"p99 {spread.p99:.0f} ms{failed}"
        )


def _report(screen: Screen, run: "Run", out: Path) -> None:
    from ragmesh.bench.report import summary, write_report

    if not run.steps:
        screen.note("nothing was measured")
        return
    written = write_report(run, out)
    screen.line(summary(run))
    screen.note(f"written: {', '.join(str(path) for path in written)}")


def _show_comparison(screen: Screen, found: Any) -> None:
    from raglab.reports import shown
    from ragmesh.bench.tables import comparison_table

    made = comparison_table(found)
    labels = [column.label for column in made.columns]
    table = screen.table(*labels, right=tuple(column.label for column in made.columns if column.numeric))
    for row in made.rows:
        table.add_row(*(shown(cell) for cell in row))
    screen.out.print(table)


def _needed() -> Any:
    """Within it, what is wrong with files ends the command with a line, and so does a missing package."""
    from contextlib import contextmanager

    @contextmanager
    def block() -> "Iterator[None]":
        from ragmesh.cli.eval.outputs import reported

        try:
            with reported():
                yield
        except ModuleNotFoundError as exc:
            if exc.name in ("hdrh", "psutil"):
                raise CommandError(f"this needs {exc.name}: {BENCH}", FAILED) from exc
            raise

    return block()


def _numbers(name: str, text: str, problems: list[str], *, whole: bool = False) -> list[float]:
    """Numbers between commas; what is none is told of."""
    found = []
    for part in (one.strip() for one in text.split(",") if one.strip()):
        try:
            found.append(float(int(part)) if whole else float(part))
        except ValueError:
            problems.append(
                f"{name} has {part!r}; allowed: {'whole ' if whole else ''}numbers between commas"
            )
    return found


def _varied(given: Sequence[str], problems: list[str]) -> "Iterator[tuple[str, tuple[float | None, ...]]]":
    from ragmesh.bench.plan import VARIED

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
    from ragcore.errors import InvalidInput
    from raglab.files import FileError
    from ragmesh.bench.arrivals import read_trace

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
    from ragmesh.bench.material import Item, demo_items

    if path is None:
        return demo_items()
    from raglab.files import read_queries
    from ragmesh.passage import Passage

    found = read_queries(path)
    problems += [str(problem) for problem in found.problems]
    if not found.queries and not found.problems:
        problems.append(f"{path} has no question")
    return [
        Item(
            one.query_id,
            one.question,
            one.references,
            passages=tuple(
                Passage(id=each.id, text=each.text, title=each.title, attributes=each.attributes)
                for each in one.passages
            ),
        )
        for one in found.queries
    ]


def _watched(
    pids: Sequence[str], metrics: Sequence[str], problems: list[str]
) -> tuple[dict[str, int], dict[str, str]]:
    processes, scrapes = {}, {}
    for one in pids:
        name, _, value = one.partition("=")
        if name and value.isdecimal():
            processes[name] = int(value)
        else:
            problems.append(f"pid is {one!r}; allowed: SERVICE=PID")
    for one in metrics:
        name, _, value = one.partition("=")
        if name and value.startswith(("http://", "https://")):
            scrapes[name] = value
        else:
            problems.append(f"metrics is {one!r}; allowed: SERVICE=http://…")
    return processes, scrapes


def _mesh_processes(addresses: "Addresses") -> dict[str, int]:
    """The processes of the mesh of this machine, if that is what is asked."""
    from ragmesh.home import home
    from ragmesh.mesh import read_running

    running = read_running(home())
    if running is None or running.addresses.get("orchestrator") != addresses.orchestrator:
        return {}
    return {name: one.pid for name, one in running.services.items() if one.pid is not None}
