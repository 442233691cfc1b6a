"""Commands ``evenmesh certs`` and ``evenmesh keys``: make certificates and API keys."""

import os
from pathlib import Path
from typing import Annotated

import typer

from evenmesh.commands.failure import USAGE, CommandError
from evenmesh.commands.group import group
from evenmesh.commands.screen import Screen

_SERVICES = ("orchestrator", "retriever", "reranker", "generator", "evaluator")


def certs() -> typer.Typer:
    """Return the commands of ``evenmesh certs``."""
    return group("certs", "Make certificates for TLS between services and clients.", dev)


def keys() -> typer.Typer:
    """Return the commands of ``evenmesh keys``."""
    return group("keys", "Make and check API keys.", new, check)


def dev(
    output: Annotated[Path, typer.Option(help="Folder for the files; new or empty.")],
    name: Annotated[
        list[str] | None,
        typer.Option(help="DNS name or address the services are reached by, besides this machine's; repeat."),
    ] = None,
) -> None:
    """Make a certificate authority and certificates signed by it: for development, not for production."""
    import trustme

    if output.exists() and any(output.iterdir()):
        raise CommandError(f"{output} is not empty: name another folder, or remove it", USAGE)
    authority = trustme.CA(organization_name="evenmesh, development only")
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
    name: Annotated[str, typer.Argument(help="Name of the key's user; appears in logs.")],
    role: Annotated[
        list[str],
        typer.Option(help="ask, ingest, feedback, train, provider, admin or service; repeat for several."),
    ],
    tenant: Annotated[
        str | None,
        typer.Option(help="Whose collections, feedback and models it opens; none for a service."),
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(help="With the role provider: whose exposure statements it may read."),
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(
            help="The only agents it may ask and give feedback as, each as TASK/MODEL; repeat. Default: all."
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="File of keys to add the entry to. Default: print the entry.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="Time at which it expires, as 2027-01-31T00:00:00Z. Default: never.")
    ] = None,
) -> None:
    """Make an API key and show it once: services keep only its hash.

    The key goes to standard output, everything else to standard error, so that you can redirect the key.
    """
    from evenmesh_kit.security.keys import KeyEntry, KeysError, add_entry, new_key, to_toml

    services = set(role) == {"service"}
    if services and tenant is not None:
        raise CommandError("--tenant: give none: a service names the tenant of each of its calls", USAGE)
    if not services and tenant is None:
        raise CommandError("--tenant: give the tenant whose data the key opens, such as default", USAGE)
    key, digest = new_key()
    content = {
        "name": name,
        "sha256": digest,
        "tenant": tenant,
        "roles": role,
        "provider": provider,
        "agents": agent or None,
        "expires": expires,
    }
    try:
        entry = KeyEntry.read({field: value for field, value in content.items() if value is not None})
        if file is not None:
            add_entry(file, entry)
    except KeysError as error:
        raise CommandError(str(error), USAGE) from None
    screen = Screen()
    screen.note(f"added to {file}:" if file is not None else "for the file that EVENMESH_API_KEYS names:")
    screen.note(to_toml(entry).strip())
    screen.line(key)


def check(file: Annotated[Path, typer.Argument(help="File of keys.")]) -> None:
    """Read a file of keys as a service does, and list what it allows."""
    from evenmesh_kit.security.keys import KeysError, entries

    try:
        found = entries(file, os.environ.get("EVENMESH_API_KEYS_DEFAULT_TENANT", ""))
    except KeysError as error:
        raise CommandError(str(error)) from None
    screen = Screen()
    table = screen.table("name", "tenant", "roles", "agents", "expires")
    for entry in found:
        expires = "never" if entry.expires is None else entry.expires.isoformat()
        tenant = "any" if entry.for_services else entry.tenant
        agents = "any" if entry.agents is None else ", ".join(entry.agents)
        table.add_row(entry.name, tenant, ", ".join(sorted(entry.roles)), agents, expires)
    screen.out.print(table)


def _write(path: Path, content: bytes, *, secret: bool = False) -> None:
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644), "wb"
    ) as file:
        file.write(content)
