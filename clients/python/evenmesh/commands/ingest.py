"""``evenmesh ingest`` and ``evenmesh collections``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from evenmesh.commands.failure import INSTALL, CommandError
from evenmesh.commands.option_groups import with_groups
from evenmesh.commands.screen import Screen

if TYPE_CHECKING:
    from evenmesh import Client
    from evenmesh.types.collection import Ingested, Lexical

_DOCUMENTS: Final = frozenset(
    {".csv", ".docx", ".eml", ".epub", ".htm", ".html", ".log", ".markdown", ".md", ".pdf", ".pptx"}
) | {".tar", ".text", ".tgz", ".tsv", ".txt", ".xhtml", ".xlsm", ".xlsx", ".zip"}
"""Endings of documents, which evenmesh-documents reads."""


@dataclass(frozen=True)
class LexicalOptions:
    """How the text of a new collection is indexed."""

    analyzer: Annotated[
        str | None,
        typer.Option(help="Analyzer of a new collection: english (default), unicode or whitespace."),
    ] = None
    k1: Annotated[float | None, typer.Option("--k1", help="BM25's k1 of a new collection, 0 to 10.")] = None
    b: Annotated[float | None, typer.Option("--b", help="BM25's b of a new collection, 0 to 1.")] = None

    def given(self) -> "Lexical | None":
        """Return what was given; None where nothing was."""
        from evenmesh.types.collection import Lexical

        if self.analyzer is None and self.k1 is None and self.b is None:
            return None
        return Lexical(self.analyzer or "", self.k1, self.b)


@with_groups
def ingest(
    file: Annotated[
        Path,
        typer.Argument(
            help="JSON lines {id, title, text, attributes}, or corpus.jsonl of BEIR, .gz too; or Parquet."
        ),
    ],
    collection: Annotated[str, typer.Option("--collection", "-c", help="Collection to fill.")],
    lexical: LexicalOptions,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until all passages have vectors. Default: wait.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Add a file of passages to a collection.

    Replace passages with the same id. Add all of the file or nothing. The vectors of a large file follow in
    the background; until then BM25 finds its passages.
    """
    from evenmesh import Client
    from evenmesh.files.read_error import ReadError

    screen = Screen()
    try:
        with Client() as mesh:
            done = ingest_file(screen, mesh, file, collection, lexical=lexical.given(), wait=wait)
    except ReadError as exc:
        if file.is_dir() or file.suffix.lower() in _DOCUMENTS:
            raise CommandError(
                f"{exc}; documents are read by evenmesh-documents, which is not installed: {INSTALL}"
            ) from exc
        raise
    screen.answer(done, ingest_summary(done), as_json=as_json)


def ingest_file(
    screen: Screen,
    mesh: "Client",
    file: Path,
    collection: str,
    *,
    lexical: "Lexical | None" = None,
    wait: bool = True,
) -> "Ingested":
    """Ingest a file and show the progress; with ``wait``, return when all passages have vectors."""
    from dataclasses import replace

    from evenmesh.commands.progress import embedding_display, ingest_display
    from evenmesh.files import passages as readers

    unread: set[str] = set()
    passages = readers.check(file, unread)
    if unread:
        screen.note(f"{file.name}: {readers.unread_shown(unread)}")
    with ingest_display(screen, file.name, passages) as display:
        done = mesh.ingest(file, collection, lexical=lexical, on_progress=display.update)
    if not (wait and done.collection.lacks_vectors):
        return done
    with embedding_display(screen, collection) as display:
        return replace(done, collection=mesh.until_embedded(collection, on_progress=display.update))


def collections(
    delete: Annotated[str | None, typer.Option(metavar="NAME", help="Remove this collection.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """List the collections."""
    from evenmesh import Client
    from evenmesh.commands.views import moment

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
        screen.line("No collections yet; make one with: evenmesh ingest FILE --collection NAME")
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
            f"{one.embedded:.1%}" if one.lacks_vectors else "all" if one.encoder else "–",
        )
    screen.out.print(table)


def ingest_summary(done: "Ingested") -> str:
    """Return what an ingest did, in a line."""
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
    if done.collection.lacks_vectors:
        lacking = f", {done.collection.embedded:.0%} of them with vectors, the rest follows"
    return f"{name}: {', '.join(parts) or 'nothing to add'}; {total:,} passages now{lacking}"


def size(num_bytes: int) -> str:
    """Return a number of bytes for a person to read, such as ``12 kB``."""
    value = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
