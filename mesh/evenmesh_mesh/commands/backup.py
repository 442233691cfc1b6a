"""Commands ``evenmesh backup`` and ``evenmesh restore``."""

import os
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from evenmesh.commands.failure import CommandError
from evenmesh.commands.screen import Screen
from evenmesh_mesh.commands.mesh import Home, folder_of

if TYPE_CHECKING:
    from evenmesh_mesh.backup import Part, Stores

_LOG = "EVENMESH_OBSERVATION_LOG"


def backup(
    target: Annotated[Path, typer.Argument(help="Folder to make.")],
    home: Home = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Back up everything a mesh must not lose.

    Copy observations, feedback, the outbox, models and collections, while the mesh runs.

    Databases in PostgreSQL are read with pg_dump; set the services' own EVENMESH_…_DATABASE_URL.
    """
    from evenmesh_mesh.backup import BackupError, take

    screen = Screen()
    try:
        manifest = take(_stores(home), target, on_part=lambda part: _note(screen, part))
    except BackupError as error:
        raise CommandError(str(error)) from None
    if os.environ.get(_LOG):
        screen.note(
            f"observations that wait in the log of {_LOG} are not part of it: back up its file, too",
            style="yellow",
        )
    screen.answer(
        manifest,
        f"{target}: {manifest.size:,} bytes; `evenmesh restore {quote(str(target))}` restores it",
        as_json=as_json,
    )


def restore(
    source: Annotated[Path, typer.Argument(help="Folder that `evenmesh backup` made.")],
    home: Home = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace existing data; it is moved aside, not removed.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Only read the backup and compare it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Restore a backup.

    Stop the mesh first. The command compares every file with its SHA-256 before it changes anything.
    """
    from evenmesh_mesh.backup import BackupError, verified
    from evenmesh_mesh.backup import restore as bring

    screen = Screen()
    try:
        if check:
            manifest, aside = verified(source), None
        else:
            manifest, aside = bring(
                source, _stores(home), overwrite=overwrite, on_part=lambda part: _note(screen, part)
            )
    except BackupError as error:
        raise CommandError(str(error).replace("\n", "; ")) from None
    at = "" if home is None else f" --home {quote(str(home))}"
    if aside is not None:
        screen.note(f"what was there before is in {aside}")
    if as_json:
        screen.json(manifest)
    elif check:
        screen.line(f"{source} is whole: {manifest.size:,} bytes of {manifest.created_at}")
    else:
        screen.line(
            f"restored {manifest.size:,} bytes of {manifest.created_at}; start the mesh with: evenmesh up{at}"
        )


def _stores(home: Path | None) -> "Stores":
    from evenmesh_mesh.backup import Stores

    return Stores.find(folder_of(home), os.environ)


def _note(screen: Screen, part: "Part") -> None:
    number = len(part.files)
    screen.note(f"{part.name}: {part.size:,} bytes in {number:,} {'file' if number == 1 else 'files'}")
