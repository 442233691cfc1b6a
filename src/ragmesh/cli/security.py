"""``ragmesh certs`` and ``ragmesh keys``: what a mesh needs before others may reach it."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ragmesh.cli.failure import USAGE, CommandError
from ragmesh.cli.screen import Screen

_SERVICES = ("orchestrator", "retriever", "reranker", "generator", "evaluator")


def certs() -> typer.Typer:
    """The commands of ``ragmesh certs``."""
    app = typer.Typer(
        name="certs",
        help="Certificates for TLS between services and clients.",
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_start)
    app.command()(dev)
    return app


def keys() -> typer.Typer:
    """The commands of ``ragmesh keys``."""
    app = typer.Typer(
        name="keys",
        help="API keys: who may call, for which tenant, to do what.",
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_start)
    app.command()(new)
    app.command()(check)
    return app


def dev(
    output: Annotated[Path, typer.Option(help="Folder for the files; new or empty.")],
    name: Annotated[
        list[str] | None,
        typer.Option(help="DNS name or address the services are reached by, besides this machine's; repeat."),
    ] = None,
) -> None:
    """Make an authority of your own and certificates by it: for trying out, not for production."""
    try:
        import trustme
    except ModuleNotFoundError:
        raise CommandError("this needs trustme: pip install 'ragmesh[certs]'") from None
    if output.exists() and any(output.iterdir()):
        raise CommandError(f"{output} is not empty: name another folder, or remove it", USAGE)
    authority = trustme.CA(organization_name="ragmesh, development only")
    here = ("127.0.0.1", "::1", "localhost")
    try:
        issued = {
            service: authority.issue_cert(f"{service}.mesh", service, *here, *(name or ()))
            for service in _SERVICES
        } | {"client": authority.issue_cert("client.mesh")}
    except ValueError as error:
        raise CommandError(f"--name: {error}", USAGE) from None
    output.mkdir(parents=True, exist_ok=True)
    _write(output / "ca.pem", authority.cert_pem.bytes())
    for owner, certificate in issued.items():
        chain = b"".join(part.bytes() for part in certificate.cert_chain_pems)
        _write(output / f"{owner}.pem", chain)
        _write(output / f"{owner}-key.pem", certificate.private_key_pem.bytes(), secret=True)
    screen = Screen()
    screen.line(f"wrote {output / 'ca.pem'} and a certificate with its key for {', '.join(issued)}")
    screen.note("The authority's own key was not kept: run this again for other names, into a new folder.")


def new(
    name: Annotated[str, typer.Argument(help="Whom the key is for; appears in logs.")],
    role: Annotated[
        list[str], typer.Option(help="ask, ingest, feedback, train, admin or service; repeat for several.")
    ],
    tenant: Annotated[str, typer.Option(help="Whose collections, feedback and models it opens.")] = "default",
    file: Annotated[
        Path | None, typer.Option(help="File of keys to add the entry to; otherwise it is printed.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="When it ends, as 2027-01-31T00:00:00Z; never by default.")
    ] = None,
) -> None:
    """Make an API key. It is shown once: services keep only its hash.

    The key goes to standard output and everything else to standard error: pipe it where it is kept.
    """
    from meshkit.security.keys import KeyEntry, KeysError, added, new_key, text_of

    key, digest = new_key()
    content = {"name": name, "sha256": digest, "tenant": tenant, "roles": role, "expires": expires}
    try:
        entry = KeyEntry.read({field: value for field, value in content.items() if value is not None})
        if file is not None:
            added(file, entry)
    except KeysError as error:
        raise CommandError(str(error), USAGE) from None
    screen = Screen()
    screen.note(f"added to {file}:" if file is not None else "for the file that RAGMESH_API_KEYS names:")
    screen.note(text_of(entry).strip())
    screen.line(key)


def check(file: Annotated[Path, typer.Argument(help="File of keys.")]) -> None:
    """Read a file of keys as a service does, and list what it allows."""
    from meshkit.security.keys import KeysError, entries

    try:
        found = entries(file)
    except KeysError as error:
        raise CommandError(str(error)) from None
    screen = Screen()
    table = screen.table("name", "tenant", "roles", "expires")
    for entry in found:
        expires = "never" if entry.expires is None else entry.expires.isoformat()
        table.add_row(entry.name, entry.tenant, ", ".join(sorted(entry.roles)), expires)
    screen.out.print(table)


def _write(path: Path, content: bytes, *, secret: bool = False) -> None:
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644), "wb"
    ) as file:
        file.write(content)


def _start(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")
