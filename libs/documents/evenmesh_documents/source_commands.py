"""``evenmesh sources``: named sources of collections, and keeping both in step."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from evenmesh.commands.failure import USAGE, CommandError
from evenmesh.commands.group import group
from evenmesh.commands.ingest import LexicalOptions
from evenmesh.commands.option_groups import with_groups
from evenmesh.commands.retrieve import web
from evenmesh.commands.screen import Screen
from evenmesh_documents.options import PassageOptions, ReadingOptions
from evenmesh_documents.showing import reading_display, show_gathered

if TYPE_CHECKING:
    from evenmesh import Client
    from evenmesh_documents.gathering import Gathered, Spool
    from evenmesh_documents.origins.found import Found
    from evenmesh_documents.syncing.planning import Plan, Read
    from evenmesh_documents.syncing.source_file import NamedSource
    from evenmesh_documents.syncing.sync import Comparison
    from evenmesh_documents.syncing.watching import Watched

_FILE: Final = "sources.yaml"
_LEAST_WATCH_S: Final = 1.0
_MOST_WATCH_S: Final = 86_400.0
_SHOWN: Final = 15
"""Most files that are named without --json."""
_wait = time.sleep

FileOption = Annotated[
    Path | None,
    typer.Option("--file", help="File of sources. Default: sources.yaml in EVENMESH_HOME."),
]


def sources() -> typer.Typer:
    """Return ``evenmesh sources``."""
    return group(
        "sources",
        "Keep collections up to date with their sources.",
        add,
        sync,
        list_,
        remove,
        web,
    )


@with_groups
def add(
    name: Annotated[str, typer.Argument(help="Name of the source: 1 to 32 of a-z, 0-9, - and _.")],
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Folders, files, patterns and addresses, as of ingest."),
    ],
    collection: Annotated[str, typer.Option("--collection", "-c", help="Collection that it fills.")],
    reading: ReadingOptions,
    passages: PassageOptions,
    lexical: LexicalOptions,
    grace: Annotated[
        str,
        typer.Option(
            help="How long the passages of a missing file stay, such as 12h; 0 removes them at once."
        ),
    ] = "1d",
    file: FileOption = None,
    change: Annotated[bool, typer.Option("--replace", help="Replace the source of this name.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the source as JSON.")] = False,
) -> None:
    """Define a source of a collection; `evenmesh sources sync` reads it."""
    from evenmesh_documents.syncing import source_file

    screen = Screen()
    path, known = _known(file)
    if name in known and not change:
        raise CommandError(f"there is a source {name!r} in {path} already; --replace replaces it", USAGE)
    passages.attribution()
    reading.limits()
    try:
        made = source_file.made(name, collection, paths, grace, reading, passages, lexical, Path.cwd())
    except ValueError as exc:
        raise CommandError(str(exc), USAGE) from exc
    made.passages.splitting("")
    source_file.save(path, {**known, name: made})
    screen.answer(
        {"name": name, "collection": collection, "file": str(path)},
        f"{name} is a source of {collection}; read it with: evenmesh sources sync {name}",
        as_json=as_json,
    )


def sync(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Default: all.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change; change nothing.")
    ] = False,
    watch: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Time between two looks; sync what may have changed, until Ctrl-C."
        ),
    ] = None,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Treat a source without any file as empty, not as absent.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Files read at a time. Default: one per processor, at most 4."),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until all passages have vectors. Default: wait.")
    ] = True,
    file: FileOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each sync.")] = False,
) -> None:
    """Bring collections up to date with their sources: add, replace and remove passages.

    Passages of a missing file stay for the grace of the source. If a sync is interrupted, the next one does
    the rest.
    """
    from evenmesh_documents.syncing.watching import Watched

    screen = Screen()
    if watch is not None and not _LEAST_WATCH_S <= watch <= _MOST_WATCH_S:
        raise CommandError(
            f"--watch must be {_LEAST_WATCH_S:g} to {_MOST_WATCH_S:,.0f} seconds, is {watch:g}", USAGE
        )
    if watch is not None and dry_run:
        raise CommandError("--watch changes collections, --dry-run changes none: give one of them", USAGE)
    path, known = _known(file)
    for name in names or ():
        if name not in known:
            raise CommandError(_unknown(name, path, known), USAGE)
    chosen = [known[name] for name in names or known]
    if not chosen:
        raise CommandError(f"there is no source in {path}; name one with: evenmesh sources add", USAGE)
    how = _How(screen, jobs or min(4, os.cpu_count() or 1), dry_run, allow_empty, wait, as_json)
    states = {one.name: Watched() for one in chosen}
    while True:
        failed = [one.name for one in chosen if not _round(how, one, states[one.name])]
        if watch is None:
            break
        _wait(watch)
    if failed:
        raise CommandError(f"{len(failed):,} of {len(chosen):,} sources are not in step: {', '.join(failed)}")


def list_(
    count: Annotated[
        bool, typer.Option("--count", help="Count files and passages in the collections; reads all of them.")
    ] = False,
    file: FileOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """List the sources."""
    screen = Screen()
    path, known = _known(file)
    counts = {one.name: _counts(one) for one in known.values()} if count else {}
    if as_json:
        screen.json(
            [
                {
                    "name": one.name,
                    "collection": one.collection,
                    "paths": one.paths,
                    "grace": one.grace,
                    **counts.get(one.name, {}),
                }
                for one in known.values()
            ]
        )
        return
    if not known:
        screen.line(f"No sources in {path}; name one with: evenmesh sources add NAME PATH --collection NAME")
        return
    counted = ("files", "passages", "missing") if count else ()
    table = screen.table("source", "collection", "grace", *counted, "paths", right=counted)
    for one in known.values():
        numbers = [f"{counts[one.name][key]:,}" for key in counted]
        table.add_row(one.name, one.collection, one.grace, *numbers, ", ".join(one.paths))
    screen.out.print(table)


def remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Sources to remove.")],
    collection: Annotated[
        str | None,
        typer.Option("--collection", "-c", help="Their collection, if the file does not have the source."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep-passages", help="Forget the source; leave its passages in the collection.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be removed; remove nothing.")
    ] = False,
    file: FileOption = None,
) -> None:
    """Remove sources and their passages."""
    from evenmesh import Client
    from evenmesh_documents.syncing import source_file
    from evenmesh_documents.syncing.naming import checked_name

    screen = Screen()
    path, known = _known(file)
    for name in names:
        try:
            checked_name(name)
        except ValueError as exc:
            raise CommandError(str(exc), USAGE) from exc
        if name not in known and (collection is None or keep):
            raise CommandError(
                f"{_unknown(name, path, known)}; --collection names where its passages are", USAGE
            )
    for name in names:
        of = collection or known[name].collection
        ids: list[str] = []
        if not keep:
            with Client() as mesh:
                ids = _ids(mesh, name, of)
                if ids and not dry_run:
                    mesh.delete_passages(of, ids)
        if dry_run:
            screen.line(f"{name}: {len(ids):,} passages of {of} would be removed")
            continue
        # The name goes last: until then the same command does the rest.
        if name in known:
            _, known = _known(file)
            source_file.save(path, {key: one for key, one in known.items() if key != name})
        screen.line(
            f"{name} is removed, and {len(ids):,} passages of {of}" if not keep else f"{name} is removed"
        )


@dataclass(frozen=True, slots=True)
class _How:
    screen: Screen
    jobs: int
    dry_run: bool
    allow_empty: bool
    wait: bool
    as_json: bool


def _round(how: _How, source: "NamedSource", state: "Watched") -> bool:
    """Sync a source where it may differ; say why it failed, and return whether it did not."""
    from evenmesh.commands import failure_of

    try:
        files = _files(source)
        if state.may_differ(files, datetime.now(UTC)):
            state.synced(files, _sync(how, source, files))
    except Exception as exc:  # noqa: BLE001 - whatever it was, the other sources are synced
        state.failed()
        how.screen.fail(f"{source.name}: {failure_of(exc)[0]}")
        return False
    return True


def _files(source: "NamedSource") -> "list[Found]":
    """Return the files of a source by address, so that their order never matters."""
    from evenmesh_documents.origins.finding import find_all
    from evenmesh_documents.origins.found import PathError

    try:
        return sorted(
            find_all(source.paths, source.reading.root, source.reading.sites()), key=lambda one: one.address
        )
    except PathError as exc:
        raise CommandError(str(exc)) from exc


def _sync(how: _How, source: "NamedSource", files: "Sequence[Found]") -> "datetime | None":
    """Sync a source; return when a mark is due."""
    from evenmesh import Client
    from evenmesh_documents.gathering import Spool
    from evenmesh_documents.syncing import sync as syncing

    with Spool() as wanted, Spool() as missing:
        read, gathered = _read(how, source, files, wanted)
        with Client() as mesh:
            found = syncing.compare(
                mesh,
                source.name,
                source.collection,
                read,
                missing,
                now=datetime.now(UTC),
                grace=source.grace_time,
            )
            if found.had and not files and not how.allow_empty:
                raise CommandError(
                    f"has no file at all, and {found.had:,} passages in {source.collection}: nothing is "
                    "removed; --allow-empty removes them"
                )
            if not how.dry_run:
                _apply(how, mesh, source, found, wanted, missing)
    _say(how, source, found.plan, gathered)
    return found.plan.due


def _read(
    how: _How, source: "NamedSource", files: "Sequence[Found]", wanted: "Spool"
) -> "tuple[Read, Gathered]":
    from evenmesh_documents.gathering import gather
    from evenmesh_documents.parsing.parsers import ParserError, Parsers
    from evenmesh_documents.syncing import sync as syncing
    from evenmesh_documents.syncing.naming import file_key, named
    from evenmesh_documents.syncing.planning import Read

    attribution = source.passages.attribution()
    splitting = source.passages.splitting(attribution.column)
    keys: set[str] = set()
    try:
        with (
            Parsers(how.jobs, source.reading.limits(), ocr=source.reading.ocr) as parsers,
            reading_display(how.screen, files) as display,
        ):
            gathered = gather(
                files,
                parsers,
                wanted,
                splitting=splitting,
                attribution=attribution,
                named=lambda address, own: named(source.name, address, own),
                on_file=display.update,
                on_read=lambda address: keys.add(file_key(address)),
            )
    except ParserError as exc:
        raise CommandError(str(exc)) from exc
    if how.dry_run and not how.as_json:
        show_gathered(how.screen, gathered, splitting)
    unread = [one.address for one in gathered.skipped if not one.missing]
    return Read(syncing.digests(wanted), keys, unread), gathered


def _apply(
    how: _How,
    mesh: "Client",
    source: "NamedSource",
    found: "Comparison",
    wanted: "Spool",
    missing: "Spool",
) -> None:
    from evenmesh.commands.progress import ProgressDisplay, embedding_display
    from evenmesh_documents.syncing import sync as syncing

    total = found.plan.changes
    if not total:
        return
    with ProgressDisplay(
        how.screen, "durable passages", note=f"{source.name}: changing {total:,} passages", total=total
    ) as display:
        syncing.apply(
            mesh,
            source.collection,
            found,
            wanted,
            missing,
            lexical=source.lexical.given(),
            on_step=lambda count: display.update(count, total),
        )
    if how.wait and mesh.collection(source.collection).lacks_vectors:
        with embedding_display(how.screen, source.collection) as shown:
            mesh.until_embedded(source.collection, on_progress=shown.update)


def _say(how: _How, source: "NamedSource", plan: "Plan", gathered: "Gathered") -> None:
    """Say what a sync did, or would do."""
    counts = {
        "added": len(plan.add),
        "marked": len(plan.mark),
        "removed": len(plan.delete),
        "unchanged": plan.unchanged,
        "waiting": plan.waiting,
        "unread": plan.unread,
    }
    if how.as_json:
        skipped = [{"address": one.address, "reason": one.reason} for one in gathered.skipped]
        how.screen.json(
            {"source": source.name, "collection": source.collection, "dry_run": how.dry_run}
            | counts
            | {"due": plan.due, "files": gathered.files, "skipped": skipped}
        )
        return
    words = {
        "added": "added or replaced",
        "marked": f"of missing files, which go after {source.grace}",
        "waiting": f"of files that were missing before, the first to go at {plan.due:%Y-%m-%d %H:%M} UTC"
        if plan.due
        else "",
        "unread": "kept of files that cannot be read",
    }
    parts = [f"{count:,} {words.get(key, key)}" for key, count in counts.items() if count]
    would = "would have " if how.dry_run and plan.changes else ""
    how.screen.line(f"{source.name}: {would}{', '.join(parts) or 'nothing there'}")
    if not how.dry_run:
        for one in gathered.skipped[:_SHOWN]:
            how.screen.line(f"  not read: {one.address}: {one.reason}")
        if len(gathered.skipped) > _SHOWN:
            how.screen.line(f"  and {len(gathered.skipped) - _SHOWN:,} more (--json lists all)")


def _counts(source: "NamedSource") -> dict[str, int]:
    from evenmesh import Client
    from evenmesh.wire.errors import NotFound
    from evenmesh_documents.syncing.naming import file_of, prefix_of
    from evenmesh_documents.syncing.sync import MISSING_SINCE

    files: set[str] = set()
    passages = missing = 0
    with Client() as mesh:
        try:
            for one in mesh.passages(source.collection, prefix=prefix_of(source.name)):
                files.add(file_of(source.name, one.id))
                passages += 1
                missing += MISSING_SINCE in one.attributes
        except NotFound:
            pass
    return {"files": len(files), "passages": passages, "missing": missing}


def _ids(mesh: "Client", name: str, collection: str) -> list[str]:
    from evenmesh.wire.errors import NotFound
    from evenmesh_documents.syncing.naming import prefix_of

    try:
        return [one.id for one in mesh.passages(collection, prefix=prefix_of(name))]
    except NotFound:
        return []


def _known(file: Path | None) -> "tuple[Path, Mapping[str, NamedSource]]":
    """Return the file of sources and what it states."""
    from evenmesh.home import home
    from evenmesh_documents.syncing.source_file import SourceFileError, load

    path = home() / _FILE if file is None else file
    try:
        return path, load(path)
    except SourceFileError as exc:
        raise CommandError(str(exc), USAGE) from exc


def _unknown(name: str, path: Path, known: Mapping[str, object]) -> str:
    return f"there is no source {name!r} in {path}; there are {', '.join(known) or 'none'}"
