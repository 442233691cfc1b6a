"""``evenmesh retrieve``, ``evenmesh retrievers`` and ``evenmesh sources web``: the retriever alone."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from evenmesh.commands.dial import Alpha, Disparity, RelevanceLoss, Samples, Share
from evenmesh.commands.failure import USAGE, CommandError
from evenmesh.commands.filters import FILTER_HELP, filter_of
from evenmesh.commands.group import group
from evenmesh.commands.screen import Screen
from evenmesh.commands.shares import shares_of

if TYPE_CHECKING:
    from evenmesh.types.retrieval import Retrieval

_SHOWN_TEXT: Final = 72


def retrieve(
    query: Annotated[str, typer.Argument(help="The query.")],
    collection: Annotated[
        str | None, typer.Option("--collection", "-c", help="Collection to retrieve from.")
    ] = None,
    web: Annotated[
        str | None, typer.Option("--web", help="Web-search source instead, see `evenmesh sources web`.")
    ] = None,
    filter_: Annotated[list[str] | None, typer.Option("--filter", help=FILTER_HELP)] = None,
    retriever: Annotated[str | None, typer.Option(help="Retriever by name, such as bm25.")] = None,
    depth: Annotated[int | None, typer.Option(help="Size of the candidate pool. Default: 100.")] = None,
    k: Annotated[int | None, typer.Option("-k", help="Positions of a ranking. Default: 5.")] = None,
    alpha: Alpha = None,
    disparity: Disparity = None,
    relevance_loss: RelevanceLoss = None,
    share: Share = None,
    samples: Samples = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the sampling. Default: drawn, and shown.")
    ] = None,
    whole_collection: Annotated[
        bool,
        typer.Option(
            "--whole-collection", help="Sample from every passage of the collection, not from a pool."
        ),
    ] = False,
    inclusion: Annotated[
        bool,
        typer.Option("--inclusion", help="Show each passage's exact probability to be among the first k."),
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0.001, max=86_400, help="Seconds for the whole command.")
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print passages and rankings as JSON.")] = False,
) -> None:
    """Retrieve passages, without an answer.

    With sampled rankings, show how often each passage is among the first k.
    """
    from evenmesh import Client

    screen = Screen()
    if (collection is None) == (web is None):
        raise CommandError("give one of --collection NAME and --web NAME", USAGE)
    options: Any = {
        "collection": collection,
        "web": web,
        "filter": filter_of(filter_ or []),
        "retriever": retriever,
        "depth": depth,
        "k": k,
        "alpha": alpha,
        "disparity": disparity,
        "relevance_loss": relevance_loss,
        "shares": shares_of(share),
        "samples": samples,
        "seed": seed,
        "whole_collection": whole_collection,
        "inclusion": inclusion,
    }
    with Client() as mesh:
        found = mesh.retrieve(query, timeout=timeout, **options)
    if as_json:
        screen.json(found)
    else:
        _show(screen, found)


def sources() -> typer.Typer:
    """Return ``evenmesh sources``."""
    return group("sources", "Sources of passages.", web)


def web(
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """List the web-search sources."""
    from evenmesh import Client

    screen = Screen()
    with Client() as mesh:
        found = mesh.sources()
    if as_json:
        screen.json(found)
    elif found:
        _list(screen, ("source", "what it searches"), [(one.name, one.description) for one in found])
    else:
        screen.line(
            "No web-search sources; EVENMESH_RETRIEVER_WEB_SOURCES adds some, see docs/guides/expressions.md"
        )


def retrievers(
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """List the retrievers; the first is the default."""
    from evenmesh import Client

    screen = Screen()
    with Client() as mesh:
        found = mesh.retrievers()
    if as_json:
        screen.json(found)
        return
    rows = [(one.name, one.engine, one.model or "–", one.device, one.description) for one in found]
    _list(screen, ("retriever", "engine", "model", "device", "what it does"), rows)


def _list(screen: Screen, columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    from rich.text import Text

    from evenmesh.commands.screen import clean

    table = screen.table(*columns)
    for row in rows:
        table.add_row(*(Text(clean(cell)) for cell in row))
    screen.out.print(table)


def _show(screen: Screen, found: "Retrieval") -> None:
    from rich.text import Text

    from evenmesh.commands.screen import clean

    if not found.passages:
        screen.line("Nothing is found.")
        return
    sampled, exact = bool(found.log_probabilities), bool(found.inclusion_probabilities)
    table = screen.table(
        "passage",
        "score",
        *(["shown in"] if sampled else []),
        *(["inclusion"] if exact else []),
        "text",
        right=("score", "shown in", "inclusion"),
    )
    counts = [0] * len(found.passages)
    for ranking in found.rankings:
        for place in ranking:
            counts[place] += 1
    for place, passage in enumerate(found.passages):
        words = clean(" ".join(f"{passage.title}: {passage.text}".removeprefix(": ").split()))
        cells: list[Text | str] = [Text(clean(passage.id)), f"{found.scores[place]:.4g}"]
        if sampled:
            cells.append(f"{counts[place] / len(found.rankings):.0%}")
        if exact:
            cells.append(f"{found.inclusion_probabilities[place]:.3f}")
        shown = words if len(words) <= _SHOWN_TEXT else f"{words[: _SHOWN_TEXT - 1]}…"
        table.add_row(*cells, Text(shown))
    screen.out.print(table)
    if found.policy is not None:
        from evenmesh.commands.views import show_policy

        show_policy(screen, found.policy)
    version = f", version {found.index_version}" if found.index_version else ""
    seed = f", seed {found.seed}" if found.seed is not None else ""
    screen.note(f"{found.retriever}{version}{seed}" + (f"; {found.note}" if found.note else ""))
