"""``evenmesh collection``: write a collection to a file, read it back, remove passages."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from evenmesh.commands.failure import CommandError
from evenmesh.commands.group import group
from evenmesh.commands.screen import Screen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from evenmesh import Client
    from evenmesh.commands.progress import ProgressDisplay
    from evenmesh.types.collection import Ingested
    from evenmesh.types.passage import Passage

# A part of an import; the server holds one in memory.
_PART_PASSAGES: Final = 20_000
_PART_BYTES: Final = 128 << 20
_SHOWN_EVERY: Final = 1_000


def collection() -> typer.Typer:
    """Return the commands of ``evenmesh collection``."""
    return group("collection", "Export or import a collection; delete passages.", export, import_, delete)


def check_parquet(file: Path) -> None:
    """Check that a Parquet file can be written there, under a name that says nothing else.

    Raises:
        CommandError: the file exists, its folder does not, or its name is that of another format.
    """
    if file.exists():
        raise CommandError(f"{file} exists; name a new file")
    if not file.parent.is_dir():
        raise CommandError(f"there is no folder {file.parent}: make it first")
    if file.suffix not in ("", ".parquet"):
        raise CommandError(f"{file}: the command writes Parquet; name the file {file.stem}.parquet")


def export(
    name: Annotated[str, typer.Argument(help="The collection.")],
    file: Annotated[Path, typer.Argument(help="Parquet file to write; must not exist.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write all passages of a collection, as of now, to a Parquet file."""
    from evenmesh import Client
    from evenmesh.commands.progress import ProgressDisplay
    from evenmesh.files import parquet
    from evenmesh.types.collection import Collection

    screen = Screen()
    check_parquet(file)
    of: list[Collection] = []
    writer = parquet.Writer(file)
    try:
        what = f"exporting {name}"
        with Client() as mesh, ProgressDisplay(screen, what, note=what) as display:
            for count, passage in enumerate(mesh.passages(name, on_collection=of.append), start=1):
                writer.add(passage)
                if count % _SHOWN_EVERY == 0:
                    display.update(count, of[0].num_passages)
        if not of:
            raise CommandError("the server did not describe the collection")
        done = writer.finish(of[0])
    except BaseException:
        writer.abandon()
        raise
    screen.answer(
        done, f"{file}: {done.num_passages:,} passages of {name}, version {done.version}", as_json=as_json
    )


def import_(
    file: Annotated[Path, typer.Argument(help="Parquet file that `evenmesh collection export` wrote.")],
    name: Annotated[
        str | None,
        typer.Option("--collection", "-c", help="Collection to make. Default: the name in the file."),
    ] = None,
    into: Annotated[bool, typer.Option("--into", help="Add to an existing collection.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Make a collection from an exported file, with the same index settings.

    Check the whole file first. Send a large file in parts: after an interruption, import again with --into;
    passages that are already there stay unchanged.
    """
    from evenmesh import Client
    from evenmesh.commands.ingest import ingest_summary
    from evenmesh.commands.progress import ingest_display
    from evenmesh.files import parquet
    from evenmesh.files import passages as readers
    from evenmesh.types.collection import Ingested

    screen = Screen()
    manifest = parquet.check(file)
    target = name or manifest.collection
    with Client() as mesh:
        there = any(one.name == target for one in mesh.collections())
        if there and not into:
            raise CommandError(f"there is a collection {target!r} already; --into adds to it")
        if not there:
            mesh.create_collection(target, description=manifest.description, lexical=manifest.lexical)
        with ingest_display(screen, file.name, manifest.num_passages) as display:
            parts = parquet.parts(readers.read(file), _PART_PASSAGES, _PART_BYTES)
            done = list(_sent(mesh, target, parts, display))
        final = mesh.collection(target)
    result = Ingested(
        final,
        sum(one.added for one in done),
        sum(one.replaced for one in done),
        sum(one.unchanged for one in done),
    )
    screen.answer(result, ingest_summary(result), as_json=as_json)


def delete(
    name: Annotated[str, typer.Argument(help="The collection.")],
    passages: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of passages.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Remove passages from a collection."""
    from evenmesh import Client

    screen = Screen()
    with Client() as mesh:
        done = mesh.delete_passages(name, passages)
    if as_json:
        screen.json(done)
        return
    missing = f", {done.missing:,} not found" if done.missing else ""
    screen.line(f"{name}: {done.deleted:,} removed{missing}; {done.collection.num_passages:,} passages now")


def _sent(
    mesh: "Client", target: str, parts: "Iterable[list[Passage]]", display: "ProgressDisplay"
) -> "Iterator[Ingested]":
    """Send parts one after the other and yield what each ingest did."""
    before = 0

    def further(passages: int) -> None:
        display.update(before + passages)

    for part in parts:
        yield mesh.ingest(part, target, create=False, on_progress=further)
        before += len(part)
