"""API keys: long random strings; a service keeps only their hashes."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
import time
import tomllib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from evenmesh.wire.errors import InvalidField, Unauthenticated
from evenmesh.wire.file_watch import WatchedFiles
from evenmesh_kit.security import audit
from evenmesh_kit.security.caller import DEFAULT_TENANT, AgentName, Caller, Role, agent_names, tenant_name

PREFIX: Final = "emk_"
"""Prefix of every key, by which secret scanners recognise one."""


class KeysError(Exception):
    """Raised for an invalid file of keys; one line for each problem, with file and entry."""


class KeyEntry(BaseModel):
    """One ``[[key]]`` of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=200)
    """Holder of the key."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the key, hexadecimal."""
    tenant: str
    """Tenant whose data it gives access to; of no meaning in a key of services alone."""
    roles: frozenset[Role] = Field(min_length=1)
    """Permissions."""
    provider: str = Field(default="", max_length=1024)
    """Provider whose statements it may read; with the role ``provider``, and only then."""
    agents: tuple[str, ...] | None = None
    """The only agents that its holder may act as, as ``TASK/MODEL``; default: every agent of the tenant."""
    expires: datetime | None = None
    """When it expires; default: never."""

    @classmethod
    def read(cls, content: Mapping[str, Any], where: str = "", default_tenant: str = "") -> Self:
        """Return an entry made of its fields; ``default_tenant`` is that of one that names none.

        Raises:
            KeysError: one line for each invalid field, prefixed with ``where``.
        """
        try:
            return cls.model_validate(_with_tenant(content, default_tenant))
        except ValidationError as error:
            problems = error.errors(include_url=False, include_input=False)
            lines = (
                f"{where}{'.'.join(map(str, problem['loc']))}: {problem['msg'].removeprefix('Value error, ')}"
                for problem in problems
            )
            raise KeysError("\n".join(lines)) from None

    @property
    def for_services(self) -> bool:
        """Return whether its only role is that of services, which call for any tenant."""
        return self.roles == {Role.SERVICE}

    @property
    def bound_to(self) -> frozenset[AgentName] | None:
        """Return the only agents that its holder may act as; None for any."""
        return None if self.agents is None else agent_names(self.agents, "agents")

    @field_validator("tenant")
    @classmethod
    def _named(cls, value: str) -> str:
        try:
            return tenant_name(value, "tenant")
        except InvalidField as error:
            raise ValueError(error.message) from None

    @model_validator(mode="after")
    def _provides(self) -> Self:
        if bool(self.provider) != (Role.PROVIDER in self.roles):
            raise ValueError("the role provider and the name of a provider go together")
        return self

    @model_validator(mode="after")
    def _binds(self) -> Self:
        if self.agents is not None and Role.SERVICE in self.roles:
            raise ValueError("agents: a service calls for any agent; give a key with the role service none")
        try:
            _ = self.bound_to
        except InvalidField as error:
            raise ValueError(str(error)) from None
        return self

    @field_validator("expires")
    @classmethod
    def _zoned(cls, value: datetime | None) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError("must have a time zone, such as 2027-01-31T00:00:00Z")
        return value


class ApiKeys:
    """The keys of a file, which is read again when it changes: remove an entry to revoke its key.

    If the changed file is invalid, the earlier keys stay in use and the log says so.

    Args:
        path: TOML with ``[[key]]`` entries; see :class:`KeyEntry`.
        default_tenant: tenant of entries that name none; empty to refuse the file.
        now: time that keys expire by; for tests.
        clock: monotonic seconds; for tests.

    Attributes:
        file: the keys by hash, as the file has them now.

    Raises:
        KeysError: the file is invalid.
    """

    def __init__(
        self,
        path: Path,
        *,
        default_tenant: str = "",
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        self.file = WatchedFiles(
            (path,),
            partial(_read, path, default_tenant),
            KeysError,
            clock=clock,
            on_change=_record_changes,
        )

    def caller(self, key: str) -> Caller:
        """Return the holder of a key.

        Raises:
            Unauthenticated: the key is unknown or has expired.
        """
        # The hash of a guess does not show how near it is, so a plain lookup leaks nothing by its duration.
        entry = self.file.content().get(_hash(key))
        if entry is None:
            raise Unauthenticated("UNKNOWN_KEY", "the API key is not known here")
        if entry.expires is not None and entry.expires <= self._now():
            raise Unauthenticated("EXPIRED", f"the API key expired at {entry.expires.isoformat()}")
        return Caller(entry.name, entry.tenant, entry.roles, entry.provider, entry.bound_to)


def entries(path: Path, default_tenant: str = "") -> list[KeyEntry]:
    """Return the entries of a file of keys; ``default_tenant`` is that of entries that name none.

    Raises:
        KeysError: it is invalid.
    """
    return list(_read(path, default_tenant).values())


def to_toml(entry: KeyEntry) -> str:
    """Return an entry as TOML."""
    lines = [
        "[[key]]",
        # A JSON string is a TOML string too, except for surrogate pairs, which ensure_ascii=False avoids.
        f"name = {json.dumps(entry.name, ensure_ascii=False)}",
        f'sha256 = "{entry.sha256}"',
        *(() if entry.for_services else (f'tenant = "{entry.tenant}"',)),
        f"roles = {json.dumps(sorted(entry.roles))}",
        *((f"provider = {json.dumps(entry.provider, ensure_ascii=False)}",) if entry.provider else ()),
    ]
    if entry.agents is not None:
        lines.append(f"agents = {json.dumps(entry.agents, ensure_ascii=False)}")
    if entry.expires is not None:
        lines.append(f"expires = {entry.expires.isoformat()}")
    return "\n".join(lines) + "\n"


def add_entry(path: Path, entry: KeyEntry) -> None:
    """Add an entry to a file of keys; a new file is readable by its owner only, another by whom it was.

    Raises:
        KeysError: the file is or would be invalid, or cannot be written.
    """
    path = path.resolve()  # a link stays one
    before, there = "", None
    if path.exists():
        entries(path, DEFAULT_TENANT)  # refuse to add to an invalid file
        before, there = path.read_text(encoding="utf-8"), path.stat()
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with os.fdopen(
            os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(before + ("\n" if before else "") + to_toml(entry))
        entries(beside, DEFAULT_TENANT)  # a list `key = […]` cannot be added to
        if there is not None:
            # A service that reads it may run as another user.
            made = beside.stat()
            if (made.st_uid, made.st_gid) != (there.st_uid, there.st_gid):
                os.chown(beside, there.st_uid, there.st_gid)
            beside.chmod(stat.S_IMODE(there.st_mode))
        beside.replace(path)
    except KeysError as error:
        raise KeysError(f"cannot add to {str(error).replace(str(beside), str(path))}") from None
    except OSError as error:
        raise KeysError(f"{error.filename}: {error.strerror}") from None
    finally:
        beside.unlink(missing_ok=True)


def new_key() -> tuple[str, str]:
    """Return a new key and its SHA-256; a fast hash is enough for 256 random bits."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, _hash(key)


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _record_changes(before: dict[str, KeyEntry], after: dict[str, KeyEntry]) -> None:
    for what, digest in audit.changes(before, after):
        entry = after.get(digest) or before[digest]
        audit.record_change("key", what, entry.name, entry.tenant)


def _read(path: Path, default_tenant: str) -> dict[str, KeyEntry]:
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
            entry = KeyEntry.read(row, f"{path}: key {number}: ", default_tenant)
        except KeysError as error:
            problems.append(str(error))
            continue
        if entry.sha256 in keys:
            problems.append(f"{path}: key {number}: sha256: is that of another key too")
        keys[entry.sha256] = entry
    if problems:
        raise KeysError("\n".join(problems))
    return keys


def _with_tenant(row: Any, default_tenant: str) -> Any:
    """Return the row with a tenant if it names none and needs none, or has one by default."""
    if not isinstance(row, dict):
        return row
    tenant = DEFAULT_TENANT if row.get("roles") == [Role.SERVICE] else default_tenant
    return {"tenant": tenant, **row} if tenant else row
