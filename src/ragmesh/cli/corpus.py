"""``ragmesh ingest`` and ``ragmesh collections``: what can be asked about."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ragmesh.cli.screen import Screen

if TYPE_CHECKING:
    from ragmesh.collection import Ingested


def ingest(
    file: Annotated[
        Path,
        typer.Argument(
            help="JSON lines {id, title, text, attributes}, or corpus.jsonl of BEIR, .gz too; or Parquet."
        ),
    ],
    collection: Annotated[str, typer.Option("--collection", "-c", help="Collection to fill.")],
    analyzer: Annotated[
        str | None, typer.Option(help="Of a new collection: english (default), unicode or whitespace.")
    ] = None,
    k1: Annotated[float | None, typer.Option("--k1", help="Of a new collection: BM25's k1, 0 to 10.")] = None,
    b: Annotated[float | None, typer.Option("--b", help="Of a new collection: BM25's b, 0 to 1.")] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until all passages have vectors. Default: wait.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Add a file of passages to a collection.

    Passages of equal id are replaced. All of the file is taken, or none of it. Vectors of a large file are
    made after it is taken; meanwhile its passages are found by their words.
    """
    from dataclasses import replace

    from ragmesh import readers
    from ragmesh.cli.progress import EmbeddingDisplay, IngestDisplay
    from ragmesh.client import Client, lacks_vectors
    from ragmesh.collection import Lexical

    screen = Screen()
    told_how = analyzer is not None or k1 is not None or b is not None
    lexical = Lexical(analyzer or "", k1, b) if told_how else None
    with Client() as mesh:
        with IngestDisplay(screen, file.name, total=readers.check(file)) as display:
            done = mesh.ingest(file, collection, lexical=lexical, on_progress=display.sent)
        if wait and lacks_vectors(done.collection):
            with EmbeddingDisplay(screen, collection) as embedding:
                done = replace(
                    done, collection=mesh.until_embedded(collection, on_progress=embedding.embedded)
                )
    if as_json:
        screen.json(done)
    else:
        screen.line(told(done))


def collections(
    delete: Annotated[str | None, typer.Option(metavar="NAME", help="Remove this collection.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """List the collections."""
    from ragmesh.cli.views import moment
    from ragmesh.client import Client, lacks_vectors

    screen = Screen()
    with Client() as mesh:
        if delete is not None:
            mesh.delete_collection(delete)
            screen.note(f"{delete} is removed")
        found = mesh.collections()
    if as_json:
        screen.json(found)
        return
    if not found:
        screen.line("No collections yet; make one with: ragmesh ingest FILE --collection NAME")
        return
    table = screen.table(
        *("collection", "passages", "on disk", "encoder", "version", "updated", "embedded"),
        right=("passages", "on disk", "embedded"),
    )
    for one in found:
        table.add_row(
            one.name,
            f"{one.num_passages:,}",
            size(one.size_bytes),
            one.encoder or "–",
            one.version,
            moment(one.updated_at),
            f"{one.embedded:.1%}" if lacks_vectors(one) else "all" if one.encoder else "–",
        )
    screen.out.print(table)


def told(done: "Ingested") -> str:
    """What an ingest did, in a line."""
    parts = [
        f"{count:,} {what}"
        for count, what in (
            (done.added, "added"),
            (done.replaced, "replaced"),
            (done.unchanged, "unchanged"),
        )
        if count
    ]
    name, total = done.collection.name, done.collection.num_passages
    lacking = ""
    if done.collection.encoder and done.collection.embedded < 1:
        lacking = f", {done.collection.embedded:.0%} of them with vectors, the rest follows"
    return f"{name}: {', '.join(parts) or 'nothing to add'}; {total:,} passages now{lacking}"


def size(num_bytes: int) -> str:
    """Bytes as a person reads them."""
    value = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
