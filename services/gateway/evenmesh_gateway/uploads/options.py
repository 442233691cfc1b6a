"""What the address of an upload says: how its files are read and where they go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from starlette.datastructures import QueryParams

from evenmesh.wire.errors import InvalidField
from evenmesh_documents.attribution import Attribution, Rule
from evenmesh_documents.splitting import MAX_SIZE, MIN_SIZE

MOST_RULES: Final = 64
"""Most rules of a kind."""
MOST_RULE_BYTES: Final = 1024
"""Longest rule, and longest base of addresses. Bytes."""

MOST_PATTERN_BYTES: Final = 4096
"""Most of all patterns together. Bytes."""
RULES: Final = (
    "must be folder, domain, field:NAME, column:NAME, value:TEXT, or pattern:REGEX with one group, "
    f"in at most {MOST_RULE_BYTES:,} bytes"
)
_FLAGS: Final = {"true": True, "false": False}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UploadOptions:
    """How an upload is read.

    Attributes:
        provider: rules for the provider; empty for the default ones.
        attributes: name and rule of each other attribute.
        base_url: what stands before addresses.
        size: most that a passage has; 0 for the default.
        overlap: most that a passage repeats of the one before.
        dry_run: whether to read only, and add nothing.
        create: whether to create a collection that is missing.
        wait: whether to answer once all passages have vectors.
    """

    provider: tuple[str, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()
    base_url: str = ""
    size: int = 0
    overlap: int = 0
    dry_run: bool = False
    create: bool = True
    wait: bool = True


def options_of(query: QueryParams, default_size: int) -> UploadOptions:
    """Read the options of an address.

    Args:
        query: the options.
        default_size: most that a passage has where no size is given.

    Raises:
        InvalidField: one is not known, given twice, or outside its bounds.
    """
    known = (*_REPEATED, *_SINGLE)
    single: dict[str, str] = {}
    for name, value in query.multi_items():
        if name not in known:
            raise InvalidField("query", f"knows {', '.join(known)} alone")
        if name in _SINGLE and name in single:
            raise InvalidField(name, "must be given once")
        if len(value.encode()) > MOST_RULE_BYTES:
            raise InvalidField(name, f"must be at most {MOST_RULE_BYTES:,} bytes")
        single[name] = value
    provider = tuple(query.getlist("provider"))
    attributes = tuple(map(_attribute, query.getlist("attribute")))
    for name, rules in (("provider", provider), ("attribute", attributes)):
        if len(rules) > MOST_RULES:
            raise InvalidField(name, f"must be given at most {MOST_RULES} times")
    options = UploadOptions(
        provider=provider,
        attributes=attributes,
        base_url=single.get("base_url", ""),
        size=_given(single, "size", lambda text: _between(text, MIN_SIZE, MAX_SIZE), 0),
        overlap=_given(single, "overlap", lambda text: _between(text, 0, MAX_SIZE // 2), 0),
        **{
            name: _given(single, name, _FLAGS.get, default)
            for name, default in (("dry_run", False), ("create", True), ("wait", True))
        },
    )
    _check_rules(options)
    size = options.size or default_size
    if options.overlap > size // 2:
        raise InvalidField("overlap", f"must be at most half of size, which is {size:,}")
    return options


_REPEATED: Final = ("provider", "attribute")
_SINGLE: Final = {
    "size": f"must be {MIN_SIZE} to {MAX_SIZE:,}",
    "overlap": f"must be 0 to half of size, at most {MAX_SIZE // 2:,}",
    "base_url": "",
    "dry_run": "must be true or false",
    "create": "must be true or false",
    "wait": "must be true or false",
}


def _given(values: Mapping[str, str], name: str, read: Callable[[str], T | None], default: T) -> T:
    if name not in values:
        return default
    value = read(values[name])
    if value is None:
        raise InvalidField(name, _SINGLE[name])
    return value


def _between(text: str, low: int, high: int) -> int | None:
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1
    return value if low <= value <= high else None


def _attribute(text: str) -> tuple[str, str]:
    name, equals, rule = text.partition("=")
    if not name or not equals:
        raise InvalidField("attribute", "must be NAME=RULE, such as topic=folder")
    return name, rule


def _check_rules(options: UploadOptions) -> None:
    """Check the rules.

    Raises:
        InvalidField: one is none, or they do not go together.
    """
    provider = tuple(_rule("provider", rule) for rule in options.provider)
    others = tuple((name, _rule("attribute", rule)) for name, rule in options.attributes)
    patterns = [one.argument for one in (*provider, *(rule for _, rule in others)) if one.kind == "pattern"]
    if sum(len(one.encode()) for one in patterns) > MOST_PATTERN_BYTES:
        raise InvalidField("provider", f"patterns must be at most {MOST_PATTERN_BYTES:,} bytes together")
    try:
        Attribution(provider, others)
    except ValueError:
        raise InvalidField(
            "attribute", "must name no attribute that is set already, nor another column than other rules"
        ) from None


def _rule(field: str, text: str) -> Rule:
    try:
        # Patterns are compiled by the process that reads the files: that can take seconds of a thread.
        return Rule.parse(text, compiles=False)
    except ValueError:  # whose words repeat the rule
        raise InvalidField(field, RULES) from None
