"""``evenmesh ingest`` for documents: takes the place of the client's own, which reads files of passages."""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from evenmesh.commands.failure import FAILED, USAGE, CommandError
from evenmesh.commands.ingest import LexicalOptions, ingest_file, ingest_summary
from evenmesh.commands.option_groups import with_groups
from evenmesh.commands.screen import Screen
from evenmesh_documents.options import PassageOptions, ReadingOptions
from evenmesh_documents.showing import reading_display, show_gathered

if TYPE_CHECKING:
    from evenmesh import Client
    from evenmesh.types.collection import Ingested, Lexical
    from evenmesh_documents.gathering import Spool

_PART: Final = 2_000
"""Passages of one ingest: each is durable on its own."""


def commands() -> list[Callable[..., None] | typer.Typer]:
    """Return the commands of this distribution."""
    from evenmesh_documents.model_commands import fetch_models
    from evenmesh_documents.question_commands import fetch_questions
    from evenmesh_documents.source_commands import sources

    return [ingest, sources(), fetch_models, fetch_questions]


@with_groups
def ingest(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="Folders, files, patterns, zip and tar archives, and addresses (https://, s3://): Markdown, "
            "text, HTML, PDF, Word, PowerPoint, Excel, CSV, EPUB, mail; or passages: JSON lines {id, title, "
            "text, attributes}, corpus.jsonl of BEIR, .gz too; Parquet; or data sets, as ir_datasets:NAME or "
            "hf:NAME.",
        ),
    ],
    reading: ReadingOptions,
    passages: PassageOptions,
    lexical: LexicalOptions,
    collection: Annotated[
        str | None, typer.Option("--collection", "-c", help="Collection to fill; required without --dry-run.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and show what would be added; add nothing.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until all passages have vectors. Default: wait.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Add documents, or files of passages, to a collection.

    Split documents into passages along their headings. Name what cannot be read, and continue with the rest.
    Replace passages with the same id. A single file of passages is added whole or not at all. Documents are
    added in parts; each part is durable once it is added.
    """
    from evenmesh import Client
    from evenmesh_documents.gathering import Spool, gather
    from evenmesh_documents.origins.finding import find_all
    from evenmesh_documents.origins.found import PathError
    from evenmesh_documents.parsing.parsers import ParserError, Parsers

    screen = Screen()
    if collection is None and not dry_run:
        raise CommandError("--collection names the collection to fill; --dry-run fills none", USAGE)
    of_passages = _one_of_passages(paths)
    if of_passages and (given := passages.given()):
        raise CommandError(
            f"{' and '.join(given)}: for documents and data sets, and {paths[0]} holds passages, which are "
            "taken as they are: put attributes, and the provider among them, into the 'attributes' of each "
            "line",
            USAGE,
        )
    if collection is not None and not dry_run and of_passages:
        with Client() as mesh:
            done = ingest_file(screen, mesh, Path(paths[0]), collection, lexical=lexical.given(), wait=wait)
        screen.answer(done, ingest_summary(done), as_json=as_json)
        return
    attribution = passages.attribution()
    splitting = passages.splitting(attribution.column)
    limits = reading.limits()
    jobs = reading.jobs or min(4, os.cpu_count() or 1)
    try:
        files = list(find_all(paths, reading.root, reading.sites()))
    except PathError as exc:
        raise CommandError(str(exc)) from exc
    with Spool() as spool:
        try:
            with (
                Parsers(jobs, limits, ocr=reading.ocr) as parsers,
                reading_display(screen, files) as display,
            ):
                gathered = gather(
                    files,
                    parsers,
                    spool,
                    splitting=splitting,
                    attribution=attribution,
                    on_file=display.update,
                )
        except ParserError as exc:
            raise CommandError(str(exc)) from exc
        except KeyboardInterrupt:
            screen.note("stopped while reading: nothing was added")
            raise
        if not as_json:
            show_gathered(screen, gathered, splitting)
        if dry_run or collection is None:
            if as_json:
                screen.json(asdict(gathered))
            return
        if not gathered.passages:
            if as_json:
                screen.json(asdict(gathered))
            raise CommandError("there is nothing to add: no passage was read", FAILED)
        with Client() as mesh:
            added = _send(screen, mesh, spool, collection, lexical.given(), wait=wait)
    if as_json:
        screen.json({**asdict(gathered), **asdict(added)})
    else:
        screen.line(ingest_summary(added))


def _one_of_passages(paths: Sequence[str]) -> bool:
    """Return whether one file is given whose name says that it holds passages, or says nothing."""
    from evenmesh_documents.gathering import PASSAGE_FILES

    (path,) = paths if len(paths) == 1 else ("",)
    name = Path(path).name.lower()
    unnamed = Path(name.removesuffix(".gz")).suffix in ("", ".json")
    return Path(path).is_file() and (unnamed or name.endswith(PASSAGE_FILES))


def _send(
    screen: Screen,
    mesh: "Client",
    spool: "Spool",
    collection: str,
    lexical: "Lexical | None",
    *,
    wait: bool,
) -> "Ingested":
    """Add the passages in parts; what was added before an interruption stays, and is said."""
    from dataclasses import replace

    from evenmesh.commands.progress import ProgressDisplay, embedding_display
    from evenmesh.types.collection import Ingested
    from evenmesh_documents.gathering import parts

    total = len(spool)
    durable = 0
    done: list[Ingested] = []
    try:
        with ProgressDisplay(
            screen, "durable passages", note=f"adding {total:,} passages", total=total
        ) as display:
            for part in parts(spool, _PART):
                done.append(mesh.ingest(part, collection, lexical=lexical))
                durable += len(part)
                display.update(durable, total)
    except BaseException:
        if durable:
            screen.note(
                f"{durable:,} of {total:,} passages are in {collection}; the same command adds the others"
            )
        raise
    final = done[-1].collection
    if wait and final.lacks_vectors:
        with embedding_display(screen, collection) as display:
            final = mesh.until_embedded(collection, on_progress=display.update)
    return replace(
        done[-1],
        collection=final,
        added=sum(one.added for one in done),
        replaced=sum(one.replaced for one in done),
        unchanged=sum(one.unchanged for one in done),
    )
