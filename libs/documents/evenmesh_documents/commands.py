"""``evenmesh ingest`` for documents: takes the place of the client's own, which reads files of passages."""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from evenmesh.commands.failure import FAILED, INSTALL, USAGE, CommandError
from evenmesh.commands.ingest import LexicalOptions, ingest_file, ingest_summary
from evenmesh.commands.option_groups import with_groups
from evenmesh.commands.screen import Screen

if TYPE_CHECKING:
    from evenmesh import Client
    from evenmesh.types.collection import Ingested, Lexical
    from evenmesh_documents.attribution import Attribution
    from evenmesh_documents.found import Found
    from evenmesh_documents.gathering import Gathered, Spool
    from evenmesh_documents.limits import Limits
    from evenmesh_documents.splitting import Splitting

_PART: Final = 2_000
"""Passages of one ingest: each is durable on its own."""
_WORDS: Final = 110
_TOKENS: Final = 128
"""The bundled cross-encoder reads a question and a passage of 144 tokens together."""
_SHOWN: Final = 15
"""Most lines of a kind that are shown."""


def commands() -> list[Callable[..., None]]:
    """Return the commands of this distribution."""
    return [ingest]


@dataclass(frozen=True)
class ReadingOptions:
    """What is read, and what it may cost."""

    root: Annotated[
        Path | None,
        typer.Option(
            help="Folder that addresses are relative to. Default: a folder given, or the current one."
        ),
    ] = None
    ocr: Annotated[
        str,
        typer.Option(metavar="MODULE:FUNCTION", help="Recognize pages of PDF without text by this function."),
    ] = ""
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Files read at a time. Default: one per processor, at most 4."),
    ] = None
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER", help="A bound of one file, such as pages=20000. May be repeated."
        ),
    ] = None

    def limits(self) -> "Limits":
        """Return the bounds of one file.

        Raises:
            CommandError: one has no such name, or is no positive number.
        """
        from evenmesh_documents.limits import Limits

        names = [one.name for one in fields(Limits)]
        given = {}
        for text in self.limit or []:
            name, _, value = text.partition("=")
            if name not in names or not value.isdecimal():
                raise CommandError(f"--limit must be NAME=NUMBER with {', '.join(names)}, is {text!r}", USAGE)
            given[name] = int(value)
        try:
            return Limits(**given)
        except ValueError as exc:
            raise CommandError(f"--limit: {exc}", USAGE) from exc


@dataclass(frozen=True)
class PassageOptions:
    """How documents become passages."""

    size: Annotated[
        int | None,
        typer.Option(
            help="Most words of a passage with its title, 16 to 2048; or tokens with --tokenizer. "
            "Default: 110 words or 128 tokens."
        ),
    ] = None
    overlap: Annotated[
        int, typer.Option(help="Most of a passage that the next repeats; at most half of it.")
    ] = 0
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|bundled",
            help="Count the tokens of a model: its tokenizer.json, or `bundled` for the models of evenmesh.",
        ),
    ] = None
    provider: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE",
            help="Who provides a passage: folder, domain, field:NAME, column:NAME, pattern:REGEX or "
            "value:TEXT; may be repeated, the first to find one counts. Default: field:provider, domain, "
            "folder.",
        ),
    ] = None
    attribute: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=RULE", help="Another attribute, by such a rule. May be repeated."),
    ] = None
    base_url: Annotated[str, typer.Option(help="What stands before addresses, so that they open.")] = ""

    def attribution(self) -> "Attribution":
        """Return the rules for attributes.

        Raises:
            CommandError: one is no rule.
        """
        from evenmesh_documents.attribution import DEFAULT_PROVIDER, Attribution, Rule

        others = []
        try:
            provider = tuple(map(Rule.parse, self.provider or [])) or DEFAULT_PROVIDER
        except ValueError as exc:
            raise CommandError(f"--provider {exc}", USAGE) from exc
        for text in self.attribute or []:
            name, equals, rule = text.partition("=")
            try:
                if not name or not equals:
                    raise ValueError(f"must be NAME=RULE, is {text!r}")
                others.append((name, Rule.parse(rule)))
            except ValueError as exc:
                raise CommandError(f"--attribute {exc}", USAGE) from exc
        try:
            return Attribution(provider, tuple(others), self.base_url)
        except ValueError as exc:
            raise CommandError(str(exc), USAGE) from exc

    def splitting(self, apart: str) -> "Splitting":
        """Return how documents are split.

        Raises:
            CommandError: a value is outside its range, or the tokenizer cannot be read.
        """
        from evenmesh_documents import counting
        from evenmesh_documents.splitting import Splitting

        try:
            if self.tokenizer is None:
                return Splitting(_WORDS if self.size is None else self.size, self.overlap, apart=apart)
            count = (
                counting.bundled() if self.tokenizer == "bundled" else counting.tokens(Path(self.tokenizer))
            )
            return Splitting(_TOKENS if self.size is None else self.size, self.overlap, count, apart)
        except ModuleNotFoundError as exc:
            raise CommandError(f"--tokenizer needs {exc.name}, which is not installed: {INSTALL}") from exc
        except ValueError as exc:
            raise CommandError(str(exc), USAGE) from exc


@with_groups
def ingest(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="Folders, files and patterns: Markdown, text, HTML, PDF, Word, PowerPoint, Excel, CSV, "
            "EPUB, mail; or passages: JSON lines {id, title, text, attributes}, corpus.jsonl of BEIR, .gz "
            "too; or Parquet.",
        ),
    ],
    reading: ReadingOptions,
    passages: PassageOptions,
    lexical: LexicalOptions,
    collection: Annotated[
        str | None, typer.Option("--collection", "-c", help="Collection to fill; needed but with --dry-run.")
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

    Documents are split into passages along their headings. What cannot be read is named, and the rest goes
    on. Replace passages with the same id. A single file of passages is added whole or not at all; documents
    in parts, of which each is durable once it is added.
    """
    from evenmesh import Client
    from evenmesh_documents.found import PathError, find
    from evenmesh_documents.gathering import Spool, gather
    from evenmesh_documents.parsing.parsers import ParserError, Parsers

    screen = Screen()
    if collection is None and not dry_run:
        raise CommandError("--collection names the collection to fill; --dry-run fills none", USAGE)
    if collection is not None and not dry_run and _one_of_passages(paths):
        with Client() as mesh:
            done = ingest_file(screen, mesh, Path(paths[0]), collection, lexical=lexical.given(), wait=wait)
        screen.answer(done, ingest_summary(done), as_json=as_json)
        return
    attribution = passages.attribution()
    splitting = passages.splitting(attribution.column)
    limits = reading.limits()
    jobs = reading.jobs or min(4, os.cpu_count() or 1)
    try:
        files = list(find(paths, reading.root))
    except PathError as exc:
        raise CommandError(str(exc)) from exc
    with Spool() as spool:
        try:
            with (
                Parsers(jobs, limits, ocr=reading.ocr) as parsers,
                _reading_display(screen, files) as display,
            ):
                gathered = gather(
                    files,
                    parsers,
                    spool,
                    splitting=splitting,
                    attribution=attribution,
                    on_file=lambda count: display.update(count, len(files)),
                )
        except ParserError as exc:
            raise CommandError(str(exc)) from exc
        if not as_json:
            _show(screen, gathered, size=f"{splitting.size:,} {'tokens' if passages.tokenizer else 'words'}")
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
    """Return whether one file is given that no reader reads, and so must hold passages."""
    from evenmesh_documents.readers import reader_of

    return len(paths) == 1 and Path(paths[0]).is_file() and reader_of(paths[0]) is None


def _reading_display(screen: Screen, files: "Sequence[Found]") -> Any:
    from evenmesh.commands.progress import ProgressDisplay

    return ProgressDisplay(screen, "reading files", note=f"reading {len(files):,} files", total=len(files))


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


def _show(screen: Screen, gathered: "Gathered", *, size: str) -> None:
    """Show what was read, who provides it, and what is to be known before it is added."""
    screen.line(f"{gathered.files:,} files, {gathered.passages:,} passages of at most {size}")
    if gathered.providers:
        table = screen.table("provider", "passages", right=("passages",))
        shown = list(gathered.providers.items())
        for provider, count in shown[:_SHOWN]:
            table.add_row(provider, f"{count:,}")
        if len(shown) > _SHOWN:
            table.add_row(
                f"and {len(shown) - _SHOWN:,} more", f"{sum(count for _, count in shown[_SHOWN:]):,}"
            )
        screen.out.print(table)
        by = ", ".join(f"{rule} ({count:,})" for rule, count in gathered.rules.items())
        if by:
            screen.line(f"providers by {by}", style="dim")
    for line in _warnings(gathered):
        screen.line(f"! {line}", style="yellow")
    _list(screen, "not read", [f"{one.address}: {one.reason}" for one in gathered.skipped])
    _list(screen, "read in part", [f"{one.address}: {one.reason}" for one in gathered.notes])
    _list(screen, "without text", list(gathered.empty))


def _warnings(gathered: "Gathered") -> list[str]:
    same = gathered.duplicates
    lines = [
        (
            gathered.only_provider,
            f"every passage is of {gathered.only_provider!r}: exposure among providers will say nothing; "
            "see --provider",
        ),
        (
            gathered.without_provider,
            f"{gathered.without_provider:,} passages have no provider and count as one, (unknown); "
            "see --provider",
        ),
        (same.dropped, f"{same.dropped:,} passages repeat a text of the same provider and are left out"),
        (same.mirrored, f"{same.mirrored:,} texts are of several providers; each keeps its own passage"),
        (same.near, f"{same.near:,} passages are nearly the same as another{_example(same.examples)}"),
        (gathered.oversize, f"{gathered.oversize:,} passages are longer: a row of a table is not divided"),
    ]
    return [line for wanted, line in lines if wanted]


def _example(examples: "Sequence[tuple[str, str]]") -> str:
    return f", such as {examples[0][0]} and {examples[0][1]}" if examples else ""


def _list(screen: Screen, what: str, lines: Sequence[str]) -> None:
    if not lines:
        return
    screen.line(f"{what}: {len(lines):,}", style="bold")
    for line in lines[:_SHOWN]:
        screen.line(f"  {line}")
    if len(lines) > _SHOWN:
        screen.line(f"  and {len(lines) - _SHOWN:,} more (--json lists all)")
