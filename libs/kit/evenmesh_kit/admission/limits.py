"""Limits of tenants, from a TOML file: a default and entries for some tenants."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evenmesh.wire.errors import InvalidField
from evenmesh_kit.security import audit
from evenmesh_kit.security.caller import tenant_name

_TOKENS_BURST_S: Final = 60.0
_CALLS_BURST_S: Final = 2.0
_STREAM_BYTES: Final = 256 * 2**20
_AT_A_TIME: Final = ("concurrent", "streams")


class LimitsError(Exception):
    """Raised for an invalid file of limits; one line for each problem, with file and entry."""


class TenantLimits(BaseModel):
    """``[default]`` or one ``[tenants.NAME]`` of the file; an unset field states no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    calls_per_s: float | None = Field(default=None, gt=0)
    """Rate of calls and turns of conversations. Per second, (0, inf)."""
    burst: int | None = Field(default=None, ge=1)
    """Calls at once after a pause. Calls, [1, inf). Default: those of two seconds, at least one."""
    concurrent: int | None = Field(default=None, ge=1)
    """Calls at a time, open streams included. Calls, [1, inf)."""
    streams: int | None = Field(default=None, ge=1)
    """Calls at a time whose caller streams its requests: conversations, ingests. Calls, [1, inf)."""
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Rate of tokens that models read and write. Per minute, [1, inf)."""
    weight: float = Field(default=1.0, gt=0)
    """Share of the work when several tenants wait. (0, inf)."""

    def or_else(self, others: TenantLimits) -> TenantLimits:
        """Return these limits; where they state none of calls or streams at a time, those of ``others``."""
        unset = {name: getattr(others, name) for name in _AT_A_TIME if getattr(self, name) is None}
        return self.model_copy(update=unset)

    @property
    def rated(self) -> bool:
        """Return whether calls or tokens have a rate."""
        return self.calls_per_s is not None or self.tokens_per_minute is not None

    @property
    def calls_at_once(self) -> float:
        """Return the size of the bucket of calls. Calls, [1, inf)."""
        return self.burst or max(1.0, _CALLS_BURST_S * (self.calls_per_s or 0.0))

    @property
    def tokens_per_s(self) -> float:
        """Return the rate of tokens; 0 without a limit. Per second."""
        return (self.tokens_per_minute or 0) / _TOKENS_BURST_S


def built_in(largest_request: int) -> TenantLimits:
    """Return the limits of a tenant in each process of a service that knows its callers, without a file.

    gRPC holds what has come of the next request of every stream, however long the rest takes. So the streams
    of a tenant are as many as hold 256 MiB of requests.

    Args:
        largest_request: largest request of the service. Bytes, [1, inf).
    """
    return TenantLimits(concurrent=512, streams=min(256, max(1, _STREAM_BYTES // largest_request)))


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a file.

    Attributes:
        default: limits of tenants without an entry.
        tenants: limits of the others, by name.
    """

    default: TenantLimits = field(default_factory=TenantLimits)
    tenants: dict[str, TenantLimits] = field(default_factory=dict)

    def of(self, tenant: str) -> TenantLimits:
        """Return the limits of a tenant."""
        return self.tenants.get(tenant, self.default)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file; unset fields of a tenant are those of ``default``.

        Raises:
            LimitsError: it is invalid; names every problem at once.
        """
        try:
            content = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise LimitsError(f"{path}: {why}") from None
        problems = [f"{path}: {key}: is not known" for key in content if key not in ("default", "tenants")]
        default, tenants = content.get("default", {}), content.get("tenants", {})
        for key, value in (("default", default), ("tenants", tenants)):
            if not isinstance(value, dict):
                raise LimitsError(f"{path}: {key}: must be a table")
        general = _entry(default, f"{path}: default", problems)
        named = {}
        for name, entry in tenants.items():
            where = f"{path}: tenants.{name}"
            try:
                tenant_name(name, where)
            except InvalidField as error:
                problems.append(f"{where}: {error.message}")
            if isinstance(entry, dict):
                named[name] = _entry({**default, **entry}, where, problems)
            else:
                problems.append(f"{where}: must be a table")
        if problems:
            raise LimitsError("\n".join(problems))
        return cls(general, named)


def record_changes(before: Limits, after: Limits) -> None:
    """Record in the audit log which entries of the file changed."""
    if before.default != after.default:
        audit.record_change("limits", "changed", "default")
    for what, tenant in audit.changes(before.tenants, after.tenants):
        audit.record_change("limits", what, f"tenants.{tenant}", tenant)


def _entry(content: dict[str, Any], where: str, problems: list[str]) -> TenantLimits:
    try:
        return TenantLimits.model_validate(content)
    except ValidationError as error:
        problems += [
            f"{where}.{'.'.join(map(str, one['loc']))}: {one['msg']}"
            for one in error.errors(include_url=False, include_input=False)
        ]
        return TenantLimits()
