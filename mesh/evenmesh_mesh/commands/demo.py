"""Command ``evenmesh demo``: ask without and with the dial, compare who is shown, and cite a document."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from evenmesh.commands.screen import Screen
from evenmesh_mesh.commands.mesh import Home, folder_of

if TYPE_CHECKING:
    from evenmesh.addresses import Addresses
    from evenmesh.local_mesh import MeshState
    from evenmesh.types.events import AskResult
    from evenmesh_documents.gathering import Gathered, Spool
    from evenmesh_documents.splitting import Splitting
    from evenmesh_studies.demo import Question

ALPHAS: Final = (None, 8.0, 0.0)
"""Settings of the dial; None: one ranking by score."""
SAMPLES: Final = 100
POOL: Final = 10
ANSWERS: Final = 3
FOLDER: Final = Path(__file__).parents[1] / "demo_documents"
"""Documents of four kinds."""
DOCUMENTS: Final = "demo-documents"
"""The collection of their passages."""
QUESTION: Final = "How often should a bicycle chain be oiled?"
"""A question that the second page of one of them answers."""


def demo(
    number: Annotated[
        int, typer.Option("--question", min=1, max=60, help="Which of the demo's questions to ask.")
    ] = 10,
    home: Home = None,
) -> None:
    """Ask without and with the dial; see who is shown.

    Asks a question by score, at α = 8 and at α = 0. Then ingests documents, and asks for a page of one.

    Uses the running mesh, or starts one and stops it afterwards.
    """
    from evenmesh_studies.demo import questions

    if not asyncio.run(_demo(Screen(), folder_of(home), questions()[number - 1])):
        raise KeyboardInterrupt


async def _demo(screen: Screen, home: Path, question: "Question") -> bool:
    """Show the demo; return whether it came to its end, which a signal to stop prevents."""
    from evenmesh.addresses import Addresses
    from evenmesh.local_mesh import read_running
    from evenmesh_mesh import MeshSettings
    from evenmesh_mesh.commands.running import ensure_demo, started

    async with AsyncExitStack[bool]() as stack:
        running = read_running(home)
        if running is None:
            mesh = await started(screen, MeshSettings(home=home), stack)
            running = mesh.state
        addresses = Addresses(**running.addresses)
        await ensure_demo(screen, addresses)
        await _show(screen, addresses, question)
        await show_documents(screen, addresses)
        screen.line()
        screen.line(_in_a_browser(read_running(home)))
        return True
    return False  # a signal ended the block


def _in_a_browser(running: "MeshState | None") -> str:
    """Say where the same can be seen: the demo's own mesh has no gateway, and ends with it."""
    from evenmesh_mesh.health import console_url

    url = None if running is None else console_url(running)
    return f"Turn the dial yourself: {url or 'evenmesh up, then open what evenmesh console prints'}"


async def _show(screen: Screen, addresses: "Addresses", question: "Question") -> None:
    from evenmesh import AsyncClient
    from evenmesh.commands.views import AskView
    from evenmesh_mesh.commands.running import DEMO

    async with AsyncClient(addresses) as client:
        screen.line(f"$ evenmesh ask {question.question!r}", style="bold cyan")
        with AskView(screen) as view:
            async for event in client.ask(
                question.question,
                collection=DEMO,
                references=question.answers,
                useful=question.useful_passage_ids,
            ):
                view.show(event)
            view.finish(question.question)
        screen.line()
        screen.line(
            f"The same question from its {POOL} best passages: without the fairness dial, "
            f"and from {SAMPLES} rankings drawn with it",
            style="bold",
        )
        results: dict[float | None, AskResult] = {}
        for alpha in ALPHAS:
            with screen.err.status(_named(alpha)):
                results[alpha] = await client.answer(
                    question.question,
                    collection=DEMO,
                    alpha=alpha,
                    samples=None if alpha is None else SAMPLES,
                    seed=0,  # the shares that the README shows
                    depth=POOL,
                    num_answers=None if alpha is None else ANSWERS,
                    references=question.answers,
                    useful=question.useful_passage_ids,
                )
    _compare(screen, question, results)


async def show_documents(screen: Screen, addresses: "Addresses") -> None:
    """Ingest a folder of documents of four kinds, and ask a question whose answer cites a page of one."""
    from evenmesh import AsyncClient
    from evenmesh.commands.ingest import ingest_summary
    from evenmesh.commands.views import AskView
    from evenmesh_documents.gathering import Spool
    from evenmesh_documents.showing import show_gathered

    screen.line()
    screen.line(f"$ evenmesh ingest {FOLDER.name} --collection {DOCUMENTS}", style="bold cyan")
    splitting = splitting_of_documents()
    with Spool() as spool:
        show_gathered(screen, await asyncio.to_thread(read_documents, spool, splitting), splitting)
        async with AsyncClient(addresses) as client:
            screen.line(ingest_summary(await client.ingest(list(spool), DOCUMENTS)))
            screen.line()
            screen.line(f"$ evenmesh ask {QUESTION!r} --collection {DOCUMENTS}", style="bold cyan")
            with AskView(screen) as view:
                async for event in client.ask(QUESTION, collection=DOCUMENTS):
                    view.show(event)
                view.finish(QUESTION)


def splitting_of_documents() -> "Splitting":
    """Return how ``evenmesh ingest`` splits without options."""
    from evenmesh_documents.options import PassageOptions

    return PassageOptions().splitting("")


def read_documents(spool: "Spool", splitting: "Splitting") -> "Gathered":
    """Read the folder of documents into a spool."""
    from evenmesh_documents.attribution import Attribution
    from evenmesh_documents.gathering import gather
    from evenmesh_documents.origins.found import find
    from evenmesh_documents.parsing.parsers import Parsers

    with Parsers() as parsers:
        return gather(
            list(find([str(FOLDER)])), parsers, spool, splitting=splitting, attribution=Attribution()
        )


def _named(alpha: float | None) -> str:
    return "no dial" if alpha is None else f"α = {alpha:g}"


def _compare(screen: Screen, question: "Question", results: "dict[float | None, AskResult]") -> None:
    """Make a table with a row per provider and a column per setting of the dial."""
    from rich.text import Text

    from evenmesh.commands.screen import clean

    shares = {
        alpha: {share.name: share.share for share in result.report.providers} if result.report else {}
        for alpha, result in results.items()
    }
    table = screen.table("provider", "useful", *map(_named, ALPHAS))
    for name in dict.fromkeys(name for alpha in ALPHAS for name in shares[alpha]):
        cells = (
            screen.bar(share, 14) + Text(f" {share:4.0%}")
            for share in (shares[alpha].get(name, 0.0) for alpha in ALPHAS)
        )
        table.add_row(Text(clean(name)), "yes" if name in question.providers else "", *cells)
    table.add_section()
    reports = [results[alpha].report for alpha in ALPHAS]
    for label, values in (
        ("unevenness (EE-D)", [report and report.ee_d_norm for report in reports]),
        ("useful passages shown (EE-R)", [report and report.ee_r_norm for report in reports]),
        ("answers right (utility)", [report and report.expected_utility for report in reports]),
    ):
        table.add_row(label, "", *("–" if value is None else f"{value:.2f}" for value in values))
    said = ([*results[alpha].samples_by_answer(), "–"][0] for alpha in ALPHAS)
    table.add_row("most frequent answer", "", *(Text(clean(text)) for text in said))
    screen.out.print(table)
