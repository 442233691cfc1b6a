"""API keys: long random strings, of which a service keeps only hashes."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
import tomllib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from meshkit.errors import InvalidField, Unauthenticated
from meshkit.file_watch import WatchedFiles
from meshkit.security.caller import DEFAULT_TENANT, Caller, Role, tenant_name

PREFIX: Final = "rmk_"
"""How every key begins, so that scanners for secrets know one when they see it."""


class KeysError(Exception):
    """A file of keys that cannot be used; a line per problem, with the file and the entry."""


class KeyEntry(BaseModel):
    """One ``[[key]]`` of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=200)
    """Whom it was given to."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the key, hexadecimal."""
    tenant: str = DEFAULT_TENANT
    """Whose data it opens."""
    roles: frozenset[Role] = Field(min_length=1)
    """What it allows."""
    expires: datetime | None = None
    """When it ends; never by default."""

    @classmethod
    def read(cls, content: Mapping[str, Any], where: str = "") -> Self:
        """An entry from its fields.

        Raises:
            KeysError: a line per field that is not in order, each after ``where``.
        """
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_input=False)
            lines = (
                f"{where}{'.'.join(map(str, problem['loc']))}: {problem['msg'].removeprefix('Value error, ')}"
                for problem in problems
            )
            raise KeysError("\n".join(lines)) from None

    @field_validator("tenant")
    @classmethod
    def _named(cls, value: str) -> str:
        try:
            return tenant_name(value, "tenant")
        except InvalidField as error:
            raise ValueError(error.message) from None

    @field_validator("expires")
    @classmethod
    def _zoned(cls, value: datetime | None) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError("must have a time zone, such as 2027-01-31T00:00:00Z")
        return value


class ApiKeys:
    """The keys of a file, which is read again when it changes: a key is withdrawn by removing its entry.

    A changed file that cannot be used leaves the keys before in force, and the log says so.

    Args:
        path: TOML with ``[[key]]`` entries; see :class:`KeyEntry`.
        now: the time, at which keys end; for tests.
        clock: monotonic seconds; for tests.

    Attributes:
        file: the keys by hash, as the file has them now.

    Raises:
        KeysError: the file cannot be used as it is.
    """

    def __init__(
        self,
        path: Path,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        self.file = WatchedFiles((path,), partial(_read, path), KeysError, clock=clock)

    def caller(self, key: str) -> Caller:
        """Whose key it is.

        Raises:
            Unauthenticated: nobody's, or it has expired.
        """
        # The hash of a guess tells nothing about how near it was, so a plain look-up leaks no time.
        entry = self.file.content().get(_hash(key))
        if entry is None:
            raise Unauthenticated("UNKNOWN_KEY", "the API key is not known here")
        if entry.expires is not None and entry.expires <= self._now():
            raise Unauthenticated("EXPIRED", f"the API key ended at {entry.expires.isoformat()}")
        return Caller(entry.name, entry.tenant, entry.roles)


def entries(path: Path) -> list[KeyEntry]:
    """What a file of keys says.

    Raises:
        KeysError: it cannot be used.
    """
    return list(_read(path).values())


def text_of(entry: KeyEntry) -> str:
    """An entry as it stands in a file."""
    lines = [
        "[[key]]",
        # JSON's strings are TOML's too, but for pairs of escapes that are one character.
        f"name = {json.dumps(entry.name, ensure_ascii=False)}",
        f'sha256 = "{entry.sha256}"',
        f'tenant = "{entry.tenant}"',
        f"roles = {json.dumps(sorted(entry.roles))}",
    ]
    if entry.expires is not None:
        lines.append(f"expires = {entry.expires.isoformat()}")
    return "\n".join(lines) + "\n"


def added(path: Path, entry: KeyEntry) -> None:
    """Adds an entry to a file of keys, which is made if it is not there; its owner alone may read it then.

    Raises:
        KeysError: the file cannot be used, or not be written.
    """
    before = ""
    if path.exists():
        entries(path)  # what cannot be used is not added to
        before = path.read_text(encoding="utf-8")
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with os.fdopen(
            os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(before + ("\n" if before else "") + text_of(entry))
        beside.replace(path)
    except OSError as error:
        raise KeysError(f"{error.filename}: {error.strerror}") from None


def new_key() -> tuple[str, str]:
    """A new key and its SHA-256: 256 random bits, so a fast hash is enough."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, _hash(key)


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _read(path: Path) -> dict[str, KeyEntry]:
    try:
        with path.open("rb") as file:
            content: dict[str, Any] = tomllib.load(file)
    except OSError as error:
        raise KeysError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise KeysError(f"{path}: not TOML: {error}") from None
    problems = [
        f"{path}: unknown entry {name!r}; allowed: [[key]]" for name in sorted(content.keys() - {"key"})
    ]
    rows = content.get("key", [])
    if not isinstance(rows, list):
        raise KeysError(f"{path}: key: must be a list of tables, [[key]]")
    keys: dict[str, KeyEntry] = {}
    for number, row in enumerate(rows, start=1):
        try:
            entry = KeyEntry.read(row, f"{path}: key {number}: ")
        except KeysError as error:
            problems.append(str(error))
            continue
        if entry.sha256 in keys:
            problems.append(f"{path}: key {number}: sha256: is that of another key too")
        keys[entry.sha256] = entry
    if problems:
        raise KeysError("\n".join(problems))
    return keys
