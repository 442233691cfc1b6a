"""The command line: ``ragmesh``."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from ragmesh.cli.ask import ask
from ragmesh.cli.audit import audit
from ragmesh.cli.backup import backup, restore
from ragmesh.cli.bench import bench
from ragmesh.cli.chat import chat
from ragmesh.cli.corpus import collections, ingest
from ragmesh.cli.demo import demo
from ragmesh.cli.doctor import doctor
from ragmesh.cli.eor import eor
from ragmesh.cli.eval import evaluation
from ragmesh.cli.failure import FAILED, USAGE, CommandError
from ragmesh.cli.feedback import agents, feedback
from ragmesh.cli.harvest import harvest
from ragmesh.cli.label import label
from ragmesh.cli.mesh import down, status, up
from ragmesh.cli.models import models
from ragmesh.cli.moving import collection
from ragmesh.cli.retrieval import retrieve, sources
from ragmesh.cli.runs import report, runs
from ragmesh.cli.screen import Screen
from ragmesh.cli.security import certs, keys
from ragmesh.cli.train import train

# Modules of commands import what is heavy (gRPC, the mesh) inside the command, so that --help comes at once.

TRACEBACK_VARIABLE: Final = "RAGMESH_TRACEBACK"
"""Set it to see where an unexpected error comes from."""

INTERRUPTED: Final = 130

# Typer's own classes or Click's, depending on Typer's version; usage errors are a subclass with exit code 2.
_CommandError: type[Exception] = typer.BadParameter.__mro__[2]


def application() -> typer.Typer:
    """The commands, in the order a new user meets them."""
    app = typer.Typer(
        name="ragmesh",
        help="A gRPC mesh for retrieval-augmented generation that measures who gets shown to the model.",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_start)
    for command in (
        demo,
        up,
        down,
        status,
        doctor,
        ask,
        chat,
        audit,
        eor,
        label,
        harvest,
        retrieve,
        ingest,
        collections,
        sources,
        runs,
        report,
        backup,
        restore,
        version,
    ):
        app.command()(command)
    app.add_typer(collection())
    app.add_typer(evaluation())
    for group in (feedback, agents, models, certs, keys):
        app.add_typer(group())
    app.add_typer(train())
    app.add_typer(bench())
    return app


def version(
    as_json: Annotated[bool, typer.Option("--json", help="Print the versions as JSON.")] = False,
) -> None:
    """Show versions."""
    import platform
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    versions = {"python": platform.python_version()}
    for name in (
        "ragmesh",
        "grpcio",
        "protobuf",
        "torch",
        "transformers",
        "sentence-transformers",
        "faiss-cpu",
    ):
        try:
            versions[name] = installed(name)
        except PackageNotFoundError:
            continue
    screen = Screen()
    if as_json:
        screen.json(versions)
        return
    table = screen.table("package", "version")
    for name, number in sorted(versions.items(), key=lambda item: item[0] != "ragmesh"):
        table.add_row(name, number)
    screen.out.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the exit status: 0, 1 for a failure, 2 for wrong use, 130 after Ctrl-C.

    Args:
        arguments: of the command line; those of this process by default.
    """
    command = typer.main.get_command(application())
    try:
        status = command.main(args=arguments, prog_name="ragmesh", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Exception as exc:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        message, code = _told(exc)
        Screen().fail(message)
        return code


def _start(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")


def _told(exc: Exception) -> tuple[str, int]:
    """The line and the exit status for an exception."""
    if isinstance(exc, CommandError):
        return str(exc), exc.status
    if isinstance(exc, _CommandError):
        message: str = exc.format_message()  # type: ignore[attr-defined]
        code: int = exc.exit_code  # type: ignore[attr-defined]
        return f"{message} (see `ragmesh --help`)", code

    from meshkit.errors import InvalidField, MeshError
    from ragmesh.mesh import MeshStartError, MeshStopError
    from ragmesh.readers import ReadError

    if isinstance(exc, InvalidField):
        return str(exc), USAGE
    if isinstance(exc, MeshError):
        advice = "; start the mesh with: ragmesh up" if exc.reason == "UNREACHABLE" else ""
        wait = "" if exc.retry_after_s is None else f"; try again in {exc.retry_after_s:.1f} s"
        return f"{exc}{advice}{wait}", FAILED
    if isinstance(exc, ReadError | MeshStartError | MeshStopError):
        return str(exc), FAILED
    if isinstance(exc, OSError):
        return f"{exc.filename}: {exc.strerror}" if exc.filename else str(exc), FAILED
    return f"{type(exc).__name__}: {exc} (unexpected; {TRACEBACK_VARIABLE}=1 shows where)", FAILED
