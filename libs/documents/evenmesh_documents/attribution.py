"""Say who provides a passage, and other attributes of it, by rules."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from evenmesh.types.passage import PROVIDER, Passage
from evenmesh.wire.checks import MAX_ATTRIBUTE_BYTES, MAX_ATTRIBUTES
from evenmesh_documents.document import Document
from evenmesh_documents.origins.archives import is_archive
from evenmesh_documents.splitting import Chunk

DOCUMENT, PAGE, HEADING, SPAN = "document", "page", "heading", "span"
"""Attributes that say where a passage stands: address, ``3`` or ``3-4``, headings, characters."""

_PLACE: Final = (DOCUMENT, PAGE, HEADING, SPAN)
_STATED: Final = ("author", "date", "language")
_KINDS: Final = "folder, domain, field:NAME, column:NAME, pattern:REGEX or value:TEXT"
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_ABOVE: Final = " › "


@dataclass(frozen=True, slots=True)
class Rule:
    """Where the value of an attribute comes from.

    Attributes:
        kind: ``folder`` (the first of the address that is no archive), ``domain`` (host of the URL that a
            document states as its own, or of its address), ``field`` (of the front matter, or title, author,
            language, date), ``column`` (of a table's row), ``pattern`` (its first group, found in the
            address) or ``value``.
        argument: name of the field or column, the regular expression, or the value; empty for the first two.
    """

    kind: str
    argument: str = ""

    @classmethod
    def parse(cls, text: str, *, compiles: bool = True) -> "Rule":
        """Return the rule that a text says, such as ``field:publisher``.

        Args:
            text: the rule.
            compiles: whether a regular expression is looked at, which can take half a second for 1,000 bytes
                of it.

        Raises:
            ValueError: it is none.
        """
        kind, _, argument = text.partition(":")
        if kind in ("folder", "domain") and not argument:
            return cls(kind)
        if kind not in ("field", "column", "pattern", "value") or not argument:
            raise ValueError(f"must be {_KINDS}, is {text!r}")
        if kind == "pattern" and compiles:
            try:
                groups = re.compile(argument).groups
            except re.error as exc:
                raise ValueError(f"{argument!r} is not a regular expression: {exc}") from exc
            if groups != 1:
                raise ValueError(f"{argument!r} must have one group, has {groups}")
        return cls(kind, argument)

    def __str__(self) -> str:
        return f"{self.kind}:{self.argument}" if self.argument else self.kind

    def value(self, document: Document, chunk: Chunk) -> str:
        """Return the value for a passage; empty where the rule finds none."""
        match self.kind:
            case "folder":
                folders = document.address.split("/")[:-1]
                return next((one for one in folders if not is_archive(one)), "")
            case "domain":
                return _host(document.attributes.get("url", "")) or _host(document.address)
            case "field":
                if self.argument in ("title", *_STATED):
                    return str(getattr(document, self.argument))
                return document.attributes.get(self.argument, "")
            case "column":
                return chunk.value
            case "pattern":
                found = re.search(self.argument, document.address)
                return (found[1] or "") if found is not None else ""
            case _:
                return self.argument


DEFAULT_PROVIDER: Final = (Rule("field", PROVIDER), Rule("domain"), Rule("folder"))
"""What names the provider: the front matter, else the site, else the first folder."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """Rules for the attributes of passages.

    Attributes:
        provider: rules for the provider; the first that finds a value counts.
        others: rules for other attributes, by name.
        base_url: what makes an address of a relative path: both are joined; empty leaves the path.

    Raises:
        ValueError: two rules name different columns, or an attribute has the name of one that says the place.
    """

    provider: tuple[Rule, ...] = DEFAULT_PROVIDER
    others: tuple[tuple[str, Rule], ...] = ()
    base_url: str = ""

    def __post_init__(self) -> None:
        columns = {rule.argument for rule in self._rules() if rule.kind == "column"}
        if len(columns) > 1:
            raise ValueError(f"rows can be kept apart by one column, not by {', '.join(sorted(columns))}")
        if taken := sorted({name for name, _ in self.others} & {*_PLACE, PROVIDER}):
            raise ValueError(f"the attribute {taken[0]!r} is set already")

    @property
    def column(self) -> str:
        """Return the column that keeps rows of tables apart; empty for none."""
        return next((rule.argument for rule in self._rules() if rule.kind == "column"), "")

    @property
    def has_rules(self) -> bool:
        """Return whether there are other rules than those that hold by default."""
        return bool(self.others) or self.provider != DEFAULT_PROVIDER

    def _rules(self) -> list[Rule]:
        return [*self.provider, *(rule for _, rule in self.others)]

    def provider_of(self, document: Document, chunk: Chunk) -> tuple[str, str]:
        """Return the provider of a passage and the rule that found it; both empty where none did."""
        for rule in self.provider:
            if value := one_line(rule.value(document, chunk)):
                return cut(PROVIDER, value), str(rule)
        return "", ""

    def of_record(self, record: Passage) -> Mapping[str, str]:
        """Return the attributes of a record of a data set, within the bounds of the mesh.

        Rules read its attributes as fields and columns, and its id as the address.
        """
        author, date, language = (record.attributes.get(name, "") for name in _STATED)
        document = Document(record.id, (), record.title, author, language, date, attributes=record.attributes)
        column = record.attributes.get(self.column, "")
        chunk = Chunk(record.id, record.text, record.title, (), None, None, 0, len(record.text), value=column)
        provider, _ = self.provider_of(document, chunk)
        given = [(name, rule.value(document, chunk)) for name, rule in self.others]
        found = {PROVIDER: provider, **{name: one_line(value) for name, value in given}}
        for name, value in record.attributes.items():
            found.setdefault(name, value)
        kept = [(name, cut(name, value)) for name, value in found.items() if value]
        return dict(kept[:MAX_ATTRIBUTES])

    def attributes(self, document: Document, chunk: Chunk, provider: str) -> Mapping[str, str]:
        """Return all attributes of a passage, within the bounds of the mesh.

        Its place comes first, then the provider, the rules, what the document says of itself, and its front
        matter; what would exceed the 64 attributes is left out, and a value of more than 1,024 bytes is cut.
        """
        found = {DOCUMENT: self.base_url + document.address, SPAN: f"{chunk.start}-{chunk.end}"}
        if chunk.page is not None:
            last = chunk.last_page
            found[PAGE] = str(chunk.page) if last in (None, chunk.page) else f"{chunk.page}-{last}"
        found[HEADING] = _ABOVE.join(chunk.headings)
        found[PROVIDER] = provider
        given = [(name, rule.value(document, chunk)) for name, rule in self.others]
        stated = [(name, str(getattr(document, name))) for name in _STATED]
        for name, value in [*given, *stated, *document.attributes.items()]:
            key = one_line(name)
            if key and len(key.encode()) < MAX_ATTRIBUTE_BYTES // 2:
                found.setdefault(key, one_line(value))
        kept = [(name, cut(name, value)) for name, value in found.items() if value]
        return dict(kept[:MAX_ATTRIBUTES])


def _host(address: str) -> str:
    try:
        return (urlsplit(address).hostname or "").removeprefix("www.")
    except ValueError:
        return ""


def one_line(value: str) -> str:
    """Return a text in one line, without control characters."""
    return " ".join(_CONTROL.sub(" ", value).split())


def cut(name: str, value: str) -> str:
    """Return as much of a value as the attribute ``name`` may have."""
    most = MAX_ATTRIBUTE_BYTES - len(name.encode())
    data = value.encode()
    if len(data) <= most:
        return value
    return data[: most - 3].decode(errors="ignore") + "…"
