"""``ragmesh backup`` and ``ragmesh restore``: everything a mesh must not lose."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ragmesh.cli.failure import CommandError
from ragmesh.cli.screen import Screen

if TYPE_CHECKING:
    from ragmesh.backup import Part, Stores

_Home = Annotated[Path | None, typer.Option(help="Folder everything lives under; RAGMESH_HOME by default.")]


def backup(
    target: Annotated[Path, typer.Argument(help="Folder to make.")],
    home: _Home = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Copy everything a mesh must not lose.

    Observations, feedback, the outbox, models and collections, while the mesh runs.

    Databases in PostgreSQL are read with pg_dump, by the services' own RAGMESH_…_DATABASE_URL.
    """
    from ragmesh.backup import BackupError, take

    screen = Screen()
    try:
        manifest = take(_stores(home), target, told=lambda part: _note(screen, part))
    except BackupError as error:
        raise CommandError(str(error)) from None
    if as_json:
        screen.json(manifest)
    else:
        screen.line(f"{target}: {manifest.size:,} bytes; `ragmesh restore {target}` brings it back")


def restore(
    source: Annotated[Path, typer.Argument(help="Folder that `ragmesh backup` made.")],
    home: _Home = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what is there; it is moved aside, not removed.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Only read the backup and compare it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Bring back what `backup` copied.

    The mesh must be stopped.

    Every file is compared with its SHA-256 before anything is touched.
    """
    from ragmesh.backup import BackupError, verified
    from ragmesh.backup import restore as bring

    screen = Screen()
    try:
        if check:
            manifest, aside = verified(source), None
        else:
            manifest, aside = bring(
                source, _stores(home), overwrite=overwrite, told=lambda part: _note(screen, part)
            )
    except BackupError as error:
        raise CommandError(str(error).replace("\n", "; ")) from None
    if aside is not None:
        screen.note(f"what was there before is in {aside}")
    if as_json:
        screen.json(manifest)
    elif check:
        screen.line(f"{source} is whole: {manifest.size:,} bytes of {manifest.created_at}")
    else:
        screen.line(
            f"restored {manifest.size:,} bytes of {manifest.created_at}; start the mesh with: ragmesh up"
        )


def _stores(home: Path | None) -> "Stores":
    from ragmesh.backup import Stores
    from ragmesh.home import home as default_home

    return Stores.find((home or default_home()).expanduser().absolute(), os.environ)


def _note(screen: Screen, part: "Part") -> None:
    screen.note(f"{part.name}: {part.size:,} bytes in {len(part.files):,} files")
