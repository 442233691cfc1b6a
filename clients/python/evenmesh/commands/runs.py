"""``evenmesh runs`` and ``evenmesh report``: what was shown and answered so far."""

from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from evenmesh.commands.failure import INSTALL, USAGE, CommandError
from evenmesh.commands.screen import Screen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evenmesh import Client
    from evenmesh.types.reports import Configuration, ConfigurationSummary, Run, RunReport, Window


_SHOWN: Final = 10
"""Most configurations that an error names."""

PAGES: Final = "evenmesh.pages"
"""Group of the entry points that make pages: functions of a client and a report."""


def runs(
    limit: Annotated[int, typer.Option(min=1, help="Number of entries.")] = 20,
    configurations: Annotated[
        bool, typer.Option("--configurations", help="List configurations over all runs instead of runs.")
    ] = False,
    delete: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Delete this run, with its observations and its report."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """List the runs, or the configurations; delete a run."""
    from evenmesh import Client

    if delete is not None and configurations:
        raise CommandError("--delete and --configurations: only runs can be deleted", USAGE)
    screen = Screen()
    with Client() as mesh:
        if delete is not None:
            done = mesh.delete_run(delete)
            if not done.deleted:
                raise CommandError(f"there is no run {delete}; `evenmesh runs` lists them")
            asks = f"{done.num_observations:,} observation{'s' * (done.num_observations != 1)}"
            screen.answer(done, f"{delete} is deleted: {asks}", as_json=as_json)
            return
        found: list[Run] | list[ConfigurationSummary] = (
            mesh.configurations(limit) if configurations else mesh.runs(limit)
        )
    if as_json:
        screen.json(found)
        return
    if not found:
        screen.line("No runs yet; every ask is filed under one.")
        return
    _list(screen, found)


def report(
    run: Annotated[str | None, typer.Argument(help="The run. Default: the newest.")] = None,
    window: Annotated[
        str, typer.Option(metavar="all|hour|day", help="Only asks of the last hour or day.")
    ] = "all",
    collection: Annotated[str | None, typer.Option(help="Report on a configuration: its collection.")] = None,
    retriever: Annotated[str | None, typer.Option(help="Its retriever.")] = None,
    reranker: Annotated[str | None, typer.Option(help="Its reranker.")] = None,
    generator: Annotated[str | None, typer.Option(help="Its generator's model.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Its fairness dial.")] = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="It has no fairness dial and no target.")
    ] = False,
    target: Annotated[
        str | None, typer.Option(metavar="WORDS", help="Its target, such as 'disparity 0.3'.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one page with tables and figures.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Report on a run: exposure, utility, votes, errors, times.

    Or on a configuration over all runs: name enough of it to tell it from the others.
    """
    from evenmesh import Client
    from evenmesh.commands.views import show_run

    named = {
        "collection": collection,
        "retriever": retriever,
        "reranker": reranker,
        "generator": generator,
        "alpha": alpha,
        "target": target,
    }
    wanted: dict[str, str | float | None] = {
        name: value for name, value in named.items() if value is not None
    }
    if deterministic:
        if given := wanted.keys() & {"alpha", "target"}:
            raise CommandError(f"--deterministic and --{min(given)}: give one of the two", USAGE)
        wanted |= {"alpha": None, "target": ""}
    if run is not None and wanted:
        raise CommandError(f"a run and --{next(iter(wanted))}: report on one of the two", USAGE)
    screen = Screen()
    with Client() as mesh:
        chosen = _window(window)
        if wanted:
            found = mesh.report(configuration=_configuration(mesh, wanted), window=chosen)
        else:
            found = mesh.report(_newest(mesh) if run is None else run, window=chosen)
        if html is not None:
            html.write_text(_page(mesh, found), encoding="utf-8")
            screen.note(f"wrote {html}")
    if as_json:
        screen.json(found)
    else:
        show_run(screen, found)


def _list(screen: Screen, found: "list[Run] | list[ConfigurationSummary]") -> None:
    from evenmesh.commands.views import moment
    from evenmesh.types.reports import Run

    of_runs = isinstance(found[0], Run)
    names = ("run",) if of_runs else ("collection", "retriever", "reranker", "generator", "α")
    table = screen.table(*names, "asks", "first", "latest", right=("asks",))
    for one in found:
        if isinstance(one, Run):
            cells = [one.run_id]
        else:
            made = one.configuration
            dial = made.target or ("–" if made.alpha is None else f"{made.alpha:g}")
            cells = [made.collection or "–", made.retriever, made.reranker, made.generator, dial]
        table.add_row(*cells, f"{one.num_observations:,}", moment(one.started_at), moment(one.updated_at))
    screen.out.print(table)


def _newest(mesh: "Client") -> str:
    newest = mesh.runs(1)
    if not newest:
        raise CommandError("there are no runs yet; every ask is filed under one")
    return newest[0].run_id


def _configuration(mesh: "Client", wanted: "Mapping[str, str | float | None]") -> "Configuration":
    """Return the one configuration that has all the wanted values."""
    matching = [
        one.configuration
        for one in mesh.configurations()
        if all(getattr(one.configuration, name) == value for name, value in wanted.items())
    ]
    said = " ".join(f"--{name} {value}" for name, value in wanted.items() if value not in (None, ""))
    if wanted.get("alpha", 0) is None:
        said = f"{said} --deterministic".lstrip()
    if not matching:
        raise CommandError(f"no configuration has {said}; `evenmesh runs --configurations` lists them")
    if len(matching) > 1:
        from evenmesh.commands.views import configuration_shown

        shown = "; ".join(map(configuration_shown, matching[:_SHOWN]))
        hint = "" if "alpha" in wanted or "target" in wanted else ", or --deterministic"
        more = f"; and {len(matching) - _SHOWN} more" if len(matching) > _SHOWN else ""
        raise CommandError(
            f"{len(matching)} configurations have {said}: {shown}{more}; name more of it{hint}",
            USAGE,
        )
    return matching[0]


def _window(name: str) -> "Window":
    from evenmesh.types.reports import WINDOWS

    for window in WINDOWS:
        if name == window:
            return window
    raise CommandError(f"--window is {name!r}; allowed: {', '.join(WINDOWS)}", USAGE)


def _page(mesh: "Client", found: "RunReport") -> str:
    """Make the page of a report with the distribution that has figures."""
    points = entry_points(group=PAGES, name="run")
    if not points:
        raise CommandError(f"a page needs evenmesh-studies, which is not installed: {INSTALL}")
    page: str = next(iter(points)).load()(mesh, found)
    return page
