"""The command line: ``evenmesh``.

This distribution brings the commands that a client needs. Others add theirs by an entry point of the group
``evenmesh.commands``: a function without arguments that returns commands (functions, or Typer applications
for groups of them). One of the same name takes the place of the client's own. A command of a distribution
that is not installed is not in ``--help``; naming it says which distribution brings it.
"""

import io
import os
import sys
from collections.abc import Callable, Container, Sequence
from importlib.metadata import entry_points
from typing import Annotated, Final

import typer

from evenmesh.commands.ask import ask
from evenmesh.commands.chat import chat
from evenmesh.commands.collection_files import collection
from evenmesh.commands.failure import FAILED, INSTALL, USAGE, CommandError
from evenmesh.commands.feedback import agents, feedback
from evenmesh.commands.group import start
from evenmesh.commands.ingest import collections, ingest
from evenmesh.commands.models import models
from evenmesh.commands.retrieve import retrieve, retrievers, sources
from evenmesh.commands.runs import report, runs
from evenmesh.commands.screen import Screen
from evenmesh.commands.statement import balance, statement

# Modules of commands import what is heavy (gRPC, the mesh) inside the command, so that --help comes at once.

TRACEBACK_VARIABLE: Final = "EVENMESH_TRACEBACK"
"""Environment variable that shows where an unexpected error comes from."""

INTERRUPTED: Final = 130

# Typer's own classes or Click's, depending on Typer's version; usage errors are a subclass with exit code 2.
_CommandError: type[Exception] = typer.BadParameter.__mro__[2]


Command = Callable[..., object] | typer.Typer
"""A command, or a group of them."""

GROUP: Final = "evenmesh.commands"
"""Group of the entry points that add commands."""

_ORDER: Final = {
    # Each command, in the order a new user meets them, and the distribution evenmesh-... that it is in.
    "demo": "mesh",
    "up": "mesh",
    "down": "mesh",
    "status": "mesh",
    "doctor": "mesh",
    "ask": "",
    "chat": "",
    "audit": "studies",
    "eor": "studies",
    "label": "studies",
    "harvest": "studies",
    "retrieve": "",
    "retrievers": "",
    "ingest": "",
    "collections": "",
    "collection": "",
    "sources": "",
    "runs": "",
    "report": "",
    "statement": "",
    "balance": "",
    "eval": "studies",
    "feedback": "",
    "agents": "",
    "models": "",
    "train": "training",
    "bench": "studies",
    "backup": "mesh",
    "restore": "mesh",
    "certs": "mesh",
    "keys": "mesh",
    "version": "",
}


def application() -> typer.Typer:
    """Return the command line with the commands of all installed distributions."""
    app = typer.Typer(
        name="evenmesh",
        help="A gRPC mesh for retrieval-augmented generation that measures who gets shown to the model.",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(start)
    own: list[Command] = [ask, chat, retrieve, retrievers, ingest, collections, sources(), runs, report]
    own += [balance, collection(), feedback(), agents(), models(), statement(), version]
    by_name = {_name(one): one for one in own}
    for point in entry_points(group=GROUP):
        by_name |= {_name(one): one for one in point.load()()}
    order = list(_ORDER)
    for command in sorted(
        by_name.values(), key=lambda one: order.index(_name(one)) if _name(one) in order else len(order)
    ):
        if isinstance(command, typer.Typer):
            app.add_typer(command)
        else:
            app.command()(command)
    return app


def _name(command: Command) -> str:
    return str(command.info.name) if isinstance(command, typer.Typer) else command.__name__


def version(
    as_json: Annotated[bool, typer.Option("--json", help="Print the versions as JSON.")] = False,
) -> None:
    """Show versions."""
    import platform
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    versions = {"python": platform.python_version()}
    for name in (
        "evenmesh",
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
    for name, number in sorted(versions.items(), key=lambda item: item[0] != "evenmesh"):
        table.add_row(name, number)
    screen.out.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0, 1 for a failure, 2 for wrong use, 130 after Ctrl-C.

    Files that it makes are its user's alone: answers, reports and backups hold what people asked.

    Args:
        arguments: what follows the command's name; the arguments of this process by default.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        app = application()
    except KeyboardInterrupt:  # its imports take seconds
        return INTERRUPTED
    command = typer.main.get_command(app)
    if missing := _missing(given, getattr(command, "commands", {})):
        Screen().fail(missing)
        return USAGE
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # its notes on connections mean nothing to a user
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")  # no command fails for a character that a terminal lacks
    before = os.umask(0o077)
    try:
        status = command.main(args=given, prog_name="evenmesh", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Exception as exc:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        message, code = failure_of(exc)
        Screen().fail(message)
        return code
    finally:
        os.umask(before)


def _missing(arguments: Sequence[str], installed: Container[str]) -> str:
    """Return the line that says which distribution brings a command that is not installed; else nothing."""
    name = next((one for one in arguments if not one.startswith("-")), "")
    room = _ORDER.get(name, "")
    if not room or name in installed:
        return ""
    return f"`evenmesh {name}` is in evenmesh-{room}, which is not installed: {INSTALL}"


def failure_of(exc: Exception) -> tuple[str, int]:
    """Return the line and the exit status of an exception."""
    if isinstance(exc, CommandError):
        return str(exc), exc.status
    if isinstance(exc, _CommandError):
        said: str = exc.format_message()  # type: ignore[attr-defined]
        message = said.replace("Value error, ", "").rstrip(".")
        code: int = exc.exit_code  # type: ignore[attr-defined]
        context = getattr(exc, "ctx", None)
        command = "evenmesh" if context is None else context.command_path
        return f"{message} (see `{command} --help`)", code

    from evenmesh.files.read_error import ReadError
    from evenmesh.local_mesh import LocalMeshError
    from evenmesh.wire.errors import InvalidField, MeshError

    if isinstance(exc, InvalidField):
        return str(exc), USAGE
    if isinstance(exc, MeshError):
        advice = _advice_on_unreachable(str(exc)) if exc.reason == "UNREACHABLE" else ""
        if exc.reason == "NO_CREDENTIAL":
            advice = "; EVENMESH_API_KEY or EVENMESH_TOKEN_FILE has what the command line sends"
        stated = exc.retry_after_s is None or "try again in" in str(exc)
        wait = "" if stated else f"; try again in {exc.retry_after_s:.1f} s"
        return f"{exc}{advice}{wait}", FAILED
    if isinstance(exc, ModuleNotFoundError) and exc.name == "pyarrow":
        return "Parquet files need pyarrow, which is not installed: pip install pyarrow", FAILED
    if isinstance(exc, ReadError | LocalMeshError):
        return str(exc), FAILED
    if isinstance(exc, OSError):
        return f"{exc.filename}: {exc.strerror}" if exc.filename else str(exc), FAILED
    return f"{type(exc).__name__}: {exc} (unexpected; {TRACEBACK_VARIABLE}=1 shows where)", FAILED


def _advice_on_unreachable(said: str) -> str:
    """Return what to do about a service that does not answer.

    One of a mesh that runs on this machine is started again by it, where starting the mesh would be refused.
    One that answers in another protocol, or without the right certificate, needs no start.
    """
    from evenmesh.addresses import running_here

    if said.startswith(("no TLS ", "no gRPC ")):
        return ""
    if any(said.endswith(f" at {address}") for address in running_here().values()):
        return "; its mesh runs, and starts it again if it ended: try again, or look at `evenmesh status`"
    return "; start the mesh with: evenmesh up"
