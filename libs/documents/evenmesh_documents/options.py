"""Options that the commands of documents share; a source's definition has the same."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from evenmesh.commands.failure import INSTALL, USAGE, CommandError

if TYPE_CHECKING:
    from evenmesh_documents.attribution import Attribution
    from evenmesh_documents.limits import Limits
    from evenmesh_documents.origins.sites import SiteOptions
    from evenmesh_documents.splitting import Splitting

_WORDS: Final = 110
_TOKENS: Final = 128
"""The bundled cross-encoder reads a question and a passage of 144 tokens together."""
BUNDLED: Final = "bundled"
WORDS: Final = "words"


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
    interval: Annotated[
        float, typer.Option(min=0, max=60, help="Least seconds between two requests to a site.")
    ] = 1.0
    allow_private: Annotated[
        bool, typer.Option("--allow-private", help="Read sites at addresses that are not public, too.")
    ] = False
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER", help="A bound of one file, such as pages=20000. May be repeated."
        ),
    ] = None

    def sites(self) -> "SiteOptions":
        """Return how sites are read."""
        from evenmesh_documents.origins.sites import SiteOptions

        return SiteOptions(self.interval, self.allow_private)

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
            help="Most tokens or words of a passage with its title, 16 to 2048. "
            "Default: 128 tokens or 110 words."
        ),
    ] = None
    overlap: Annotated[
        int, typer.Option(help="Most tokens or words that the next passage repeats; at most half of --size.")
    ] = 0
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|bundled|words",
            help="Count the tokens of a model: its tokenizer.json, or `bundled` for the models of evenmesh; "
            "or `words`. Default: bundled where they are installed, else words.",
        ),
    ] = None
    provider: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE",
            help="Who provides a passage: folder, domain, field:NAME, column:NAME, pattern:REGEX or "
            "value:TEXT. May be repeated; the first that finds one counts. Default: field:provider, domain, "
            "folder.",
        ),
    ] = None
    attribute: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=RULE", help="Another attribute, by such a rule. May be repeated."),
    ] = None
    base_url: Annotated[str, typer.Option(help="Text before addresses, so that they open in a browser.")] = ""

    def given(self) -> list[str]:
        """Return the options that differ from their defaults, as they are written."""
        return [
            f"--{one.name.replace('_', '-')}"
            for one in fields(self)
            if getattr(self, one.name) not in (one.default, [])
        ]

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

    @property
    def counted_by(self) -> str:
        """Return what is counted: the tokenizer given, else the bundled one, or words where there is none."""
        from evenmesh_documents import counting

        return self.tokenizer or (BUNDLED if counting.bundled_is_there() else WORDS)

    def splitting(self, apart: str) -> "Splitting":
        """Return how documents are split.

        Raises:
            CommandError: a value is outside its range, or the tokenizer cannot be read.
        """
        from evenmesh_documents import counting
        from evenmesh_documents.splitting import Splitting

        by = self.counted_by
        try:
            if by == WORDS:
                return Splitting(_WORDS if self.size is None else self.size, self.overlap, apart=apart)
            count = counting.bundled() if by == BUNDLED else counting.tokens(Path(by))
            return Splitting(_TOKENS if self.size is None else self.size, self.overlap, count, apart)
        except ModuleNotFoundError as exc:
            raise CommandError(f"--tokenizer needs {exc.name}, which is not installed: {INSTALL}") from exc
        except ValueError as exc:
            raise CommandError(str(exc), USAGE) from exc
