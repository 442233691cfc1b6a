"""``evenmesh statement`` and ``evenmesh balance``: what providers deserved, were given and are owed."""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenmesh.commands.failure import USAGE, CommandError
from evenmesh.commands.group import group
from evenmesh.commands.screen import Screen

if TYPE_CHECKING:
    from evenmesh.types.statements import ExposureStatement


def statement() -> typer.Typer:
    """Return the commands of ``evenmesh statement``."""
    return group("statement", "State what a provider got; verify statements.", get, verify, key)


def get(
    provider: Annotated[
        str | None, typer.Argument(help="The provider. Default: that of your credential.")
    ] = None,
    first_day: Annotated[
        str | None, typer.Option(metavar="DAY", help="First day, UTC. Default: 29 days before the last.")
    ] = None,
    last_day: Annotated[
        str | None, typer.Option(metavar="DAY", help="Last day, UTC. Default: the newest there is.")
    ] = None,
    nonce: Annotated[
        str | None, typer.Option(help="Repeated in the statement. Default: a random one.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the signed statement.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one page to read and to print.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the signed statement as JSON.")] = False,
) -> None:
    """Get the signed statement about a provider: found, shown, cited, beside its target.

    What is shown here is not verified: give the file to `evenmesh statement verify`.
    """
    import secrets

    from evenmesh import Client
    from evenmesh.commands.statement_view import page
    from evenmesh.statements import read

    screen = Screen()
    with Client() as mesh:
        signed = mesh.exposure_statement(
            provider,
            first_day=first_day,
            last_day=last_day,
            nonce=secrets.token_urlsafe(16) if nonce is None else nonce,
        )
    stated = read(signed)
    if output is not None:
        output.write_text(signed.to_json() + "\n", encoding="utf-8")
        screen.note(f"wrote {output}")
    if html is not None:
        html.write_text(page(stated, signed), encoding="utf-8")
        screen.note(f"wrote {html}")
    if as_json:
        screen.out.print(signed.to_json(), markup=False, highlight=False, soft_wrap=True)
    else:
        _show(screen, stated)


def verify(
    file: Annotated[Path, typer.Argument(help="The signed statement.")],
    keys: Annotated[
        list[Path],
        typer.Option("--keys", metavar="FILE", help="PEM file of public keys; repeat for several."),
    ],
    provider: Annotated[str | None, typer.Option(help="The provider that it must be about.")] = None,
    tenant: Annotated[str | None, typer.Option(help="The tenant that it must be of.")] = None,
    first_day: Annotated[str | None, typer.Option(metavar="DAY", help="First day that it must have.")] = None,
    last_day: Annotated[str | None, typer.Option(metavar="DAY", help="Last day that it must have.")] = None,
    nonce: Annotated[
        str | None, typer.Option(help="Nonce of your request; refuses any other statement.")
    ] = None,
    max_age_h: Annotated[
        float | None, typer.Option("--max-age", metavar="HOURS", min=0, max=1e6, help="Oldest to accept.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verified statement as JSON.")] = False,
) -> None:
    """Verify a statement: whose signature it has, and that it is the one expected.

    Needs no mesh. Exit status 1 for a statement that was forged, changed, cut or replayed.
    """
    from evenmesh.statements import MAX_BYTES, Expected, StatementError, parse, public_keys
    from evenmesh.statements import verify as verified

    if file.stat().st_size > MAX_BYTES:
        raise CommandError(f"{file}: is larger than any statement")
    expected = Expected(
        provider,
        tenant,
        first_day,
        last_day,
        nonce,
        None if max_age_h is None else timedelta(hours=max_age_h),
    )
    screen = Screen()
    try:
        signed = parse(file.read_bytes())
        stated = verified(signed, public_keys(keys), expected)
    except StatementError as error:
        raise CommandError(f"{file}: {error}") from None
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    if as_json:
        screen.json(stated)
        return
    screen.line(f"The signature is valid (key {signed.signatures[0].keyid}).", "bold")
    _show(screen, stated)


def key(
    file: Annotated[Path, typer.Argument(help="File to make, for EVENMESH_EVALUATOR_STATEMENT_KEY.")],
) -> None:
    """Make a key that signs statements, and print its public key, which verifies them.

    Give the public key to those who verify. To change keys, add the new public key to their files first.
    """
    from evenmesh.statements import new_key

    try:
        name, public = new_key(file)
    except FileExistsError:
        raise CommandError(f"{file} exists: a key is never written over", USAGE) from None
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    screen = Screen()
    screen.note(f"wrote {file}, key {name}; its public key:")
    screen.line(public.strip())


def balance(
    collection: Annotated[str, typer.Argument(help="The collection.")],
    half_life: Annotated[
        float | None, typer.Option(metavar="DAYS", help="Days after which an ask counts half. Default: 30.")
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Forget what its providers are owed.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Number of providers.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show what providers are owed, or forget it."""
    from evenmesh import Client

    screen = Screen()
    with Client() as mesh:
        if reset:
            count = mesh.reset_exposure_balance(collection)
            screen.answer(
                {"num_providers": count}, f"forgot what {count} providers are owed", as_json=as_json
            )
            return
        found = mesh.exposure_balance(collection, half_life_days=half_life)[:limit]
    if as_json:
        screen.json(
            [{"provider": one.provider, "target": one.target, "exposure": one.exposure} for one in found]
        )
        return
    table = screen.table("provider", "deserved", "given", "owed", right=("deserved", "given", "owed"))
    for one in found:
        table.add_row(one.provider, f"{one.target:.2f}", f"{one.exposure:.2f}", f"{one.owed:+.2f}")
    screen.out.print(table)


def _show(screen: Screen, stated: "ExposureStatement") -> None:
    from evenmesh.commands.statement_view import COLUMNS, caveats, rows

    screen.line(
        f"{stated.provider}, {stated.first_day} to {stated.last_day} (UTC), tenant {stated.tenant}", "bold"
    )
    table = screen.table(*COLUMNS, right=COLUMNS[1:])
    for row in rows(stated):
        table.add_row(*row)
    screen.out.print(table)
    screen.note(caveats(stated))


def _missing(error: ModuleNotFoundError) -> CommandError:
    if error.name is not None and error.name.startswith("cryptography"):
        return CommandError("statements need cryptography, which is not installed: pip install cryptography")
    raise error
