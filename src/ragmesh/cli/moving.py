"""``ragmesh collection``: a collection as a file, to keep or to move to another mesh."""

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ragmesh.cli.failure import CommandError
from ragmesh.cli.group import group
from ragmesh.cli.screen import Screen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ragmesh.cli.progress import IngestDisplay
    from ragmesh.client import Client
    from ragmesh.collection import Ingested
    from ragmesh.passage import Passage

# A part of an import; the server holds one in memory.
_PART_PASSAGES: Final = 20_000
_PART_BYTES: Final = 128 << 20
_SHOWN_EVERY: Final = 1_000


def collection() -> typer.Typer:
    """The commands of ``ragmesh collection``."""
    app = group("collection", "Write collections to files, and read them.")
    app.command("export")(export)
    app.command("import")(import_)
    return app


def export(
    name: Annotated[str, typer.Argument(help="The collection.")],
    file: Annotated[Path, typer.Argument(help="Parquet file to write; must not be there yet.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write all passages of a collection, as of now, to a Parquet file."""
    from ragmesh.cli.progress import ExportDisplay
    from ragmesh.client import Client
    from ragmesh.collection import Collection

    parquet = _parquet()
    screen = Screen()
    if file.exists():
        raise CommandError(f"{file} is there already")
    of: list[Collection] = []
    writer = parquet.Writer(file)
    try:
        with Client() as mesh, ExportDisplay(screen, name) as display:
            for count, passage in enumerate(mesh.passages(name, on_collection=of.append), start=1):
                writer.add(passage)
                if count % _SHOWN_EVERY == 0:
                    display.arrived(count, of[0].num_passages)
        if not of:
            raise CommandError("the server said nothing of the collection")
        done = writer.finish(of[0])
    except BaseException:
        writer.abandon()
        raise
    if as_json:
        screen.json(done)
    else:
        screen.line(f"{file}: {done.num_passages:,} passages of {name}, version {done.version}")


def import_(
    file: Annotated[Path, typer.Argument(help="Parquet file that `ragmesh collection export` wrote.")],
    name: Annotated[
        str | None,
        typer.Option("--collection", "-c", help="Collection to make; that of the file without it."),
    ] = None,
    into: Annotated[bool, typer.Option("--into", help="Add to a collection that is there already.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Make a collection from an exported file, indexed as it was.

    The file is checked from end to end first. Large ones are sent in parts: where an import was cut off,
    import again with --into; what is there already stays as it is.
    """
    from ragmesh import readers
    from ragmesh.cli.corpus import told
    from ragmesh.cli.progress import IngestDisplay
    from ragmesh.client import Client
    from ragmesh.collection import Ingested

    parquet = _parquet()
    screen = Screen()
    manifest = parquet.check(file)
    target = name or manifest.collection
    with Client() as mesh:
        there = any(one.name == target for one in mesh.collections())
        if there and not into:
            raise CommandError(f"there is a collection {target!r} already; --into adds to it")
        if not there:
            mesh.create_collection(target, description=manifest.description, lexical=manifest.lexical)
        with IngestDisplay(screen, file.name, total=manifest.num_passages) as display:
            parts = parquet.parts(readers.read(file), _PART_PASSAGES, _PART_BYTES)
            done = list(_sent(mesh, target, parts, display))
        final = mesh.collection(target)
    result = Ingested(
        final,
        sum(one.added for one in done),
        sum(one.replaced for one in done),
        sum(one.unchanged for one in done),
    )
    if as_json:
        screen.json(result)
    else:
        screen.line(told(result))


def _sent(
    mesh: "Client", target: str, parts: "Iterable[list[Passage]]", display: "IngestDisplay"
) -> "Iterator[Ingested]":
    """Sends parts one after the other; what became of each."""
    before = 0

    def further(passages: int) -> None:
        display.sent(before + passages)

    for part in parts:
        yield mesh.ingest(part, target, create=False, on_progress=further)
        before += len(part)


def _parquet() -> ModuleType:
    try:
        from ragmesh import parquet
    except ModuleNotFoundError as exc:
        raise CommandError(
            f"Parquet files need {exc.name}, which is not installed: pip install 'ragmesh[lab]'"
        ) from exc
    return parquet
